"""Op-trees as kernels of C and of CUDA, which have the properties of those on NumPy."""

from unittest import mock

import numpy as np
import pytest

from brainstorm.backend import Backend
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import NativeHandler, NumpyHandler, PyCudaHandler, compiler
from brainstorm.handlers.pycuda import modules, structures
from brainstorm.optree import OPERATORS, Variable, evaluate, gradients, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS
from brainstorm.optree.nodes import build
from tests import cudashim
from tests.handlers.running import LAYOUTS, needs_compiler, on, strided
from tests.optree import integer_reductions, operation_cases
from tests.optree.test_random_trees import grown

C = pytest.param("C", marks=needs_compiler)


ALL = [C, "CUDA", "CUDA, 64 bits"]


@pytest.fixture(params=ALL)
def handler(request, monkeypatch):
    if request.param == "NumPy":
        return NumpyHandler(np.float32, seed=1)
    if request.param == "C":
        return NativeHandler(threads=2, seed=1)
    if missing := cudashim.available():
        pytest.skip(missing)
    if request.param == "CUDA, 64 bits":
        monkeypatch.setattr(structures, "MANY", 10)  # as if arrays were larger than that
    return PyCudaHandler(seed=1)


@pytest.fixture
def execute(handler):
    """A function of a program, arrays of the host, whether it adds, and what draws layouts."""

    def run(program, inputs, outputs, accumulate=False, rnd=None):
        places = {}
        for array in (*inputs, *outputs):
            layout = "plain" if rnd is None else rnd.choice(list(LAYOUTS))
            places[id(array)] = strided(array, layout, handler.create_from_numpy)
        given, written = ([places[id(a)] for a in arrays] for arrays in (inputs, outputs))
        adds = accumulate if isinstance(accumulate, list) else [accumulate] * len(outputs)
        handler.run_program(program, given, written, adds)
        for array, place in zip(outputs, written, strict=True):
            array[...] = handler.get_numpy_copy(place)
        assert not getattr(handler, "_refusals", [])  # nothing was left to NumPy

    return run


@pytest.fixture
def compute(execute):
    """A function of trees and values of the variables, which returns the values of the trees.

    Given are also the dtypes of results, and what `execute` takes; results that are added to are
    ones before.
    """

    def run(trees, bindings, dtypes=None, accumulate=False, rnd=None):
        program = linearise(trees)
        types = dtypes or [tree.dtype for tree in trees]
        outputs = [np.ones(tree.shape, dtype) for tree, dtype in zip(trees, types, strict=True)]
        execute(program, [bindings[v] for v in program.inputs], outputs, accumulate, rnd)
        return outputs

    return run


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_random_trees_and_their_gradients(first, compute):
    """Five trees, and the gradients of one, are one program; arrays lie in memory in any way."""
    rnd, bindings, trees = np.random.RandomState(first), {}, []
    for seed in range(first, first + 5):
        tree, _, values = grown(seed, np.float32 if seed % 2 else np.float64)
        bindings |= values
        nodes = tree.traverse()
        trees += [tree, nodes[len(nodes) // 2]]
    trees += gradients(tree, list(values))
    expected = evaluate(trees, bindings)
    adds = (rnd.rand(len(trees)) < (0.5 if first else 0)).tolist()
    for _ in range(2):  # in new memory, and in the same
        found = compute(trees, bindings, accumulate=adds, rnd=rnd)
        for out, value, add in zip(found, expected, adds, strict=True):
            limit = 2e-4 if value.dtype == np.float32 else 1e-9
            np.testing.assert_allclose(out, value + add, limit, limit)


SPECIAL = [
    *(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 1e30, -1e30, 3e38, -3e38),
    *(88.0, 100.0, -100.0, 0.5, 2.5, -3.5),
]
ELEMENTWISE = [name for name, row in OPERATORS.items() if row.is_elementwise and row.c]


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_elementwise_operator_and_special_numbers(dtype, compute, rng):
    """One kernel for the whole table."""
    special = np.meshgrid(*[np.array(SPECIAL, dtype)] * 3)
    more = rng.uniform(-3, 3, (3, 300)).astype(dtype)
    arrays = [np.concatenate([v.ravel(), m]) for v, m in zip(special, more, strict=True)]
    xs = [Variable(arrays[0].shape, dtype, name=n) for n in "abc"]
    bindings = dict(zip(xs, arrays, strict=True))
    trees = [build(name, tuple(xs[: OPERATORS[name].arity])) for name in ELEMENTWISE]
    found, limit = compute(trees, bindings), 2e-6 if dtype == np.float32 else 1e-13
    for name, out, expected in zip(ELEMENTWISE, found, evaluate(trees, bindings), strict=True):
        near_zero = limit if "gamma" in name else 1e-37
        np.testing.assert_allclose(out, expected, limit, near_zero, err_msg=name)


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize("name", [n for n, row in OPERATORS.items() if row.kind == "reduction"])
def test_reductions(name, compute, rng):
    shapes = [(3, 700), (700, 3), (40_000,), (3, 5, 4, 2, 3), (5, 40, 33), (4, 1), (1, 1)]
    arrays = [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]
    arrays[0][1, 300], arrays[0][2, 5] = np.nan, -np.inf
    arrays += [array.astype(np.float64) for array in arrays[:2]]
    arrays += [rng.choice(SPECIAL, 40).astype(np.float32), np.full((4, 9), -np.inf, np.float32)]
    arrays += [np.round(rng.uniform(-2, 2, (9, 9))).astype(np.float32)]
    bindings = {Variable(a.shape, a.dtype): a for a in arrays}
    trees = [
        build(name, (x,), {"axis": axis, "keepdims": bool(k % 2)})
        for x in bindings
        for k, axis in enumerate([None, 0, -1] + [(0, 2), (1, 3), (1, 2, 4)] * (x.ndim == 5))
    ]
    found = compute(trees, bindings, rnd=np.random.RandomState(1))
    for out, expected in zip(found, evaluate(trees, bindings), strict=True):
        np.testing.assert_allclose(out, expected, 2e-5, 2e-5)


def elementwise_trees(x, y, z):
    """Return {name: tree} for all that works element by element, also what is lowered."""
    found = {
        name: build(name, (x, y, z)[: row.arity])
        for name, row in OPERATORS.items()
        if row.is_elementwise
    }
    found |= {f"activation {name}": row(x) for name, row in ACTIVATIONS.items()}
    found |= {f"x ** {exponent}": x**exponent for exponent in (-1, 0.5, 1, 2, 3)}
    found |= {"clip": fn.clip(x, -1.0, 1.0), "clip by trees": fn.clip(x, y, z)}
    for limit in (-1.0, 0.0, 2.0):
        found[f"maximum {limit}"] = fn.maximum(limit, x) + fn.maximum(x, limit)
        found[f"minimum {limit}"] = fn.minimum(limit, x) + fn.minimum(x, limit)
    return found


#: What is a number although an operand is NaN; and what is NaN for all numbers below 1.
ANSWERS = {name for name, row in OPERATORS.items() if row.kind == "comparison"} | {"arccosh"}


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [1, 7, 16, 37])  # less than a vector, whole ones, with a rest
def test_nan_goes_in_and_comes_out(length, dtype, compute, rng):
    variables = [Variable((4, length), dtype, name) for name in "xyz"]
    values = [rng.uniform(0.1, 0.9, (4, length)).astype(dtype) for _ in variables]
    for row, array in enumerate(values):
        array[row, length // 2 :] = np.nan  # the last row has none
    bindings, trees = dict(zip(variables, values, strict=True)), elementwise_trees(*variables)
    found, expected = (f(list(trees.values()), bindings) for f in (compute, evaluate))
    for (name, tree), got, value in zip(trees.items(), found, expected, strict=True):
        np.testing.assert_allclose(got, value, 1e-5, 1e-6, err_msg=name)
        used = [x for x in variables if any(node is x for node in tree.traverse())]
        if name == "where":
            used = [variables[1]]  # a condition that is NaN is not 0
        if name not in ANSWERS:
            has_nan = np.any([np.isnan(bindings[x]) for x in used], axis=0)
            np.testing.assert_array_equal(np.isnan(got), has_nan, err_msg=name)


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
def test_an_index_beyond_what_float32_counts_is_exact(compute):
    x = Variable((2**24 + 5,), np.int8)
    a = np.zeros(x.shape, x.dtype)
    a[-2], a[-4] = 1, -1
    dtypes = [np.int32, np.int64, np.uint32, np.float64]
    found = compute([fn.argmax(x)] * 4 + [fn.argmin(x)] * 4, {x: a}, dtypes * 2)
    assert [int(out[0]) for out in found] == [2**24 + 3] * 4 + [2**24 + 1] * 4


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize("dtype", integer_reductions.DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((9, 700), (1,)), ((700, 9), (0,)), ((30_001, 10), (0,)), ((2, 150_000), (1,)),
     ((300_001,), None), ((5, 3, 9, 2), (0, 2))],
)  # fmt: skip
def test_reductions_of_integers_are_those_of_numpy(dtype, shape, axis, compute, rng):
    """In every way that threads share a reduction."""
    values = integer_reductions.mostly_highest(rng, shape, dtype)
    integer_reductions.check(values, axis, compute)


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_products_of_unsigned_integers_have_64_bits_and_no_sign(bits, compute):
    highest = np.full(64 // bits, 2**bits - 1, f"uint{bits}")
    integer_reductions.check(highest, None, compute)


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
def test_integers_are_exact_between_loops_and_in_place(execute, compute):
    x, a = Variable((2, 2), np.int64), np.array([[2**40 + 1, 3], [5, 2**40 + 6]])
    joined = fn.concatenate([fn.min(x, 0), fn.max(x, 0)], 0)
    trees = [fn.max(fn.max(x, 0)), fn.min(fn.sum(x, 0)), fn.argmax(fn.sum(x, 0)), joined]
    *found, found_joined = compute(trees, {x: a}, [np.int64] * 4)
    assert [int(out[0, 0]) for out in found] == [2**40 + 6, 2**40 + 6, 1]
    np.testing.assert_array_equal(found_joined, [[5, 3], [2**40 + 1, 2**40 + 6]])
    transposed = a.T.copy()
    execute(linearise(x.T), [a], [a])
    np.testing.assert_array_equal(a, transposed)


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
def test_integers_are_exact_in_arrays_of_the_other_sign(execute):
    x, out = Variable((2,), np.int64), np.array([1, 1], np.uint64)
    execute(linearise(x), [np.array([2**62, -1])], [out], True)
    np.testing.assert_array_equal(out, np.array([2**62 + 1, 0], np.uint64))


@pytest.mark.parametrize("handler", ["NumPy", *ALL], indirect=True)
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("given", [np.float32, np.int8])
def test_a_sum_in_an_integer_array_is_converted_and_not_what_is_added(dtype, given, execute, rng):
    x = Variable((4, 40), given)
    values = (rng.integers(-9, 9, x.shape) / (2 if given == np.float32 else 1)).astype(given)
    old = rng.integers(0, 9, x.shape).astype(dtype)
    program, (found, sums) = linearise([x, fn.sum(x, 1)]), (old.copy(), old[:, :1].copy())
    execute(program, [values], [found, sums], True)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, (old + values).astype(dtype))
        total = values.sum(1, keepdims=True, dtype=np.float64)
        np.testing.assert_array_equal(sums, (old[:, :1] + total).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_arrive_rounded_to_the_type_of_the_loop(dtype, compute):
    a = np.array([-1.5, 0.0, 3.0, np.nan, np.inf], dtype)
    x = Variable(a.shape, dtype)
    for value in (0.1, -0.0, 7, 1e-320, 1e300, -1e300, np.inf, -np.inf, np.nan, 16777217.0):
        trees = [x + value, fn.maximum(value, x), fn.full((5,), value, dtype)]
        trees += [fn.where(x, value, 9), fn.sum(fn.where(x > 5, 0.0, x * 0.3 + value) * 0.5)]
        for got, expected in zip(compute(trees, {x: a}), evaluate(trees, {x: a}), strict=True):
            np.testing.assert_allclose(got, expected, 1e-6, 1e-6)


@pytest.mark.parametrize("name", operation_cases.CASES)
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_and_indexing_stand_between_loops(name, accumulate, compute, rng):
    trees, bindings = operation_cases.CASES[name](rng)
    found = compute(trees, bindings, None, accumulate, np.random.RandomState(1))
    for got, expected in zip(found, evaluate(trees, bindings), strict=True):
        np.testing.assert_allclose(got, expected + accumulate, 2e-5, 2e-5)


@pytest.mark.parametrize("name", operation_cases.IN_PLACE)
def test_products_and_indexing_into_what_they_read(name, execute, rng):
    x, function = Variable((6, 6)), operation_cases.IN_PLACE[name]
    a = rng.normal(size=(6, 6)).astype(np.float32)
    (expected,) = evaluate(function(x), {x: a})
    execute(linearise(function(x)), [a], [a])
    np.testing.assert_allclose(a, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize(("what", "read", "written"), [("inputs", 4, 3), ("outputs", 3, 4)])
def test_shapes_that_do_not_fit(what, read, written, handler):
    text, program = rf"{what} of shapes \[\(3,\)\], got \[\(4,\)\]", linearise(Variable(3) + 1)
    with pytest.raises(HandlerValidationError, match=text):
        handler.run_program(program, [handler.ones(read)], [handler.ones(written)], [False])


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize("shift", [0, 1, 3])
def test_outputs_that_overlap_inputs_are_written_last(shift, handler):
    x, y = Variable((3000,)), Variable((3000,))
    values = np.arange(3000.0 + shift), np.ones(3000 + shift)
    a, b = (on(handler, each) for each in values)
    expected = values[0][:3000] * 2 + 1, values[0][:3000] - 1
    program, apart = linearise([x * 2 + y, x - y]), [handler.zeros(3000) for _ in range(2)]
    for outputs in (apart, [a[shift:], b[shift:]]):
        handler.run_program(program, [a[:3000], b[:3000]], outputs, [False, False])
        found = [handler.get_numpy_copy(out) for out in outputs]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
def test_an_output_may_move_over_what_is_read_of_an_input(handler):
    x, memory = Variable((4,)), on(handler, np.zeros(4))
    program = linearise(x[:2] * 2)
    for start in (2, 1, 0):
        handler.set_from_numpy(memory, np.arange(4, dtype=np.float32))
        out = memory[start : start + 2]
        handler.run_program(program, [memory], [out], [False])
        np.testing.assert_array_equal(handler.get_numpy_copy(out), [0, 2])


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
@pytest.mark.parametrize("count", [1, 21])  # on a GPU threads cannot share more than some
def test_sums_of_many_numbers_are_accurate(count, compute):
    x = Variable((3_000_000,))
    a = np.full(x.shape, 0.1, np.float32)
    columns = [fn.sum(fn.reshape(x, (300_000, 10)), 0)]
    *found, tenths = compute([fn.sum(x + float(k)) for k in range(count)] + columns, {x: a})
    exact = [float(np.float32(a[0] + np.float32(k))) * a.size for k in range(count)]
    np.testing.assert_allclose(np.ravel(found), exact, 1e-6)
    np.testing.assert_allclose(tenths, exact[0] / 10, 1e-6)


@pytest.mark.parametrize("handler", [C, "CUDA"], indirect=True)
def test_other_numbers_are_no_other_kernel(handler, tmp_path, monkeypatch):
    """A user's loop of assignments, each with its own learning rate."""
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_known", {})
    owner, name = (compiler, "_build") if type(handler) is NativeHandler else (modules, "_cached")
    monkeypatch.setattr(owner, name, compilations := mock.Mock(wraps=getattr(owner, name)))
    backend = Backend(handler)
    p, g = backend.ones((7, 5)), backend.ones((7, 5))
    rates = np.linspace(0.001, 0.7, 50)
    for rate in rates:
        p[:] = fn.minimum(p - rate * g, 12345.0 + rate)
        if rate == rates[0]:
            count, files = compilations.call_count, set(tmp_path.iterdir())
    np.testing.assert_allclose(p.get(), 1 - rates.sum(), 1e-5)
    assert compilations.call_count == count > 0
    assert set(tmp_path.iterdir()) == files
