"""Reductions, composites, products, indexing and structure: values and derivatives."""

import itertools

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.optree import Variable, evaluate, gradients
from brainstorm.optree import functions as fn
from tests.optree.helpers import check_gradients, random_array, value, variables

SHAPES = [(4,), (3, 2), (2, 3, 2), (2, 1, 2, 2, 3)]
AXES = [None, 0, -1, (0, -1), ()]


def normal(axis, x):
    axes = range(x.ndim) if axis is None else np.atleast_1d(np.array(axis, int))
    return tuple(sorted({int(a) % x.ndim for a in axes}))


def of_numpy(name):
    function = getattr(np, name)
    return lambda x, axis, keepdims: function(x, axis=normal(axis, x), keepdims=keepdims)


def flat_index(function):
    """argmax or argmin by brute force: the first best index into the reduced axes."""

    def reference(x, axis, keepdims):
        axes = normal(axis, x)
        kept = [range(1) if i in axes else range(n) for i, n in enumerate(x.shape)]
        out = np.empty([len(r) for r in kept])
        for place in itertools.product(*kept):
            view = x[tuple(slice(None) if i in axes else p for i, p in enumerate(place))]
            out[place] = function(view.ravel())
        return out if keepdims else out.squeeze(axes)

    return reference


REDUCTIONS = {
    **{name: of_numpy(name) for name in ("sum", "prod", "max", "min", "mean", "var", "std")},
    "argmax": flat_index(np.argmax),
    "argmin": flat_index(np.argmin),
    "logsumexp": lambda x, axis, keepdims: np.log(REDUCTIONS["sum"](np.exp(x), axis, keepdims)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name, keepdims, dtype):
    for seed, (shape, axis) in enumerate(itertools.product(SHAPES, AXES)):
        if len(shape) == 1 and isinstance(axis, tuple) and axis:
            continue
        (x,) = variables([shape], dtype)
        array = random_array(np.random.RandomState(seed), shape, dtype=dtype)
        tree = getattr(fn, name)(x, axis=axis, keepdims=keepdims)
        expected = REDUCTIONS[name](array, axis, keepdims)
        result = value(tree, {x: array})
        assert tree.shape == result.shape == expected.shape
        assert result.dtype == dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
        if dtype == np.float64 and not (name == "std" and (axis == () or 1 in shape)):
            check_gradients(tree, {x: array})


def test_gradient_of_a_reduction_does_not_touch_values():
    (x,) = variables([(2, 2)])
    (gradient,) = gradients(fn.sum(x, axis=0), [x])
    array = np.array([[np.inf, np.nan], [1, 2]])
    np.testing.assert_array_equal(value(gradient, {x: array}), np.ones((2, 2)))


def test_sum_over_nothing_and_mean_over_nothing():
    (x,) = variables([(2, 0)])
    empty = {x: np.empty((2, 0))}
    np.testing.assert_array_equal(value(fn.sum(x, axis=1), empty), [[0], [0]])
    assert np.isnan(value(fn.mean(x, axis=1), empty)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_sums_of_what_is_before(dtype):
    x = Variable((3, 4, 5), dtype)
    array = random_array(np.random.RandomState(0), x.shape, (-100, 100), dtype)
    for axis in (0, 1, -1):
        tree = fn.cumsum(x, axis)
        expected = np.cumsum(array, axis, np.float64)
        np.testing.assert_allclose(value(tree, {x: array}), expected, rtol=1e-6)
        if dtype == np.float64:
            check_gradients(fn.square(tree), {x: array}, rtol=1e-4)
    with pytest.raises(ValidationError, match="expected one axis, got axis=\\(0, 1\\)"):
        fn.cumsum(x, (0, 1))


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("axis", AXES[:4])
def test_softmax_and_its_relatives_do_not_overflow(axis, scale):
    rnd = np.random.RandomState(3)
    x, t = variables([(2, 3, 4)] * 2)
    a, b = scale * random_array(rnd, x.shape), random_array(rnd, x.shape, (0, 1))
    axes, bindings = normal(axis, a), {x: a, t: b}
    total = np.logaddexp.reduce(a, axes, keepdims=True)
    lost = scale * 1e-15  # of a - total
    cases = {
        fn.logsumexp(x, axis): total,
        fn.softmax(x, axis): np.exp(a - total),
        fn.log_softmax(x, axis): a - total,
        fn.cross_entropy_with_logits(x, t, axis): -np.sum(b * (a - total), axes, keepdims=True),
        fn.cross_entropy_with_logits(x, t, axis, keepdims=False): -np.sum(b * (a - total), axes),
    }
    for tree, expected in cases.items():
        np.testing.assert_allclose(value(tree, bindings), expected, rtol=1e-12, atol=lost)
        if scale == 1:
            check_gradients(tree, bindings)
        else:
            found = evaluate(gradients(tree, [x, t]), bindings)
            assert all(np.isfinite(gradient).all() for gradient in found)


def test_composites_at_infinity():
    (x,) = variables([(3, 2)])
    array = np.array([[-np.inf, -np.inf], [0, -np.inf], [np.inf, 0]])
    total, share = evaluate([fn.logsumexp(x, 1), fn.softmax(x, 1)], {x: array})
    np.testing.assert_array_equal(total.ravel(), [-np.inf, 0, np.inf])
    np.testing.assert_array_equal(share[1], [1, 0])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3), (3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (4, 3, 2)),
        ((2, 2, 5, 2, 3), (3, 1)),
        ((5, 2, 0), (0, 4)),
        ((5, 2, 3), (3, 0)),
    ],
)
def test_dot(left, right):
    rnd = np.random.RandomState(0)
    x, y = variables([left, right])
    bindings = {x: random_array(rnd, left), y: random_array(rnd, right)}
    np.testing.assert_allclose(value(x @ y, bindings), bindings[x] @ bindings[y], rtol=1e-12)
    check_gradients(fn.dot(x, y), bindings)


def test_take_put_gather_scatter_and_onehot():
    rnd = np.random.RandomState(0)
    x = Variable((2, 5, 3), np.float64, name="x")
    array = random_array(rnd, x.shape)
    for index_type in (np.int64, np.int32, np.float64):
        rows = Variable((2, 4), index_type)
        places = Variable((2, 2, 3), index_type)
        bindings = {
            x: array,
            rows: np.array([[0, 4, -1, 4], [1, 0, -5, 2]]),
            places: rnd.randint(-5, 5, (2, 2, 3)),
        }
        taken, gathered = fn.take(x, rows, axis=1), fn.gather(x, places, axis=-2)
        assert taken.shape == (2, 2, 4, 3)
        assert taken.dtype == np.float64
        np.testing.assert_array_equal(value(taken, bindings), array[:, bindings[rows]])
        for i, j, k in np.ndindex(2, 2, 3):
            assert value(gathered, bindings)[i, j, k] == array[i, bindings[places][i, j, k], k]
        for tree in (taken, gathered):
            check_gradients(tree, bindings, [x])
            (gradient,) = gradients(fn.square(tree), [x])  # repeated indices add up
            check_gradients(gradient, bindings, [x])
    labels = Variable((1, 3), np.int32)
    with pytest.raises(ValidationError, match="expected indices from 0 to 3, got -1 to 2"):
        value(fn.onehot(labels, axis=0, size=4), {labels: np.array([[-1, 2, 0]])})
    hot = fn.onehot(labels, axis=0, size=4)
    assert hot.dtype == np.float32
    np.testing.assert_array_equal(
        value(hot, {labels: np.array([[0, 3, 1]])}), np.eye(4)[[0, 3, 1]].T
    )
    assert not value(gradients(hot, [labels])[0], {}).any()


def test_no_indices_take_nothing():
    x, none = variables([(3, 2), (3, 0)])
    bindings = {x: np.ones(x.shape), none: np.zeros(none.shape)}
    for tree in (fn.take(x, none, axis=0), fn.gather(x, none, axis=1)):
        assert value(tree, bindings).size == 0
        assert not value(gradients(tree, [x])[0], bindings).any()


def test_one_index_may_be_a_number():
    x = Variable((2, 5, 3), np.float64, "x")
    assert fn.take(x, np.int64(1), axis=2).key() == x[:, :, 1].key()
    assert fn.take(x, -2, axis=-2).key() == x[:, -2].key()


def test_an_index_may_be_an_array_of_indices():
    rnd = np.random.RandomState(0)
    x, i = Variable((2, 5, 3), np.float64, "x"), Variable((2, 2), np.int64, "i")
    a, n = random_array(rnd, x.shape), np.array([[-1, 0], [1, -2]])
    bindings = {x: a, i: n}
    cases = {
        x[i]: a[n], x[:, i]: a[:, n], x[..., i]: a[..., n], x[..., i, :]: a[..., n, :],
        x[None, :, ::-1, i]: a[None, :, ::-1][..., n],
        x[:, i, None, 1:]: a[:, n][..., None, 1:], (x * 2)[:, i]: 2 * a[:, n],
        x[:, fn.argmax(x, 1, keepdims=False)]: a[:, a.argmax(1)],
    }  # fmt: skip
    for tree, expected in cases.items():
        assert tree.shape == expected.shape, tree
        np.testing.assert_array_equal(value(tree, bindings), expected)
    check_gradients(fn.square(x[:, i]), bindings, [x])


def test_structural_operators():
    rnd = np.random.RandomState(0)
    x, y = variables([(2, 3, 4), (2, 2, 4)])
    bindings = {x: random_array(rnd, x.shape), y: random_array(rnd, y.shape)}
    a, b = bindings.values()
    cases = {
        x.T: a.T,
        fn.transpose(x, (1, -1, 0)): a.transpose(1, 2, 0),
        fn.reshape(x, (4, -1)): a.reshape(4, 6),
        fn.reshape(x, 24): a.ravel(),
        fn.broadcast_to(x, (5, 2, 3, 4)): np.broadcast_to(a, (5, 2, 3, 4)),
        fn.concatenate([x, y, x], axis=1): np.concatenate([a, b, a], axis=1),
        (x * 1)[0, :]: a[0],
        x[1]: a[1],
        x[..., -1]: a[..., -1],
        x[:, None, 1:, ::-2]: a[:, None, 1:, ::-2],
        x[-1, 2:0:-1, 3]: a[-1, 2:0:-1, 3],
        x[:, ::-1]: a[:, ::-1],
        x[:, 3:]: a[:, 3:],
    }
    for tree, expected in cases.items():
        assert tree.shape == expected.shape
        np.testing.assert_array_equal(value(tree, bindings), expected)
        for dependent in (x, y):
            if any(leaf is dependent for leaf in tree.traverse()):
                check_gradients(tree, bindings, [dependent])
                (gradient,) = gradients(fn.square(tree), [dependent])
                check_gradients(gradient, bindings, [dependent])


def test_slice_of_everything_is_the_same_tree():
    (x,) = variables([(2, 3)])
    assert x[...] is x
    assert x[:, 0:3] is x


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "sum"])
def test_reductions_of_arrays_that_are_empty_on_another_axis(name):
    x = Variable((0, 5))
    tree = getattr(fn, name)(x, 1)
    assert value(tree, {x: np.zeros((0, 5), np.float32)}).shape == (0, 1)
