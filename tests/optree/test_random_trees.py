"""Random trees of up to 30 nodes against NumPy on the same formula, and central differences."""

import numpy as np
import pytest

from brainstorm.optree import Variable, evaluate, gradients
from brainstorm.optree import functions as fn
from tests.optree.helpers import check_gradients, random_array

UNARY = [
    (fn.tanh, np.tanh),
    (fn.sig, lambda x: 1 / (1 + np.exp(-x))),
    (fn.softplus, lambda x: np.logaddexp(x, 0)),
    (lambda x: fn.exp(fn.tanh(x)), lambda x: np.exp(np.tanh(x))),
    (lambda x: fn.sqrt(1 + x * x), lambda x: np.sqrt(1 + x * x)),
    (abs, abs),
    (lambda x: -x, lambda x: -x),
    (lambda x: 0.5 - x / 3, lambda x: 0.5 - x / 3),
    (fn.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
]
BINARY = [
    (lambda x, y: x + y, lambda x, y: x + y),
    (lambda x, y: x - y, lambda x, y: x - y),
    (lambda x, y: fn.tanh(x) * y, lambda x, y: np.tanh(x) * y),
    (lambda x, y: x / (1 + y * y), lambda x, y: x / (1 + y * y)),
    (fn.maximum, np.maximum),
    (fn.minimum, np.minimum),
    (lambda x, y: fn.where(x > y, x, 2 * y), lambda x, y: np.where(x > y, x, 2 * y)),
]
REDUCTIONS = [(fn.sum, np.sum), (fn.mean, np.mean), (fn.max, np.max), (fn.min, np.min)]
SHAPES = [(2, 3), (1, 3), (2, 1), (3,), (1,), (2, 2, 3), (2, 1, 1), (1, 2, 1, 3), (1, 1, 2, 1, 1)]


def grown(seed, dtype=np.float64):
    """Grow a pool of (tree, value) pairs; return the last tree, its value and the bindings."""
    rnd = np.random.RandomState(seed)
    choose = lambda options: options[rnd.randint(len(options))]  # noqa: E731
    leaves = [Variable(choose(SHAPES), dtype, name=f"x{i}") for i in range(3)]
    bindings = {leaf: random_array(rnd, leaf.shape, (-2, 2), dtype) for leaf in leaves}
    pool = list(bindings.items())
    while len(pool[-1][0].traverse()) < 20 and len(pool) < 20:
        (x, a), (y, b) = choose(pool), pool[-1]
        kind = rnd.rand()
        # where elements tie, the gradient that all of them get is no limit of differences
        tied = np.any(a == b) or np.unique(b).size < b.size
        if kind < 0.3:
            build, compute = choose(UNARY)
            pool.append((build(y), compute(b)))
        elif kind < 0.75:
            build, compute = choose(BINARY[:4] if tied else BINARY)
            pool.append((build(x, y), compute(a, b)))
        elif kind < 0.9:
            build, compute = choose(REDUCTIONS[:2] if tied else REDUCTIONS)
            axis = choose([None, 0, -1])
            pool.append((build(y, axis), compute(b, axis=axis, keepdims=True)))
        elif kind < 0.95:
            pool.append((y[..., ::-1], b[..., ::-1]))
        else:
            pool.append((fn.reshape(y, (1, *b.shape)), b[None]))
        if pool[-1][0].ndim > 5 or pool[-1][0].size > 100:
            pool.pop()
    return (*pool[-1], bindings)


@pytest.mark.parametrize("seed", range(60))
def test_random_tree(seed):
    tree, expected, bindings = grown(seed)
    assert tree.shape == expected.shape
    # With its gradients, of which it shares nodes.
    found, *_ = evaluate([tree, *gradients(tree, list(bindings))], bindings)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    check_gradients(tree, bindings, rtol=3e-5)


def test_the_trees_are_not_trivial():
    sizes = [len(grown(seed)[0].traverse()) for seed in range(40)]
    assert np.mean(sizes) > 12
    assert max(sizes) <= 32
