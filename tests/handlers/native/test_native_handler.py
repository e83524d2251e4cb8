"""The NativeHandler as a whole: laws, op-trees, plans, threads and processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import NumpyHandler, compiler
from brainstorm.handlers.native import NativeHandler, elementwise
from brainstorm.handlers.plan import Operation, Plan
from brainstorm.optree import Variable, linearise
from brainstorm.optree import functions as fn
from brainstorm.testing import HANDLER_LAWS, check_handler

needs_compiler = pytest.mark.skipif(
    compiler.compiler_command() is None, reason="NO C COMPILER: ITS USE IS NOT TESTED"
)


@pytest.mark.parametrize("law", HANDLER_LAWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_it_satisfies_every_law(law, dtype):
    check_handler(NativeHandler(dtype, seed=1), laws=[law])


@pytest.mark.parametrize("law", HANDLER_LAWS)
def test_it_does_without_library_and_compiler(without, monkeypatch, tmp_path, law):
    monkeypatch.setenv("CC", "no-such-compiler-here")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))
    check_handler(without, laws=[law])


def test_info(native, monkeypatch):
    info = native.info()
    assert info["products"] == info["convolutions"] == str(native._library)
    assert info["pooling"].startswith("C, compiled by ")
    assert info["threads"] == str(native.threads)
    assert "(oneDNN has no float64)" in NativeHandler(np.float64, seed=1).info()["products"]
    monkeypatch.setenv("CC", "no-such-compiler-here")
    assert native.info()["op-trees"] == (
        "numpy (no C compiler was found: CC is 'no-such-compiler-here')"
    )


def test_description():
    description = NativeHandler(np.float64, seed=1).__describe__()
    assert description == {"@type": "NativeHandler", "dtype": "float64"}
    assert NativeHandler.__new_from_description__(description).dtype == np.float64


@pytest.mark.parametrize("threads", [0, -1, 1.5, "two"])
def test_threads_that_are_no_number(threads):
    with pytest.raises(HandlerValidationError, match="expected a positive integer or None, got "):
        NativeHandler(threads=threads)


def test_wrong_arguments_are_python_errors(native):
    a = np.ones((2, 2), np.float32)
    with pytest.raises(TypeError, match="missing a required argument: 'out'"):
        native.dot_mm(a, a)
    with pytest.raises(TypeError, match="unexpected keyword argument 'transpose'"):
        native.dot_mm(a, a, a, transpose=True)
    with pytest.raises(TypeError, match="too many positional arguments"):
        native.dot_mm(a, a, a, False, False, "more")


def f(*shape):
    return np.ones(shape, np.float32)


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
        (
            "maxpool2d_forward_batch",
            (f(1, 4, 4, 1), (2, 2), f(1, 3, 3, 1), 0, (2, 2), f(1, 3, 3, 1)),
        ),
        ("conv2d_forward_batch", (f(1, 4, 4, 1), f(2, 2, 2, 1), f(1), f(1, 3, 3, 2), 0, (1, 1))),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_shapes_that_do_not_fit_never_reach_native_code(native, name, arguments):
    parameters = native.operations()[name].signature.parameters
    given = dict(zip(parameters, arguments, strict=False))
    assert native._calls_for(name, given) is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda h: pickle.loads(pickle.dumps(h))])
def test_copies_have_memory_of_their_own(native, copied):
    a, out = np.full((9, 9), 2, np.float32), np.zeros((9, 9), np.float32)
    native.dot_mm(a, a, out)
    other = copied(native)
    assert other._memory is not native._memory
    assert other._library is native._library
    other.dot_add_mm(a, a, out)
    other.act_func["tanh"](out, out)
    np.testing.assert_array_equal(out, np.ones((9, 9)))


def test_lookups_do_not_keep_arrays(native):
    arrays = [np.ones((9, 9), np.float32) for _ in range(3)]
    native.dot_mm(*arrays)
    assert native._memory.calls.known
    gone = [weakref.ref(array) for array in arrays]
    del arrays
    assert [ref() for ref in gone] == [None] * 3
    assert not native._memory.calls.known


# -- op-trees ----------------------------------------------------------------------------------


def run(handler, tree, *arrays):
    program = linearise(tree, lower=True)
    out = np.zeros(tree.shape, np.float32)
    for _ in range(2):
        handler.run_program(program, arrays, [out], [False])
    return out, program


@needs_compiler
def test_op_trees_are_compiled_and_go_with_their_program():
    handler, x = NativeHandler(seed=1), Variable((50,))
    out, program = run(handler, fn.tanh(x) * 2, np.ones(50, np.float32))
    np.testing.assert_allclose(out, 2 * np.tanh(np.ones(50)), 1e-6)
    assert len(handler._executors) == 1
    del program
    assert not handler._executors


@pytest.mark.parametrize("compiler_there", [False, pytest.param(True, marks=needs_compiler)])
def test_op_trees_that_numpy_runs(monkeypatch, tmp_path, compiler_there):
    handler, x, y = NativeHandler(seed=1), Variable((5, 5)), Variable((5, 5))
    tree = fn.dot(x, y)  # products are not rendered
    if not compiler_there:
        monkeypatch.setenv("CC", "no-such-compiler-here")
        monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))
        tree = x - y * 17.25
    a, b = np.full((2, 5, 5), 3, np.float32)
    out, program = run(handler, tree, a, b)
    np.testing.assert_allclose(out, a @ b if compiler_there else a - b * 17.25)
    assert handler._executors[id(program)][1] is None
    arguments = {"program": program, "inputs": [a, b], "outputs": [out], "accumulate": [False]}
    assert handler._calls_for("run_program", arguments) is None
    if compiler_there:
        assert "; others on numpy (" in handler.info()["op-trees"]


# -- plans ---------------------------------------------------------------------------------------


def operations(rng):
    """A chain of operations of every kind, and the array at its end."""
    x, w, b, y = (rng.standard_normal(s, np.float32) for s in ((8, 4), (6, 4), (6,), (8, 6)))
    z, norms = np.zeros((8, 6), np.float32), np.zeros((8, 1), np.float32)
    v = Variable((8, 6))
    program = linearise(fn.tanh(v) + v)
    recorded = [
        ("affine_mm", {"a": x, "b": w, "bias": b, "out": y, "activation": "tanh"}),
        ("pack_m", {"b": w, "transb": True}),
        ("dot_add_packed", {"a": x, "b": w, "out": y, "transb": True}),
        (
            "run_program",
            {"program": program, "inputs": [y], "outputs": [z], "accumulate": [False]},
        ),
        ("argmax_m", {"m": z, "out": norms}),
        ("dot_mm", {"a": z, "b": w, "out": x}),
    ]
    return [Operation(name, arguments) for name, arguments in recorded], x


def test_a_plan_does_the_same_bits_as_its_operations(native):
    first, x = operations(np.random.default_rng(0))
    plan = Plan(native, first)
    second, y = operations(np.random.default_rng(0))
    for _ in range(5):
        plan.replay()
        for operation in second:
            operation.bound_to(native)()
        np.testing.assert_array_equal(x, y)


@needs_compiler
def test_a_plan_is_few_functions(native, counted):
    recorded, _ = operations(np.random.default_rng(0))
    plan = Plan(native, recorded)
    assert len(plan.calls) == 1
    counted.clear()
    plan.replay()
    assert counted == []


@needs_compiler
def test_a_plan_keeps_its_numbers(monkeypatch):
    monkeypatch.setattr(elementwise, "MOST_NUMBERS", 2)
    handler, x = NativeHandler(seed=1), np.ones(3, np.float32)
    plan = Plan(handler, [Operation("mult_st", {"s": 0.25, "t": x, "out": x})])
    number = weakref.ref(handler._numbers[0.25])
    for value in (1.5, 2.5, 3.5):
        handler.add_st(value, x, np.zeros_like(x))
    assert 0.25 not in handler._numbers
    assert number() is not None
    plan.replay()
    np.testing.assert_array_equal(x, np.full(3, 0.25))
    del plan
    assert number() is None


def test_a_plan_without_anything_native(without, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler-here")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))
    recorded, x = operations(np.random.default_rng(0))
    Plan(without, recorded).replay()
    again, y = operations(np.random.default_rng(0))
    Plan(NumpyHandler(seed=1), again).replay()
    np.testing.assert_allclose(x, y, 1e-5, 1e-5)


# -- threads and processes ---------------------------------------------------------------------


def work(handler, seed, wrong):
    rng = np.random.default_rng(seed)
    for size in (30, 300, 80):
        a, b = (rng.standard_normal((size, size), np.float32) for _ in range(2))
        out = np.zeros((size, size), np.float32)
        for _ in range(20):
            handler.dot_mm(a, b, out, transb=True)
            if not np.allclose(out, a @ b.T, 1e-3, 1e-3):
                wrong.append(size)


def test_python_threads(native):
    wrong = []
    threads = [threading.Thread(target=work, args=(native, seed, wrong)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_every_handler_has_its_number_of_threads(native):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((500, 500), np.float32) for _ in range(2))
    count = native._library._library.omp_get_max_threads
    out = np.zeros((500, 500), np.float32)
    for threads in (1, 2, 1):
        NativeHandler(threads=threads, seed=1).dot_mm(a, b, out)
        assert count() == threads
    native.dot_mm(a, b, out)
    assert count() == native.threads


def _in_child(handler, plan, arrays, pickled, results):
    x, y, out = arrays
    pickle.loads(pickled).dot_mm(x, y, out)
    handler.dot_mm(x, y, out)
    NativeHandler(threads=2, seed=1).dot_add_mm(x, y, out)
    plan.replay()
    results.put((handler.threads, float(out[0, 0])))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uses_one_thread(native):
    handler = NativeHandler(threads=2, seed=1)
    arrays = [np.ones((600, 600), np.float32) for _ in range(3)]
    arguments = dict(zip(("a", "b", "out"), arrays, strict=True))
    plan = Plan(handler, [Operation("dot_add_mm", arguments)])
    handler.dot_mm(*arrays)
    plan.replay()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    given = (handler, plan, arrays, pickle.dumps(handler), results)
    child = context.Process(target=_in_child, args=given, daemon=True)
    child.start()
    assert results.get(timeout=20) == (1, 1800.0)
    child.join()
    assert handler.threads == 2


ONE_POOL = """
import numpy as np
from brainstorm.handlers.native import NativeHandler
from brainstorm.optree import Variable, linearise
handler, x = NativeHandler(threads=2, seed=1), Variable((1000, 1000))
a = np.ones((1000, 1000), np.float32)
out = np.zeros_like(a)
handler.dot_mm(a, a, out)
handler.run_program(linearise(x + 1), [a], [out], [False])
assert out[0, 0] == 2
files = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1]}
print(*files)
"""


@needs_compiler
def test_library_and_kernels_have_one_pool_of_threads(native):
    done = subprocess.run([sys.executable, "-c", ONE_POOL], capture_output=True, text=True)
    assert done.stderr == ""
    assert len(done.stdout.split()) == 1
    assert "libgomp" in done.stdout
