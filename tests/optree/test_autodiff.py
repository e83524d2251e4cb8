"""Gradients: the chain rule, sharing, identity, and the traps that neon's differentiator had."""

import gc
import weakref

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.optree import (
    OpTreeNode,
    Variable,
    View,
    evaluate,
    gradients,
    postorder,
    register_operator,
    saved_nodes,
    views_overlap,
)  # fmt: skip
from brainstorm.optree import functions as fn
from tests.optree.helpers import calls, value, variables

ONE, TWO = np.ones(2), np.array([2.0, 5.0])

#: Trees of x and y, the variables to derive by, and the derivatives where x is (2, 5), y is (1, 1).
DERIVED = {
    "the seed's example": (lambda x, y: gradients(x * x + x * y, [x, y]), [2 * TWO + 1, TWO]),
    "of the root": (lambda x, y: gradients(x, [x], y), [ONE]),
    "of a node": (lambda x, y: (lambda z: gradients(z * 3, [z]))(x * x), [3 * ONE]),
    "by an error": (lambda x, y: gradients(x * x * 3, [x], y * 10), [60 * TWO]),
    "by an error that is a tree": (lambda x, y: gradients(x * 3, [x], x - y), [3 * (TWO - 1)]),
    "of several roots": (
        lambda x, y: gradients([fn.exp(x), fn.sum(x * x)], [x], [y, fn.full((1,), 5.0)]),
        [np.exp(TWO) + 10 * TWO],
    ),
    "of several roots, by ones": (
        lambda x, y: gradients([fn.exp(x), fn.sum(x * x)], [x]), [np.exp(TWO) + 2 * TWO],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives(name):
    build, expected = DERIVED[name]
    x, y = variables([(2,), (2,)])
    found = evaluate(build(x, y), {x: TWO, y: ONE})
    for slope, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(slope, wanted, rtol=1e-12)


@pytest.mark.parametrize("function", [fn.tanh, lambda y: y * y, lambda y: fn.tanh(y) + y])
def test_gradients_cost_linear_work(function):
    (x,) = variables([(2,)])

    def derived(k):
        y = x
        for _ in range(k):
            y = function(y)
        return gradients(y, [x])

    sizes = [len(postorder(derived(k))) for k in (20, 40, 60)]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] <= 20 * 7
    assert calls(lambda: derived(1000)) < 1.1 * 10 * calls(lambda: derived(100))


def test_a_variable_that_does_not_occur_has_gradient_zero():
    x, y = variables([(2,), (3,)], np.float32)
    (dy,) = gradients(x * 2, [y])
    assert (dy.shape, dy.dtype) == ((3,), np.float32)
    np.testing.assert_array_equal(value(dy, {y: np.array([np.nan, np.inf, 1])}), np.zeros(3))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            lambda x, e: (x * 2, [x], e),
            r"be .* of shape \(2,\), which x0 \* 2 has, got shape \(3,\)",
        ),
        (lambda x, e: (x * 2, [x], 3.0), "expected next_error to be .* got float"),
        (lambda x, e: ([x * 2, x * 3], [x], x), r"one next_error per root \(2\), got 1"),
        (lambda x, e: (fn.exp(2.0), [x]), "expected op-trees or variables, got float"),
        (lambda x, e: (x * 2, ["x"]), "expected op-trees or variables, got str"),
    ],
)
def test_roots_and_errors_that_do_not_match(arguments, text):
    with pytest.raises(ValidationError, match=text):
        gradients(*arguments(*variables([(2,), (3,)])))


def test_broadcasting_in_front_is_undone_by_one_step():
    x, b, c = variables([(4, 3), (3,), (1, 3)])
    trees = gradients((x + b) * c, [b, c])
    assert [tree.op for tree in trees] == ["sum", "sum"]
    (wide,) = gradients(c * Variable((5, 4, 3)), [c])
    assert (wide.op, wide.shape) == ("reshape", (1, 3))


#: A function, its arguments, and the derivatives by each of them where limits differ.
EDGES = {
    "maximum of equal numbers": (fn.maximum, ([1.0, 2, 3], [1.0, 3, 2]), ([1, 0, 1], [1, 1, 0])),
    "minimum of equal numbers": (fn.minimum, ([1.0, 2, 3], [1.0, 3, 2]), ([1, 1, 0], [1, 0, 1])),
    "max of equal numbers": (
        lambda x: fn.max(x, 1), ([[1.0, 1, 1], [0, 5, -5]],), ([[1, 1, 1], [0, 1, 0]],),
    ),
    "min of equal numbers": (
        lambda x: fn.min(x, 1), ([[1.0, 1, 1], [0, 5, -5]],), ([[1, 1, 1], [0, 0, 1]],),
    ),
    "prod with zeros": (
        lambda x: fn.prod(x, 1), ([[2.0, 3, 4], [0, 3, 4], [2, 0, 0], [1, -1, 0]],),
        ([[12, 8, 6], [12, 0, 0], [0, 0, 0], [0, 0, -1]],),
    ),
    "clip": (lambda x: fn.clip(x, 0, 1), ([-2.0, 0.5, 1, 3],), ([0, 1, 1, 0],)),
    "relu": (fn.relu, ([-1.0, 0, 1],), ([0, 0, 1],)),
    "power": (
        lambda x, y: x**y, ([0.0, 0, 2, -3], [0.0, 2, 0, 2]),
        ([0, 0, 0, -6], [0, 0, np.log(2), np.nan]),
    ),
    **{
        f"power of {exponent}": (lambda x, n=exponent: x**n, ([base],), ([slope],))
        for base, exponent, slope in ((0.0, 0.0, 0), (0.0, 2.0, 0), (2.0, 0.0, 0), (-3.0, 2.0, -6))
    },
    "costs made of safelog": (
        lambda y, t: -(t * fn.safelog(y) + (1 - t) * fn.safelog(1 - y)),
        ([0.2, 0.9, 0.0], [1.0, 0.0, 0.0]), ([-5, 10, 1],),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_derivatives_at_edges_are_those_of_one_side_or_of_all_that_tie(name):
    function, arrays, expected = EDGES[name]
    arrays = [np.array(array) for array in arrays]
    xs = variables([array.shape for array in arrays])
    found = evaluate(gradients(function(*xs), xs), dict(zip(xs, arrays, strict=True)))
    for slope, wanted in zip(found, expected, strict=False):  # of the targets there is none
        np.testing.assert_allclose(slope, np.reshape(wanted, slope.shape), rtol=1e-12)


def test_what_is_not_chosen_cannot_poison():
    (x,) = variables([(2,)])
    tree = fn.where(x > 0, fn.log(x), 0)
    error = Variable((2,), np.float64)
    (dx,) = gradients(tree, [x], error)
    bindings = {x: np.array([2.0, -4.0]), error: np.array([1.0, np.nan])}
    np.testing.assert_array_equal(value(dx, bindings), [0.5, 0])


# -- identity of variables -------------------------------------------------------------------


def view(array, base, name):
    offset = array.ctypes.data - base.ctypes.data
    identity = View("arena", offset, array.shape, array.strides)
    return Variable(array.shape, array.dtype, name, identity)


ARENA = np.zeros((4, 6))


def test_equal_views_are_one_variable():
    first, second = (view(ARENA[:, 1], ARENA, name) for name in ("first", "second"))
    (gradient,) = gradients(first * second, [second])
    np.testing.assert_array_equal(value(gradient, {first: np.arange(4)}), [0, 2, 4, 6])


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (ARENA, ARENA[1], True),
        (ARENA[:, :3], ARENA[:, 2:], True),
        (ARENA, ARENA.T, True),
        (ARENA[::2], ARENA[1::2], False),
        (ARENA[:, ::2], ARENA[:, 3::2], False),
        (ARENA[:2], ARENA[2:], False),
        (ARENA[0], ARENA[0], False),
        (ARENA[:, ::-1], ARENA[:, 2], True),
    ],
)
def test_views_overlap(one, other, overlap):
    first, second = view(one, ARENA, "a"), view(other, ARENA, "b")
    assert views_overlap(first, second) is overlap
    elsewhere = View("another allocation", *second.identity[1:])
    assert not views_overlap(first, Variable(other.shape, np.float64, identity=elsewhere))
    assert not views_overlap(first, Variable(other.shape, np.float64, identity="no view"))


def test_overlapping_views_are_refused():
    whole, part = view(ARENA, ARENA, "whole"), view(ARENA[:, :3], ARENA, "part")
    text = (
        r"with respect to part of shape \(4, 3\) would be incomplete: .* whole of shape \(4, 6\), "
        r"a different view that overlaps its memory. Use one variable, and slices"
    )
    with pytest.raises(ValidationError, match=text):
        gradients(fn.sum(whole) * part, [part])
    other = Variable((4, 3), np.float64)
    assert gradients(whole[:, :3] * part * other, [other])[0].shape == (4, 3)  # nothing is missed


# -- operators of users ----------------------------------------------------------------------


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize(
    ("rule", "slope"), [(lambda dz, *_: 2.0, 2), (lambda dz, *_: fn.sum(dz), 6)]
)
def test_rules_may_return_numbers_and_small_trees(rule, slope):
    register_operator("odd", 1, np.positive, (rule,))
    (x,) = variables([(2, 3)])
    assert value(gradients(OpTreeNode.build("odd", x), [x])[0], {}).tolist() == [[slope] * 3] * 2


@pytest.mark.usefixtures("own_table")
def test_faulty_and_missing_rules():
    register_operator("faulty", 1, np.positive, (lambda dz, z, x: dz[0, :2],))
    register_operator("rough", 1, np.positive)
    (x,) = variables([(2, 3)])
    text = r"the derivative of 'faulty' has shape \(2,\), which does not belong to its operand of"
    with pytest.raises(ValidationError, match=text):
        gradients(OpTreeNode.build("faulty", x), [x])
    with pytest.raises(ValidationError, match="operator 'rough' has no derivative. Register it"):
        gradients(OpTreeNode.build("rough", x), [x])
    other = Variable((2, 3))
    assert gradients(OpTreeNode.build("rough", x) * other, [other])[0].shape == (2, 3)


# -- what is kept for the backward pass, and for how long ------------------------------------


def test_saved_nodes():
    x, w, b = variables([(4, 3), (3, 2), (2,)])
    product = x @ w
    shifted = product + b
    activation = fn.tanh(shifted)
    tree = activation * 2 + 1
    saved = saved_nodes(tree, gradients(tree, [x, w, b]))
    assert [node.op for node in saved] == ["tanh"]
    assert saved[0] is activation
    softplus = fn.softplus(shifted)
    saved = saved_nodes(softplus, gradients(softplus, [b]))
    assert [node.op for node in saved] == ["dot"]  # the sum is computed again
    everything = saved_nodes(softplus, gradients(softplus, [b]), store=lambda node: True)
    assert everything[0] is shifted
    assert saved_nodes(tree, gradients(tree, [b]), store=lambda node: False) == []


def test_nothing_keeps_trees_alive():
    (x,) = variables([(3,)])
    (dx,) = gradients(fn.tanh(x * 2), [x])
    value(dx, {x: np.zeros(3)})
    reference = weakref.ref(x)
    gc.disable()
    try:
        del x, dx
        assert reference() is None
    finally:
        gc.enable()
