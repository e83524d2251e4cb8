"""What layers that are formulas share, and the closed forms against derived ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.layers._formula import derived
from brainstorm.layers._normalizing import normalization, over_features, uncorrelated
from brainstorm.layers.group_norm_layer import over_group
from brainstorm.optree import Variable, evaluate, formula, gradients
from brainstorm.optree import functions as fn

RND = np.random.RandomState(2)


def test_derived_formulas_of_some_values_by_some_operands() -> None:
    @formula
    def two(a: Any, b: Any, c: Any) -> list[Any]:
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


@pytest.mark.parametrize("centers", [True, False])
@pytest.mark.parametrize(
    ("mean", "shape"), [(over_features, (2, 3, 6)), (over_group(3), (2, 3, 4, 6))]
)
def test_the_closed_form_of_the_norms_is_the_derivative(
    mean: Any, shape: Any, centers: bool
) -> None:
    x, dy = (Variable(shape, np.float64, name) for name in ("x", "dy"))
    gamma = Variable(shape[-1:], np.float64, "gamma")
    y, x_hat, sigma = normalization(mean, 0.1, centers)(x, gamma)
    (expected,) = gradients(y, [x], dy)
    found = uncorrelated(dy * gamma, x_hat, mean, centers) / sigma
    arrays = {v: RND.normal(size=v.shape) for v in (x, dy, gamma)}
    np.testing.assert_allclose(*evaluate([found, expected], arrays), rtol=1e-10, atol=1e-14)


def test_the_mean_over_groups() -> None:
    x = RND.normal(size=(2, 3, 4, 6))
    tree = over_group(2)(v := Variable(x.shape, np.float64))
    (found,) = evaluate([fn.broadcast_to(tree, x.shape)], {v: x})
    expected = x.reshape(2, 3, 4, 2, 3).mean((2, 4), keepdims=True)
    np.testing.assert_allclose(found.reshape(2, 3, 4, 2, 3), expected + np.zeros((4, 1, 3)))
