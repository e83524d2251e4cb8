"""The NativeHandler as a whole: precision, arguments, what it remembers, op-trees, memory."""

import copy
import gc
import pickle
import sys
import weakref

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError, OutOfMemoryError
from brainstorm.handlers import NumpyHandler, bound_program, lowering
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.native.calls import Call
from brainstorm.layers import FullyConnected
from brainstorm.optree import Variable, formula, linearise
from brainstorm.optree import functions as fn
from brainstorm.testing import check_handler, handler_harness
from tests.handlers.fences import HERE
from tests.handlers.native.lowered import native_calls
from tests.handlers.running import in_process, in_threads, needs_compiler, traced
from tests.networks import batch_for, trainable


def test_it_computes_in_double_precision(monkeypatch):
    """Kernels are the same but for their type, so other properties are those of float32."""
    monkeypatch.setattr(handler_harness, "EXAMPLES", 2)
    check_handler(NativeHandler(np.float64, seed=1), properties=["results equal the reference"])


@pytest.mark.parametrize(
    "property",
    ["results equal the reference", "slices of wider arrays do as well",
     "results may overwrite arguments", "nothing is allocated in steady state"],
)  # fmt: skip
def test_it_does_without_library_and_compiler(without, no_compiler, property, monkeypatch):
    """NumPy's methods have all properties: here they get the arguments."""
    monkeypatch.setattr(handler_harness, "EXAMPLES", 4)
    check_handler(without, properties=[property])


def test_info(native, monkeypatch):
    info = native.info()
    assert info["products"] == info["convolutions"] == str(native._library)
    assert info["pooling"].startswith("C, compiled by ")
    assert info["threads"] == str(native.threads)
    assert "(oneDNN has no float64)" in NativeHandler(np.float64, seed=1).info()["products"]
    monkeypatch.setenv("CC", "no-such-compiler-here")
    missing = "numpy (no C compiler was found: CC is 'no-such-compiler-here')"
    assert native.info()["op-trees"] == native.info()["pooling"] == missing


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"threads": n}, r"^NativeHandler\(threads\): expected an integer from 1 to 4096 or None")
          for n in (0, -1, 1.5, "two", True, 4097)),
        ({"compute": "fp8"},
         r"^NativeHandler\(compute\): expected 'float32' or 'bf16', got 'fp8'$"),
        ({"compute": "bf16"},
         r"float32, but BRAINSTORM_ONEDNN is off\. Use compute='float32'\.$"),
        ({"compute": "bf16", "dtype": np.float64}, "but the dtype is float64"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_are_refused(without, options, text):
    with pytest.raises(HandlerValidationError, match=text):
        NativeHandler(**options)


@pytest.mark.parametrize(
    ("given", "named", "text"),
    [
        ("ab", {}, "missing a required argument: 'out'"),
        ("abc", {"transpose": True}, "unexpected keyword argument 'transpose'"),
        ("abcdef", {}, "too many positional arguments"),
    ],
)
def test_wrong_arguments_are_python_errors(native, given, named, text):
    with pytest.raises(TypeError, match=text):
        native.dot_mm(*(np.ones((2, 2), np.float32) for _ in given), **named)


def f(*shape):
    return np.ones(shape, np.float32)


@needs_compiler
@pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect")
def test_memory_beyond_arrays_is_never_accessed():
    in_process(HERE + "use_fences(True); use_fences(False)", PYTHONFAULTHANDLER="1")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("dot_mm", (f(2, 3), f(4, 5), f(2, 5))),
        ("dot_mm", (f(2, 3), f(3, 5), f(4, 5))),
        ("dot_add_mm", (f(200, 300), f(400, 500), f(200, 500))),
        ("dot_add_packed", (f(2, 3), f(4, 5), f(2, 5))),
        ("batched_dot_mm", (f(2, 3, 4), f(5, 3, 6), f(2, 3, 6))),
        ("affine_mm", (f(2, 3), f(5, 3), f(4), f(2, 5), "rel")),
        ("take_rows_mv", (f(4, 3), f(5, 1), f(6, 3))),
        ("add_rows_mv", (f(6, 3), f(5, 1), f(4, 3))),
        ("maxpool2d_forward_batch",
         (f(1, 4, 4, 1), (2, 2), f(1, 3, 3, 1), 0, (2, 2), f(1, 3, 3, 1))),
        ("conv2d_forward_batch", (f(1, 4, 4, 1), f(2, 2, 2, 1), f(1), f(1, 3, 3, 2), 0, (1, 1))),
    ],
    ids=lambda value: value if type(value) is str else "",
)  # fmt: skip
def test_shapes_that_do_not_fit_never_reach_native_code(native, name, arguments):
    parameters = native.operations()[name].signature.parameters
    given = dict(zip(parameters, arguments, strict=False))
    calls = traced(native, lambda: getattr(native, name)(**given))
    assert not any(isinstance(call, Call) for call in calls)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("conv2d_forward_batch",
         {"weights": f(4, 3, 3, 3), "bias": None, "outputs": f(2, 6, 6, 4), "stride": (1, 1)}, 27),
        ("avgpool2d_forward_batch",
         {"window": (2, 2), "outputs": 0 * f(2, 4, 4, 3), "stride": (2, 2)}, 1),
    ],
)  # fmt: skip
def test_images_that_are_not_contiguous_are_left_to_numpy(name, arguments, expected):
    handler = NativeHandler(seed=1)
    given = {"inputs": f(2, 8, 8, 6)[..., 1:4], "padding": 0, **arguments}
    assert native_calls(handler, name, given) is None
    getattr(handler, name)(**given)
    np.testing.assert_array_equal(given["outputs"], expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))])
def test_copies_have_memory_of_their_own(native, copied):
    a, out = np.full((9, 9), 2, np.float32), np.zeros((9, 9), np.float32)
    native.dot_mm(a, a, out)
    other = copied(native)
    assert other.lane is not native.lane
    assert other._library is native._library
    other.dot_add_mm(a, a, out)
    other.act_func["tanh"](out, out)
    np.testing.assert_array_equal(out, np.ones((9, 9)))


def test_a_shallow_copy_is_not_traced_with_the_original(native):
    x = np.ones(3, np.float32)
    copied = copy.copy(native)
    assert traced(native, lambda: copied.add_st(1.0, x, x)) == []
    assert traced(native, lambda: copied.inplace_act_func["tanh"](x)) == []


def test_what_is_remembered_does_not_keep_arrays(native):
    arrays = [np.ones((9, 9), np.float32) for _ in range(3)]
    native.dot_mm(*arrays)
    gone = [weakref.ref(array) for array in arrays]
    del arrays
    assert [ref() for ref in gone] == [None] * 3


def test_the_memory_of_a_thread_is_freed_with_it(native):
    """Without the garbage collector: scratch memory may be large."""
    x, gone = np.ones((3, 40, 40, 4), np.float32), []

    def work():
        native.compute(formula(fn.softmax), [x], [x])
        native.dot_mm(x[0, 0], x[0, 0].T, np.zeros((40, 40), np.float32))
        native.lane.workspace("formulas", 100)
        gone.extend(map(weakref.ref, (native.lane, *native.lane.held.values(), native.lane.memo)))

    gc.disable()
    try:
        in_threads(lambda _: work(), [None])
        assert len(gone) > 2
        assert not any(ref() is not None for ref in gone)
    finally:
        gc.enable()


def test_what_is_remembered_is_bounded_and_other_arrays_may_lie_there(native, monkeypatch):
    monkeypatch.setattr(lowering, "MOST_CALLS", 10)
    for k in range(100):
        a, b, out = (np.full((60, 9), x, np.float32) for x in (k, 1, 0))
        for start in (0, k % 50):
            native.dot_mm(a[start : start + 9], b[:9], out[:9])
            np.testing.assert_array_equal(out[:9], np.full((9, 9), 9 * k))
        assert len(native.memo._calls) <= 10


def test_the_same_memory_in_another_byte_order_is_another_array(native):
    a, out = np.ones((9, 9), np.float32), np.zeros((9, 9), np.float32)
    program = linearise(Variable(a.shape) * 2)
    for x in (a, a.view(">f4")):
        native.run_program(program, [x], [out], [False])
        np.testing.assert_array_equal(out, x * 2)
        native.dot_mm(x, x, out)
        np.testing.assert_array_equal(out, x.astype(np.float32) @ x.astype(np.float32))


def test_a_pass_of_any_length_uses_its_calls_again_until_the_sizes_change(monkeypatch):
    monkeypatch.setattr(lowering, "MANY_CALLS", 30)
    layers = [FullyConnected(2 + i, name=f"F{i}") for i in range(80)]
    net = trainable(*layers, handler=NativeHandler())

    def calls_of_a_pass(B):
        net.provide_external_data(batch_for(1, B))
        net.forward_pass(training_pass=True)
        net.backward_pass()
        with net.alone():
            known = enumerate(net.handler.memo._known())
            return {(n, key): id(calls) for n, found in known for key, calls in found.items()}

    calls_of_a_pass(8)  # while the workspace grows, calls that hold the previous one are evicted
    first = calls_of_a_pass(8)
    assert len(first) > 3 * len(layers)
    assert calls_of_a_pass(8) == first
    assert len(calls_of_a_pass(7)) < 1.5 * len(first)


# -- op-trees ----------------------------------------------------------------------------------


def run(handler, tree, *arrays):
    program = linearise(tree)
    out = np.zeros(tree.shape, np.float32)
    for _ in range(2):
        handler.run_program(program, arrays, [out], [False])
    return out, program


@needs_compiler
@pytest.mark.parametrize("in_network", [False, True])
def test_formulas_that_numpy_runs_although_there_is_a_compiler_are_named(in_network):
    handler, x, a = NativeHandler(seed=1), Variable((5, 5), np.int32), np.ones((5, 5), np.int32)
    handler.running.lane = handler.new_lane() if in_network else None
    out, program = run(handler, fn.dot(x, x), a)
    (call,) = traced(handler, lambda: handler.run_program(program, [a], [out], [False]))
    assert not isinstance(call, Call)
    handler.running.lane = None
    assert "; others on numpy (op-tree: there is no exact 'dot' of" in handler.info()["op-trees"]


# -- memory ------------------------------------------------------------------------------------


def no_memory(*arguments, **options):
    raise MemoryError("on purpose")


def test_without_memory_an_operation_says_so_and_works_later(native, monkeypatch):
    x, w = np.ones((8, 12, 12, 16), np.float32), np.ones((16, 3, 3, 16), np.float32)
    out, bias = np.zeros((8, 10, 10, 16), np.float32), np.zeros(16, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(native.lane, "allocate", no_memory)
        with pytest.raises(OutOfMemoryError, match=r"^conv2d_forward_batch: there is no memory "):
            native.conv2d_forward_batch(x, w, bias, out, 0, (1, 1))
    native.conv2d_forward_batch(x, w, bias, out, 0, (1, 1))
    np.testing.assert_array_equal(out, np.full(out.shape, 144))


@needs_compiler
def test_without_memory_between_the_stages_of_a_formula(native, monkeypatch):
    x, out = np.ones((4, 5), np.float32), np.zeros((4, 5), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(bound_program.BoundProgram, "__init__", no_memory)
        with pytest.raises(OutOfMemoryError, match=r"^softmax_m: there is no memory .* smaller"):
            native.softmax_m(x, out)
    native.softmax_m(x, out)
    np.testing.assert_allclose(out, 0.2, 1e-6)


def test_numpy_without_memory(monkeypatch):
    handler, x = NumpyHandler(seed=1), np.ones((3, 3), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(np, "matmul", no_memory)
        with pytest.raises(OutOfMemoryError, match="^dot_mm: .*on purpose"):
            handler.dot_mm(x, x, np.zeros_like(x))
    handler.dot_mm(x, x, np.zeros_like(x))


def test_what_must_not_be_written_is_refused(native):
    ones, read_only = native.ones((3,)), np.ones(3, np.float32)
    mapped = native.ones((3, 3))
    native.mult_st(2.0, read_only, read_only)  # the calls that are remembered are of this place
    native.dot_mm(ones.reshape(1, 3), mapped, read_only.reshape(1, 3))
    expected = read_only.copy()
    read_only.flags.writeable = False
    text = "expected arrays that can be written, got a read-only one of shape"
    for write in (
        lambda: native.mult_st(2.0, ones, read_only),
        lambda: native.mult_st(2.0, read_only, read_only),
        lambda: native.fill(read_only, 1.0),
        lambda: native.clear([read_only]),
        lambda: native.copy_to(ones, read_only),
        lambda: native.dot_mm(ones.reshape(1, 3), mapped, read_only.reshape(1, 3)),
        lambda: native.fill(np.broadcast_to(ones[:1], (3,)), 2.0),
    ):
        with pytest.raises(HandlerValidationError, match=text):
            write()
    np.testing.assert_array_equal(read_only, expected)
    native.mult_st(2.0, read_only, ones)
    np.testing.assert_array_equal(ones, 2 * expected)


def test_zeros_of_either_sign_are_two_numbers(native):
    out = native.zeros((3,))
    for zero in (0.0, -0.0, 0.0):
        native.fill(out, zero)
        assert np.signbit(out).all() == np.signbit(zero)
