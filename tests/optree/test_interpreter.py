"""Programs on NumPy: types, sums, NaN, and outputs that overlap what is read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.optree import OPERATORS, OpTreeNode, Variable, evaluate, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.interpreter import Interpreter
from brainstorm.optree.nodes import build
from tests.optree import integer_reductions

FLOATS = ["float16", "float32", "float64"]


def run(trees, bindings, outputs, accumulate=None):
    """Write the values of trees to outputs."""
    program = linearise(trees)
    inputs = [bindings[v] for v in program.inputs]
    Interpreter()(program, inputs, outputs, accumulate or [False] * len(outputs))


def into(trees, bindings, dtypes):
    """Return the values of trees in arrays of these types."""
    outputs = [np.zeros(tree.shape, dtype) for tree, dtype in zip(trees, dtypes, strict=True)]
    run(trees, bindings, outputs)
    return outputs


def computed(build, array, dtype):
    """Return the value of ``build(variable)`` as an array of a type."""
    x = Variable(array.shape, array.dtype)
    (found,) = into([build(x)], {x: array}, [dtype])
    return found


# -- types -----------------------------------------------------------------------------------


@settings(max_examples=50)
@given(integer_reductions.arrays())
def test_reductions_of_integers_are_those_of_numpy(case):
    integer_reductions.check(*case, into)


@pytest.mark.parametrize("right", ["bool", "int8", "uint8", "int64", "uint32", "float32"])
@pytest.mark.parametrize("left", ["bool", "int8", "int16", "uint8", "int64"])
def test_products_of_integers_do_not_overflow(left, right):
    a, b = np.full((3, 1000), 100).astype(left), np.full((1000, 2), 100).astype(right)
    x, y = Variable(a.shape, left), Variable(b.shape, right)
    (out,) = into([x @ y], {x: a, y: b}, [np.float64])
    np.testing.assert_array_equal(out, 1000.0 * int(a[0, 0]) * int(b[0, 0]))
    if right != "float32":
        large = np.array([[2**40 + 1]])
        x, y = Variable((1, 1), "int64"), Variable((1, 1), right)
        (out,) = into([x @ y], {x: large, y: b[:1, :1]}, [np.int64])
        assert out == (2**40 + 1) * int(b[0, 0])


def test_integers_that_are_only_moved_stay_exact():
    array = np.arange(2**60, 2**60 + 12).reshape(3, 4)
    moved = lambda x: fn.reshape(x.T[::-1], (2, 6))  # noqa: E731
    np.testing.assert_array_equal(computed(moved, array, np.int64), array.T[::-1].reshape(2, 6))
    assert computed(lambda x: fn.max(moved(x)), array, np.int64) == 2**60 + 11
    assert computed(lambda x: fn.argmax(moved(x)), array, np.int64) == 2
    joined = lambda x: fn.concatenate([x[1:], x[:1]], 0)  # noqa: E731
    np.testing.assert_array_equal(computed(joined, array, np.int64), np.roll(array, -1, 0))
    x, indices = Variable(array.shape, array.dtype), Variable((2,), np.int8)
    bindings = {x: array, indices: np.array([2, 0], np.int8)}
    (out,) = into([fn.take(x, indices)], bindings, [np.int64])
    np.testing.assert_array_equal(out, array[[2, 0]])


@pytest.mark.parametrize("dtype", integer_reductions.DTYPES + FLOATS)
def test_elements_are_computed_in_the_working_type(dtype):
    array = np.array([0, 1, 100]).astype(dtype)
    x = Variable(3, dtype)
    working = np.dtype(dtype if dtype in FLOATS else "float32")
    for y, wide in ((x, working), (x + Variable(3, np.float64), np.dtype("float64"))):
        assert (y * y).dtype == wide
    (found,) = evaluate(x * x + 0.5, {x: array})
    assert found.dtype == working
    np.testing.assert_array_equal(found, array.astype(working) ** 2 + working.type(0.5))


# -- sums ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((10**7,), None),
        ((10**6, 10), 0),
        ((10, 10**6), 1),
        ((10**4, 5, 200), (0, 2)),
    ],
)
def test_sums_of_many_numbers_are_exact_in_float32(shape, axis):
    array = np.broadcast_to(np.float32(0.1), shape)  # one number: repeated, it takes no memory
    found = computed(lambda x: fn.sum(x, axis, keepdims=False), array, np.float32)
    expected = float(np.float32(0.1)) * array.size / found.size
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_sums_within_other_operators_are_exact():
    array = np.broadcast_to(np.float32(-1), (10**7, 1))
    found = computed(lambda x: fn.logsumexp(x, 0), array, np.float32)
    np.testing.assert_allclose(found, [[np.log(10**7) - 1]], rtol=1e-6)


# -- NaN -------------------------------------------------------------------------------------


def _at(function, axis=1):
    return lambda x: function(x, axis=axis)


#: Operators that do not work element by element, and those that answer questions, in plain NumPy,
#: which says what becomes of NaN.
PLAIN = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "finite": np.isfinite, "isnan": np.isnan,
    "and": np.logical_and, "or": np.logical_or, "not": np.logical_not,
    "sum": _at(np.sum), "prod": _at(np.prod), "cumsum": _at(np.cumsum),
    "max": _at(np.max), "min": _at(np.min),
    "argmax": _at(np.argmax), "argmin": _at(np.argmin),
    "logsumexp": lambda x: np.log(np.exp(x).sum(1)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "log_softmax": lambda x: np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "cross_entropy_with_logits": lambda x, t: -(
        np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True)) * t
    ).sum(1),
    "dot": np.matmul,
    "transpose": np.transpose, "reshape": lambda x: x.reshape(9),
    "broadcast": lambda x: np.broadcast_to(x, (2, 3, 3)), "slice": lambda x: x[::2, 1:],
    "concatenate": lambda x, y: np.concatenate([x, y], 1),
    "take": lambda x, i: np.take(x, i, 0),
    "gather": lambda x, i: np.take_along_axis(x, i, 1),
}  # fmt: skip
OPTIONS = {
    **{
        name: {"axis": 1, "keepdims": False}
        for name in ("sum", "prod", "max", "min", "argmax", "argmin", "logsumexp")
    },
    "cross_entropy_with_logits": {"axis": 1, "keepdims": False},
    "softmax": {"axis": 1}, "log_softmax": {"axis": 1}, "concatenate": {"axis": 1},
    "cumsum": {"axis": 1},
    "reshape": {"shape": 9}, "broadcast": {"shape": (2, 3, 3)},
    "slice": {"start": (0, 1), "step": (2, 1), "length": (2, 2)},
    "take": {"axis": 0}, "gather": {"axis": 1},
    "put": {"axis": 0, "size": 4}, "scatter": {"axis": 1, "size": 4},
    "embed": {"start": (0, 1), "step": (2, 1), "size": (6, 5)},
    "onehot": {"axis": 1, "size": 4}, "full": {"shape": (2, 3), "value": 0.5, "dtype": "float64"},
}  # fmt: skip
#: Operators without values as operands, and those that have no plain NumPy function.
WITHOUT_VALUES, PLACED = {"full", "onehot"}, {"put", "scatter", "embed"}


def test_what_becomes_of_nan_is_said_of_every_operator():
    """Of those that work element by element: `tests/handlers/test_kernels.py`."""
    elementwise = {name for name, row in OPERATORS.items() if row.is_elementwise}
    assert {*PLAIN, *WITHOUT_VALUES, *PLACED, *elementwise} == {*OPERATORS}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted({*PLAIN, *PLACED}))
def test_nan_gives_what_numpy_gives(name, dtype):
    operator = OPERATORS[name]
    count = 2 if name == "concatenate" else operator.arity
    values = np.random.RandomState(1).uniform(0.5, 2, (count, 3, 3)).astype(dtype)
    indices = np.array([[2, 0, 1], [0, 0, 1], [3, 2, 1]] if name in PLACED else [[0, 2, 1]] * 3)
    if name == "put":
        indices = indices[0]
    for place in set(range(count)) - set(operator.index_operands):
        arrays = list(values.copy())
        arrays[place][1, 2] = np.nan
        for i in operator.index_operands:
            arrays[i] = indices
        xs = [Variable(a.shape, a.dtype) for a in arrays]
        tree = OpTreeNode.build(name, *xs, **OPTIONS.get(name, {}))
        (found,) = evaluate(tree, dict(zip(xs, arrays, strict=True)))
        if name in PLACED:
            assert np.isnan(found).sum() == 1
            assert np.nansum(found) == pytest.approx(np.nansum(arrays[0]), rel=1e-6)
            continue
        with np.errstate(all="ignore"):
            expected = np.asarray(PLAIN[name](*arrays))
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


# -- overlapping memory ----------------------------------------------------------------------

SIZE = 40


@st.composite
def views(draw, shape=(3, 4)):
    """Draw a view of a shape into an array of `SIZE` numbers: (start, strides) in elements."""
    strides = draw(
        st.sampled_from([(4, 1), (1, 3), (8, 2), (12, 1), (-4, 1), (4, -1), (-4, -1), (5, 1)])
    )
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    low, high = (sum(r for r in reach if sign * r > 0) for sign in (-1, 1))
    return draw(st.integers(-low, SIZE - 1 - high)), strides


def view(memory, place, shape=(3, 4)):
    start, strides = place
    return np.lib.stride_tricks.as_strided(
        memory[start:], shape, [s * memory.itemsize for s in strides]
    )


X, Y, Z = (Variable((3, 4), np.float64, name) for name in "xyz")
TREES = [
    X, Y[::-1], fn.reshape(X.T, (3, 4)), X + Y, Y - X[::-1], fn.tanh(X * Y) + Z,
    fn.where(X > Y, Z, X), X @ Y.T @ Z, fn.sum(X, 0) + Y, fn.softmax(Z), fn.exp(X) - Y[:, ::-1],
    fn.concatenate([X[:2], Z[1:2]], 0), fn.broadcast_to(X[:1], (3, 4)), fn.maximum(Y, 0.5), Z * 2,
]  # fmt: skip


@settings(max_examples=50)
@given(
    reads=st.tuples(*[views()] * 3),
    writes=st.lists(
        st.tuples(st.sampled_from(TREES), views(), st.booleans()), min_size=1, max_size=4
    ),
)
def test_results_are_as_if_computed_before_any_is_written(reads, writes):
    memory = np.random.RandomState(1).uniform(-2, 2, SIZE)
    expected = memory.copy()
    trees, places, accumulate = zip(*writes, strict=True)
    copies = {x: view(memory, place).copy() for x, place in zip((X, Y, Z), reads, strict=True)}
    for value, place, add in zip(evaluate(trees, copies), places, accumulate, strict=True):
        out = view(expected, place)
        out[...] = out + value if add else value
    inputs = {x: view(memory, place) for x, place in zip((X, Y, Z), reads, strict=True)}
    run(list(trees), inputs, [view(memory, place) for place in places], accumulate)
    np.testing.assert_allclose(memory, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, o in OPERATORS.items() if o.kind == "elementwise"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_of_matrices_are_changed_in_place_like_copies(name, dtype):
    operands = OPERATORS[name].arity
    for columns in (*range(1, 10), 16):
        matrix = np.random.RandomState(0).uniform(0.1, 0.9, (19, columns)).astype(dtype)
        column, others = matrix[:, 0], [np.full(19, 0.5, dtype)] * (operands - 1)
        x, *more = [Variable((19,), dtype, name=str(i)) for i in range(operands)]
        arrays = dict(zip([x, *more], [column.copy(), *others], strict=True))
        tree = build(name, (x, *more))
        (expected,) = into([tree], arrays, [dtype])
        run([tree], {**arrays, x: column}, [column])
        np.testing.assert_array_equal(column, expected, str(columns))


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_inputs_and_outputs_of_different_types_may_share_bytes(dtype):
    memory = np.linspace(-4, 4, 8)
    out = memory.view(dtype)[3:11]
    x = Variable(8, np.float64)
    expected = (memory * 2).astype(dtype)
    run([x * 2], {x: memory}, [out])
    np.testing.assert_array_equal(out, expected)
