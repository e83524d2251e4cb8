"""Formulas that are derived from others."""

import numpy as np

from brainstorm.handlers import NumpyHandler
from brainstorm.layers._formula import derived
from brainstorm.optree import formula

RND = np.random.RandomState(2)


def test_derived_formulas_of_some_values_by_some_operands():
    @formula
    def two(a, b, c):
        return [a * b, b * c]

    a, b, c, error = RND.normal(size=(4, 3))
    out = np.ones((2, 3))
    handler = NumpyHandler(np.float64)
    handler.compute(derived(two, (1,), (0, 1)), [a, b, c, error], list(out), [True, False])
    np.testing.assert_allclose(out, [np.ones(3), c * error])
    both = np.empty((1, 3))
    handler.compute(derived(two, (0, 1), (1,)), [a, b, c, error, a], list(both))
    np.testing.assert_allclose(both[0], a * error + c * a)
    assert derived(two, (1,), (0, 1)) is derived(two, (1,), (0, 1))
