"""Every element-wise row of the operator table: value, derivative, special numbers.

Their forms in C: tests/handlers/test_compiled.py.
"""

import math
import operator

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from brainstorm.optree import OPERATORS, OpTreeNode, Variable, evaluate, gradients, linearise
from brainstorm.optree import functions as fn
from tests.optree.helpers import check_gradients, random_array, value, variables

#: What each operator computes, written down a second time.
REFERENCE = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "eq", "ne")},
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "neg")},
    "div": operator.truediv,
    "pow": lambda x, y: np.exp(y * np.log(x)),
    "fmod": lambda x, y: x - np.trunc(x / y) * y,
    "mod": lambda x, y: x - np.floor(x / y) * y,
    "floordiv": lambda x, y: np.floor(x / y),
    "maximum": lambda x, y: np.where(x > y, x, y),
    "minimum": lambda x, y: np.where(x < y, x, y),
    "finite": np.ones_like,
    **dict.fromkeys(("isnan", "not"), np.zeros_like),
    **dict.fromkeys(("and", "or"), lambda x, y: np.ones_like(x + y)),
    "abs": lambda x: np.sqrt(x * x),
    "sgn": lambda x: (x > 0) * 1.0 - (x < 0),
    "rint": np.round,
    "floor": lambda x: np.round(x - 0.5),
    "sin": lambda x: np.exp(1j * x).imag,
    "cos": lambda x: np.exp(1j * x).real,
    "tan": lambda x: np.exp(1j * x).imag / np.exp(1j * x).real,
    "arcsin": lambda x: np.angle(np.sqrt(1 - x * x) + 1j * x),
    "arccos": lambda x: np.angle(x + 1j * np.sqrt(1 - x * x)),
    "arctan": lambda x: np.angle(1 + 1j * x),
    "sinh": lambda x: (np.exp(x) - np.exp(-x)) / 2,
    "cosh": lambda x: (np.exp(x) + np.exp(-x)) / 2,
    "arcsinh": lambda x: np.log(x + np.sqrt(x * x + 1)),
    "arccosh": lambda x: np.log(x + np.sqrt(x * x - 1)),
    "arctanh": lambda x: np.log((1 + x) / (1 - x)) / 2,
    "binarize": lambda x: np.where(x >= 0, 1, -1),
    "sqr": lambda x: x * x,
    "sqrt": lambda x: x**0.5,
    "exp": lambda x: math.e**x,
    "exp2": lambda x: 2.0**x,
    "expm1": lambda x: math.e**x - 1,
    "log": lambda x: np.log10(x) * math.log(10),
    "log2": lambda x: np.log(x) / math.log(2),
    "log1p": lambda x: np.log(1 + x),
    "safelog": lambda x: np.log(np.maximum(x, math.exp(-50))),
    "sig": lambda x: 1 / (1 + np.exp(-x)),
    "sig2": lambda x: 1 / (1 + 2**-x),
    "tanh": lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "tanh2": lambda x: (4**x - 1) / (4**x + 1),
    "erfc": lambda x: np.vectorize(math.erfc, otypes=[float])(x),
    "relu": lambda x: np.maximum(x, 0),
    "erf": lambda x: np.vectorize(math.erf, otypes=[float])(x),
    "lgamma": special.gammaln,
    "digamma": lambda x: np.where(x < 0, np.nan, special.digamma(x)),
    "softplus": lambda x: np.log(1 + np.exp(x)),
    "where": lambda c, x, y: np.choose(c != 0, [y, x]),
}
LN2 = math.log(2)
NAMES = sorted(REFERENCE)
WITH_C = [name for name in NAMES if OPERATORS[name].c]
LOWERED = [name for name in NAMES if OPERATORS[name].lowering]
SMOOTH = [name for name in NAMES if OPERATORS[name].kind == "elementwise"]


def shapes_for(count):
    return hnp.mutually_broadcastable_shapes(
        num_shapes=count, min_dims=0, max_dims=5, max_side=3
    ).map(lambda shapes: shapes.input_shapes)


def operands(name, shapes, dtype, seed):
    rnd = np.random.RandomState(seed)
    xs = variables(shapes, dtype)
    intervals = OPERATORS[name].domain
    arrays = [random_array(rnd, x.shape, i, dtype) for x, i in zip(xs, intervals, strict=True)]
    return xs, arrays


def test_every_elementwise_operator_has_a_reference_and_can_be_executed_in_c():
    assert {name for name, row in OPERATORS.items() if row.is_elementwise} == set(NAMES)
    assert sorted([*WITH_C, *LOWERED]) == NAMES


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6)
@given(data=st.data())
def test_value(name, dtype, data):
    shapes = data.draw(shapes_for(OPERATORS[name].arity))
    xs, arrays = operands(name, shapes, dtype, data.draw(st.integers(0, 1000)))
    result = value(OpTreeNode.build(name, *xs), dict(zip(xs, arrays, strict=True)))
    expected = REFERENCE[name](*(a.astype(np.float64) for a in arrays))
    assert result.dtype == dtype
    assert result.shape == np.broadcast_shapes(*shapes)
    tolerance = 2e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", SMOOTH)
@settings(max_examples=6)
@given(data=st.data())
def test_derivative_and_its_derivative(name, data):
    shapes = data.draw(shapes_for(OPERATORS[name].arity))
    xs, arrays = operands(name, shapes, np.float64, data.draw(st.integers(0, 1000)))
    bindings = dict(zip(xs, arrays, strict=True))
    tree = OpTreeNode.build(name, *xs)
    check_gradients(tree, bindings)
    for gradient in gradients(tree, xs):
        check_gradients(gradient, bindings)


@pytest.mark.parametrize("name", [n for n in NAMES if OPERATORS[n].kind == "comparison"])
def test_comparisons_have_gradient_zero(name):
    xs, arrays = operands(name, [(2, 3)] * OPERATORS[name].arity, np.float32, 0)
    found = evaluate(gradients(OpTreeNode.build(name, *xs), xs), dict(zip(xs, arrays, strict=True)))
    assert all(g.dtype == np.float32 and not g.any() for g in found)


@pytest.mark.parametrize("name", WITH_C)
def test_result_may_overwrite_an_operand(name):
    for place in range(OPERATORS[name].arity):
        _, arrays = operands(name, [(4, 3)] * OPERATORS[name].arity, np.float64, 1)
        expected = np.empty((4, 3))
        OPERATORS[name].numpy(*arrays, out=expected)
        OPERATORS[name].numpy(*arrays, out=arrays[place])
        np.testing.assert_array_equal(arrays[place], expected)


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.5, 1e30, -1e30, 100.0]


def special_operands(arity, dtype):
    grids = np.meshgrid(*[np.array(SPECIAL, dtype)] * arity, indexing="ij")
    return [np.ascontiguousarray(g.ravel()) for g in grids]


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("sgn", [0.0, -2.0, math.nan], [0, -1, math.nan]),
        ("binarize", [0.0, -0.0, -2.0, math.nan], [1, 1, -1, math.nan]),
        ("finite", [1.0, math.nan, math.inf], [1, 0, 0]),
        ("rint", [0.5, 1.5, -0.6], [0, 2, -1]),
        ("erf", [math.inf, -math.inf, math.nan], [1, -1, math.nan]),
        (
            "lgamma",
            [math.inf, math.nan, 0.0, -2.0, 1.0, -1e9],
            [math.inf, math.nan, math.inf, math.inf, 0, math.inf],
        ),
    ],
)
def test_special_values(name, x, expected):
    """Of operators that are not taken apart: the others are compared at many more numbers below."""
    (v,) = variables([(len(x),)])
    np.testing.assert_array_equal(value(OpTreeNode.build(name, v), {v: np.array(x)}), expected)


def test_erf_and_the_tail_of_erfc_are_exact():
    x = np.linspace(-7, 26, 20001)
    v = Variable(x.shape, x.dtype)
    found = evaluate([fn.erf(v), fn.erfc(v)], {v: x})
    np.testing.assert_allclose(found[0], [math.erf(a) for a in x], rtol=1e-15, atol=1e-300)
    # rounding x * x in exp(-x * x) moves the value by as much as it moves x
    tolerance, expected = np.finfo(float).eps * (4 + x * x), np.array([math.erfc(a) for a in x])
    assert np.all(np.abs(found[1] - expected) <= tolerance * expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LOWERED)
def test_what_is_taken_apart_is_right_for_special_numbers_too(name, dtype):
    arrays = special_operands(OPERATORS[name].arity, dtype)
    if len(arrays) == 1:
        arrays = [np.append(arrays[0], np.linspace(-9, 9, 1001)).astype(dtype)]
    values = arrays[0]
    xs = [Variable(values.shape, dtype) for _ in arrays]
    tree = OpTreeNode.build(name, *xs)
    (found,) = evaluate(linearise(tree), dict(zip(xs, arrays, strict=True)))
    reference = {
        "softplus": lambda x: np.logaddexp(x, 0),
        "tanh2": lambda x: np.tanh(x * LN2),
        "mod": np.mod,
        "floordiv": np.floor_divide,
    }
    with np.errstate(all="ignore"):
        expected = {**REFERENCE, **reference}[name](*(a.astype(np.float64) for a in arrays))
        expected = expected.astype(dtype)
    tolerance = (4 + 2 * np.fmin(np.abs(values), 9) ** 2) * np.finfo(dtype).eps
    rounding = 8 * np.finfo(dtype).eps * (name == "digamma")  # around its zero
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    with np.errstate(invalid="ignore"):
        wrong = (
            np.abs(found - expected)
            > tolerance * np.abs(expected) + rounding + np.finfo(dtype).tiny
        )
        wrong &= found != expected
    assert not wrong.any(), values[wrong]


def test_operators_of_python_are_those_of_the_table():
    a, b = np.array([-7.5, -7, 0, 7, 7.5]), np.array([2.0, -2, 3, -3, 2.5])
    x, y = variables([(5,)] * 2)
    cases = {
        x % y: a % b, x // y: a // b, x % 3: a % 3, x // -3: a // -3, -7.5 % y: -7.5 % b,
        7 // y: 7 // b, (x > 0) & (y > 0): (a > 0) & (b > 0), (x > 0) | (y > 0): (a > 0) | (b > 0),
        ~(x > 0): ~(a > 0), (x > 0) & True: a > 0, False | (x > 0): a > 0,
    }  # fmt: skip
    for tree, expected in cases.items():
        np.testing.assert_array_equal(value(tree, {x: a, y: b}), expected, err_msg=tree.pp())
    assert ((x % y).pp(), (~x).pp()) == ("x0 % x1", "~x0")
    assert (fn.mod(-7, 3), fn.floor_divide(-7, 3), fn.floor_divide(1, 0)) == (2, -3, math.inf)
