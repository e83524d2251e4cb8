"""What all handlers have in common: properties, checks, descriptions, copies, seeds, threads."""

import copy
import gc
import pickle
import re
import weakref

import numpy as np
import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler, PyCudaHandler
from brainstorm.handlers.base_images import ImageOperations
from brainstorm.optree import Variable, formula, linearise
from brainstorm.optree import functions as fn
from brainstorm.randomness import global_rnd
from brainstorm.testing import HANDLER_PROPERTIES, check_handler, handler_harness
from brainstorm.testing.handler_arguments import Invocation
from tests import cudashim
from tests.handlers.running import in_threads, needs_compiler, on


@pytest.mark.parametrize("kind", [NativeHandler, PyCudaHandler], indirect=True)
@pytest.mark.parametrize("property", HANDLER_PROPERTIES)
def test_compiled_handlers_have_every_property_and_compile_all_formulas(
    kind, property, monkeypatch
):
    if property != "results equal the reference":  # each example is compiled
        monkeypatch.setattr(handler_harness, "EXAMPLES", 6)
    handler = kind(seed=1)
    check_handler(handler, properties=[property])
    assert "others on numpy" not in handler.info()["op-trees"]


@pytest.mark.parametrize("kind", [NumpyHandler, NativeHandler], indirect=True)
def test_strides_need_not_be_whole_elements(kind, monkeypatch):
    monkeypatch.setattr(handler_harness, "EXAMPLES", 2)
    harness = handler_harness.HandlerHarness(kind(seed=1), None, 0)
    for arguments in harness.examples():
        if arguments.contract.name in vars(ImageOperations):  # always contiguous
            continue
        call, records = Invocation(harness.handler, arguments), []
        for name in (argument.name for argument in call.read + call.written):
            records.append(np.zeros(call.values[name].shape, "i1, f4"))
            records[-1]["f1"] = call.values[name]
            call.values[name] = records[-1]["f1"]
        harness.check_results(call, arguments, arguments.expected())
        assert not any(record["f0"].any() for record in records)


def test_batches_may_be_empty(kind):
    handler = kind(seed=1)
    x, w, b, y = (handler.ones(s) for s in ((0, 4, 4, 2), (3, 2, 2, 2), (3,), (0, 3, 3, 3)))
    handler.conv2d_forward_batch(x, w, b, y, 0, (1, 1))
    dw, db = handler.ones(w.shape), handler.ones(b.shape)
    handler.conv2d_backward_batch(x, w, 0, (1, 1), x, y, dw, db)
    assert not any(handler.get_numpy_copy(array).any() for array in (dw, db))
    out, where = handler.ones((0, 2, 2, 2)), handler.ones((0, 2, 2, 2))
    handler.maxpool2d_forward_batch(x, (2, 2), out, 0, (2, 2), where)
    handler.maxpool2d_backward_batch(x, (2, 2), out, 0, (2, 2), where, x, out)
    handler.avgpool2d_forward_batch(x, (2, 2), out, 0, (2, 2))
    handler.avgpool2d_backward_batch(x, (2, 2), out, 0, (2, 2), x, out)
    rows, numbers, table = handler.ones((0, 2)), handler.ones((0, 1)), handler.ones((5, 2))
    handler.take_rows_mv(table, numbers, rows)
    handler.add_rows_mv(rows, numbers, table)
    scores, labels, losses = (handler.ones(s) for s in ((3, 0, 4), (3, 0, 1), (0, 1)))
    handler.ctc_loss(scores, labels, None, losses, handler.ones((3, 0, 4)))
    handler.fill_gaussian(0.0, 1.0, rows)
    handler.affine_mm(rows, table, handler.ones((5,)), handler.ones((0, 5)), "rel")
    np.testing.assert_array_equal(handler.get_numpy_copy(table), np.ones((5, 2)))


def test_of_nan_the_first_is_the_largest(kind):
    handler, values = kind(seed=1), np.zeros((1, 4, 4, 1))
    values[0, 1, :2], values[0, 3, 3] = np.nan, -np.inf
    out, argmax = (handler.zeros((1, 2, 2, 1)) for _ in range(2))
    handler.maxpool2d_forward_batch(on(handler, values), (2, 2), out, 0, (2, 2), argmax)
    found = [handler.get_numpy_copy(array).ravel() for array in (out, argmax)]
    np.testing.assert_array_equal(found, [[np.nan, 0, 0, 0], [4, 2, 8, 10]])


@pytest.mark.parametrize("transb", [False, True])
def test_repeated_products_are_added(handler, rng, transb):
    b, out = rng.normal(size=(3, 4)), rng.normal(size=(2, 4))
    factors, result = rng.normal(size=(3, 2, 3)), on(handler, out)
    product = handler.repeated_dot_add(on(handler, b.T if transb else b), transb=transb)
    for a in factors:
        product(on(handler, a), result)
    expected = out + factors.sum(axis=0) @ b
    np.testing.assert_allclose(handler.get_numpy_copy(result), expected, rtol=1e-4, atol=1e-5)


def test_each_can_be_checked(kind):
    debug = DebugHandler(kind(seed=1))
    a, b, out = (debug.zeros(shape) for shape in ((2, 3), (4, 5), (2, 5)))
    for multiply in (debug.dot_mm, lambda a, b, out: debug.repeated_dot_add(b)(a, out)):
        with pytest.raises(HandlerValidationError, match=r"'b': expected shape \(K=3, N\), got"):
            multiply(a, b, out)
    with pytest.raises(HandlerValidationError, match="'t' holds NaN"):
        debug.add_st(1.0, on(debug, np.full((2, 3), np.nan)), a)


def pool_huge_images(handler):
    one, shape = handler.zeros(1), (1, 4097, 4096, 1)
    huge = one.broadcast_to(shape) if hasattr(one, "broadcast_to") else np.broadcast_to(one, shape)
    handler.maxpool2d_forward_batch(huge, (1, 1), huge, 0, (1, 1), huge)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda h: h.copy_to(h.zeros(3), h.zeros((2, 3))),
         "copy_to(src, dest): argument 'dest': expected shape (3,), that of src, got (2, 3)"),
        (lambda h: h.copy_to(h.zeros(2), h.create_from_numpy(np.zeros(2, np.int32))),
         "copy_to(src, dest): argument 'src': expected a dtype that fits into int32, got float32. "
         "Use set_from_numpy to cast."),
        (lambda h: h.set_from_numpy(h.zeros((2, 3)), np.zeros(3)),
         "set_from_numpy(mem, arr): argument 'arr': expected shape (2, 3), that of mem, got (3,)"),
        (lambda h: h.get_numpy_copy([1.0]),
         "'mem': expected an array of this handler, got list"),
        (lambda h: h.create_from_numpy([1.0]), "'arr': expected a NumPy array, got list"),
        (lambda h: h.compute(lambda x: x, [h.zeros(2)], [h.zeros(2)]),
         "expected a function with @formula, two lists of arrays, and a bool or a list of them, "
         "got function, list, list, bool."),
        (lambda h: h.compute(formula(lambda x: x), [h.zeros(2)], [h.zeros(2)], accumulate=None),
         "and a bool or a list of them, got Formula, list, list, NoneType."),
        (lambda h: h.compute(formula(lambda x: x), [h.zeros(2)], h.zeros(2)),
         "two lists of arrays, and a bool or a list of them, got Formula, list, "),
        (pool_huge_images,
         "maxpool2d_forward_batch: argument 'inputs': expected at most 2**24 elements per image"),
    ],
)  # fmt: skip
def test_mistakes_that_are_always_found(kind, call, text):
    with pytest.raises(HandlerValidationError, match=re.escape(text)):
        call(kind(seed=1))


def test_lists_among_the_arguments_may_change(kind):
    handler = kind(seed=1)
    x = on(handler, np.arange(16).reshape(1, 4, 4, 1))
    window, means = [2, 2], handler.zeros((1, 2, 2, 1))
    for size, expected in ((2, [2.5, 4.5, 10.5, 12.5]), (1, [0, 2, 8, 10])):
        window[:] = [size, size]
        handler.avgpool2d_forward_batch(x, window, means, 0, (2, 2))
        np.testing.assert_array_equal(handler.get_numpy_copy(means).ravel(), expected)


DESCRIPTIONS = {
    "numpy": (lambda: NumpyHandler(np.float32), {"@type": "NumpyHandler", "dtype": "float32"}),
    "native": (lambda: NativeHandler(np.float64), {"@type": "NativeHandler", "dtype": "float64"}),
    "pycuda": (lambda: PyCudaHandler(), {"@type": "PyCudaHandler"}),
    "pycuda bf16": (
        lambda: PyCudaHandler(compute="bf16"), {"@type": "PyCudaHandler", "compute": "bf16"}
    ),
    "debug": (
        lambda: DebugHandler(NumpyHandler(np.float64)),
        {"@type": "DebugHandler", "handler": {"@type": "NumpyHandler", "dtype": "float64"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("runs", [True, False])
def test_operations_with_a_result_are_no_part_of_a_trace(kind, runs):
    handler, arrays = kind(seed=1), []
    with handler.tracing(runs) as trace:
        arrays += [handler.zeros((2,)), handler.ones((2,)), handler.create_from_numpy(np.ones(2))]
        assert [handler.get_numpy_copy(array)[0] for array in arrays] == [0, 1, 1]
        assert handler.is_fully_finite(arrays[0])
    for array in arrays:
        handler.fill(array, 7)
    trace.replay()
    assert [handler.get_numpy_copy(array)[0] for array in arrays] == [7, 7, 7]
    assert {"allocate", "create_from_numpy", "get_numpy_copy"} <= {*trace.reads}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_descriptions_and_copies(name):
    if "pycuda" in name and (missing := cudashim.available()):
        pytest.skip(missing)
    make, description = DESCRIPTIONS[name]
    handler = make()
    assert get_description(handler) == description
    described, pickled = create_from_description(description), pickle.dumps(handler)
    for new in (described, copy.deepcopy(handler), pickle.loads(pickled)):
        assert type(new) is type(handler)
        assert new.info() == handler.info()
        x = new.ones((2, 2))
        with handler.tracing() as trace:  # which has nothing of what another handler does
            new.inplace_act_func["tanh"](x)
            new.act_func["tanh"](x, x)
        assert not trace.steps
        np.testing.assert_allclose(new.get_numpy_copy(x), np.tanh(np.tanh(1)), 1e-6)


@pytest.mark.parametrize("base", [NumpyHandler, NativeHandler])
def test_arguments_of_a_class_of_ones_own_are_described(base):
    class Scaling(base):
        def __init__(self, dtype=np.float32, factor=2.0, seed=None):
            super().__init__(dtype, seed=seed)
            self.factor = factor

    handler = Scaling(np.float64, 3.0)
    description = {"@type": "Scaling", "dtype": "float64", "factor": 3.0}
    assert get_description(handler) == description
    for new in (create_from_description(description), copy.deepcopy(handler)):
        assert (new.factor, new.dtype) == (3.0, np.float64)


def draw(handler, stream=None, mean=0.0, std=1.0):
    """Return nine random numbers."""
    out = handler.zeros(9)
    handler.fill_gaussian(mean, std, out, stream)
    return handler.get_numpy_copy(out)


def test_the_same_seed_gives_the_same_numbers_also_that_of_the_global_generator(kind):
    def draw_from(seed, is_global):
        if is_global:
            global_rnd.set_seed(seed)
        return draw(kind() if is_global else kind(seed=seed))

    for is_global in (False, True):
        np.testing.assert_array_equal(draw_from(3, is_global), draw_from(3, is_global))
        assert not np.array_equal(draw_from(3, is_global), draw_from(4, is_global))


def test_the_stream_of_a_handler_can_be_replaced(kind):
    handler = kind(seed=1)
    draw(handler)
    handler.stream = handler.create_random_stream(5)
    np.testing.assert_array_equal(draw(handler), draw(handler, handler.create_random_stream(5)))


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (1.0, 1.0)])
def test_certain_masks(handler, probability, expected):
    mask = handler.zeros((10, 10))
    handler.fill(mask, 0.5)
    handler.generate_probability_mask(mask, probability)
    assert np.all(handler.get_numpy_copy(mask) == expected)


def test_numbers_in_memory_are_parameters_too(handler):
    stream, two = handler.create_random_stream, handler.ones((1,))
    handler.fill(two, 2.0)
    found = [draw(handler, stream(1), number, number) for number in (two, 2.0)]
    np.testing.assert_array_equal(*found)


def test_a_view_gets_the_numbers_that_an_array_would_get(handler):
    wide, array = handler.zeros((4, 9)), handler.zeros((4, 3))
    handler.fill_gaussian(0.0, 1.0, wide[:, 2:5], handler.create_random_stream(1))
    handler.fill_gaussian(0.0, 1.0, array, handler.create_random_stream(1))
    result = handler.get_numpy_copy(wide)
    np.testing.assert_array_equal(result[:, 2:5], handler.get_numpy_copy(array))
    assert np.all(result[:, :2] == 0)


def test_copies_continue_the_random_stream(kind):
    handler = kind(seed=3)
    for new in (copy.deepcopy(handler), pickle.loads(pickle.dumps(handler))):
        stream = handler.create_random_stream(0)
        stream.set_state(handler.stream.get_state())
        np.testing.assert_array_equal(draw(handler, stream), draw(new))


def test_copies_keep_what_subclasses_and_users_set(kind):
    class Named(kind):
        def __init__(self, name):
            super().__init__(seed=1)
            self.name = name

    handler = Named("mine")
    handler.causal_rows = 7
    copied = copy.deepcopy(handler)
    assert (copied.name, copied.causal_rows) == ("mine", 7)


def test_arrays_have_the_byte_order_of_the_machine(kind):
    handler, values = kind(), np.arange(6, dtype=">f4")
    array = handler.create_from_numpy(values)
    handler.add_tt(array, array, array)
    assert array.dtype == np.float32
    np.testing.assert_array_equal(handler.get_numpy_copy(array), 2 * values)


@needs_compiler
@pytest.mark.parametrize("kind", [NativeHandler, PyCudaHandler], indirect=True)
def test_what_is_remembered_of_a_program_ends_with_it(kind):
    """Also its inputs, which may hold memory: those of a tree of the backend are tensors."""
    handler, program = kind(seed=1), linearise(fn.tanh(Variable((50,))) * 2)
    x, out = handler.ones(50), handler.zeros(50)
    before = len(handler.memo.executors)
    for _ in range(2):
        handler.run_program(program, [x], [out], [False])
    np.testing.assert_allclose(handler.get_numpy_copy(out), 2 * np.tanh(1), 1e-6)
    assert len(handler.memo.executors) == before + 1
    gone = [weakref.ref(each) for each in (handler.memo.executors[-1], *program.inputs)]
    del program
    gc.collect()
    assert len(handler.memo.executors) == before
    assert not any(ref() for ref in gone)


softmaxes = formula(lambda x: fn.softmax(x * 2.0 + fn.max(x, 0)))


@pytest.mark.parametrize("make", [NumpyHandler, lambda: NativeHandler(threads=1)])
def test_threads_do_not_share_memory(make):
    handler, is_right = make(), []

    def compute(handler, a, b):
        out = np.zeros((64, 64), np.float32)
        handler.dot_mm(a, b, out, transb=True)
        handler.mult_add_st(2.0, a, out)
        handler.compute(softmaxes, [out], [out])
        return out

    def work(number):
        for _ in range(100):
            found = compute(handler, *factors[number])
            is_right.append(np.array_equal(found, expected[number]))

    factors = np.random.RandomState(0).uniform(-1, 1, (3, 2, 64, 64)).astype(np.float32)
    expected = [compute(make(), *pair) for pair in factors]
    in_threads(work, range(3))
    assert is_right == [True] * 300
