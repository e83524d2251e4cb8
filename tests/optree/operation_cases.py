"""Trees with products, indexing and scans, which are no loops, among loops: for every executor."""

import numpy as np

from brainstorm.optree import Variable, gradients
from brainstorm.optree import functions as fn

PRODUCTS = {
    "matrices": lambda x, y: fn.dot(fn.tanh(x[0]), fn.transpose(y[0])),
    "stacks": lambda x, y: fn.dot(x, fn.transpose(y, (0, 2, 1))),
    "one for all": lambda x, y: fn.dot(x, fn.transpose(y[0])) + 1.0,
    "in a row": lambda x, y: fn.dot(fn.tanh(fn.dot(x, fn.transpose(y, (0, 2, 1)))), y * y),
    "of sums": lambda x, y: fn.dot(x / fn.sum(x * x, 2), fn.transpose(fn.softmax(y, 2), (0, 2, 1))),
    "used twice": lambda x, y: fn.concatenate([fn.dot(x, fn.transpose(y, (0, 2, 1)))] * 2, 1),
    "of a number": lambda x, y: fn.dot(x, fn.full((5, 2), 0.5)),
    "of more axes": lambda x, y: fn.dot(fn.reshape(x, (1, 3, 4, 5)), fn.transpose(y, (0, 2, 1))),
    "repeated": lambda x, y: fn.dot(fn.broadcast_to(x[:1], (3, 4, 5)), fn.reshape(y, (3, 5, 4))),
}


def variables(rng, *shapes):
    """Return variables of these shapes, and values for them."""
    found = [Variable(shape, np.float32, f"x{i}") for i, shape in enumerate(shapes)]
    return found, {v: rng.normal(size=v.shape).astype(np.float32) for v in found}


def products(name, rng):
    """Return a product with its gradients, and values."""
    (x, y), bindings = variables(rng, (3, 4, 5), (3, 4, 5))
    tree = PRODUCTS[name](x, y)
    return [tree, tree * 2.0, *gradients(tree, [x, y])], bindings


def of_integers_and_floats(rng):
    """Return a product whose first factor has another type."""
    (x,), bindings = variables(rng, (5, 3))
    whole = Variable((4, 5), np.int8, "whole")
    bindings[whole] = rng.integers(-9, 9, (4, 5)).astype(np.int8)
    return [fn.dot(whole, x), fn.dot(fn.transpose(x), fn.transpose(whole))], bindings


def indexing(axis, rng):
    """Return everything that picks by index, with gradients, and values."""
    (x,), bindings = variables(rng, (4, 3, 5))
    indices = Variable((2, 3), np.float32, "indices")
    picks = Variable(tuple(2 if i == axis else n for i, n in enumerate(x.shape)), np.int64, "picks")
    size = x.shape[axis]
    bindings[indices] = rng.integers(-size, size, indices.shape).astype(np.float32)
    bindings[picks] = rng.integers(-size, size, picks.shape)
    taken, gathered = fn.take(x, indices, axis), fn.gather(fn.tanh(x), picks, axis)
    trees = [taken, gathered, *gradients(fn.sum(taken) + fn.sum(gathered * 3.0), [x])]
    return trees, bindings


def one_hot(rng):
    """Return vectors with a single one, and values."""
    indices = Variable((4, 1, 3), np.float32, "indices")
    return [fn.onehot(indices, 1, 5) * 2.0], {
        indices: rng.integers(0, 5, (4, 1, 3)).astype(np.float32)
    }


def sums_of_what_is_before(axis, rng):
    """Return sums along an axis among loops, with gradients, and values."""
    (x,), bindings = variables(rng, (4, 3, 5))
    tree = fn.cumsum(fn.tanh(x), axis) * 2.0
    return [tree, fn.cumsum(x[:, ::-1], axis), *gradients(fn.square(tree), [x])], bindings


CASES = {
    **{f"product, {name}": lambda rng, name=name: products(name, rng) for name in PRODUCTS},
    "product, of two types": of_integers_and_floats,
    **{f"indexing, axis {axis}": lambda rng, axis=axis: indexing(axis, rng) for axis in range(3)},
    **{
        f"sums, axis {axis}": lambda rng, axis=axis: sums_of_what_is_before(axis, rng)
        for axis in range(3)
    },
    "one-hot vectors": one_hot,
}

#: Formulas of a square matrix, whose value may be written over it.
IN_PLACE = {
    "product": lambda a: fn.dot(a, a),
    "product of what is changed": lambda a: fn.dot(fn.exp(a), a) + a,
    "turned": lambda a: fn.transpose(a),
    "taken": lambda a: fn.take(a, fn.argmax(a, 0, keepdims=False), 0),
}
