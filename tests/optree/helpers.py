"""What several tests of op-trees need: arrays, and gradients by central differences."""

import itertools
import sys

import numpy as np

from brainstorm.optree import Variable, evaluate, gradients, linearise

STEP = 1e-6


def variables(shapes, dtype=np.float64):
    return [Variable(shape, dtype, name=f"x{i}") for i, shape in enumerate(shapes)]


def random_array(rnd, shape, interval=(-3.0, 3.0), dtype=np.float64):
    return rnd.uniform(*interval, shape).astype(dtype)


def value(tree, bindings):
    return evaluate(tree, bindings)[0]


def calls(function):
    """Return how many functions are called: what work costs, however busy the machine is."""
    counter = itertools.count()
    sys.setprofile(lambda *event: next(counter))
    try:
        function()
    finally:
        sys.setprofile(None)
    return next(counter)


def check_gradients(tree, bindings, wrt=None, rtol=1e-5, seed=0):
    """Compare the gradients with central differences along random directions, in float64."""
    rnd = np.random.RandomState(seed)
    wrt = list(bindings) if wrt is None else wrt
    error = Variable(tree.shape, np.float64, name="error")
    error_value = random_array(rnd, tree.shape)
    found = evaluate(gradients(tree, wrt, error), {**bindings, error: error_value})
    program = linearise(tree)
    for x, gradient in zip(wrt, found, strict=True):
        assert gradient.shape == x.shape
        for _ in range(2):
            direction = random_array(rnd, x.shape, (-1.0, 1.0))
            above = value(program, {**bindings, x: bindings[x] + STEP * direction})
            below = value(program, {**bindings, x: bindings[x] - STEP * direction})
            numerical = np.sum((above - below) / (2 * STEP) * error_value)
            scale = 1 + np.sum(np.abs(gradient * direction))
            np.testing.assert_allclose(
                np.sum(gradient * direction), numerical, rtol=rtol, atol=rtol * scale
            )
