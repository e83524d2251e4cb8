"""LayerNorm, RMSNorm, GroupNorm and LocalResponseNormalization against their formulas."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.testing import build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(3)
IMAGES = RND.normal(2.0, 3.0, size=(2, 3, 4, 3, 6))


def normalized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("x", [IMAGES, IMAGES[..., 0, 0, :]], ids=["image", "vector"])
def test_layer_norm(x: np.ndarray) -> None:
    harness = run(bl.LayerNorm(0.2), {"default": x})
    gamma, beta = harness.get("parameters.gamma"), harness.get("parameters.beta")
    assert gamma.shape == beta.shape == x.shape[2:]
    expected = gamma * normalized(x, tuple(range(2, x.ndim)), 0.2) + beta
    np.testing.assert_allclose(harness.get("outputs.default"), expected)
    assert harness.get("internals.sigma").shape == (2, 3, 1)


def test_layer_norm_gives_mean_0_and_variance_1() -> None:
    x = RND.normal(100.0, 5.0, size=(2, 1, 50))
    harness = run(bl.LayerNorm(), {"default": x}, gamma=np.ones(50), beta=np.zeros(50))
    y = harness.get("outputs.default")
    np.testing.assert_allclose(y.mean(2), 0.0, atol=1e-12)
    np.testing.assert_allclose(y.std(2), 1.0, rtol=1e-5)
    run_backward(harness)
    # Neither a shift nor a factor of x changes y.
    dx = harness.get("input_deltas.default")
    np.testing.assert_allclose(dx.sum(2), 0.0, atol=1e-12)
    np.testing.assert_allclose((dx * (x - x.mean(2, keepdims=True))).sum(2), 0.0, atol=1e-4)


@pytest.mark.parametrize("x", [IMAGES, IMAGES[..., 0, 0, :]], ids=["image", "vector"])
def test_rms_norm(x: np.ndarray) -> None:
    harness = run(bl.RMSNorm(0.2), {"default": x})
    assert harness.paths("parameters") == ["parameters.gamma"]
    square = (x**2).mean(tuple(range(2, x.ndim)), keepdims=True)
    expected = harness.get("parameters.gamma") * x / np.sqrt(square + 0.2)
    np.testing.assert_allclose(harness.get("outputs.default"), expected)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("x", [IMAGES, IMAGES[..., 0, 0, :]], ids=["image", "vector"])
def test_group_norm(x: np.ndarray, groups: int) -> None:
    harness = run(bl.GroupNorm(groups, 0.2), {"default": x})
    size = 6 // groups
    expected = np.empty_like(x)
    for g in range(groups):
        part = slice(g * size, (g + 1) * size)
        expected[..., part] = normalized(x[..., part], tuple(range(2, x.ndim)), 0.2)
    expected = expected * harness.get("parameters.gamma") + harness.get("parameters.beta")
    np.testing.assert_allclose(harness.get("outputs.default"), expected)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_local_response_normalization(size: int) -> None:
    harness = run(bl.LocalResponseNormalization(size, 0.5, 0.6, 2.0), {"default": IMAGES})
    expected = np.empty_like(IMAGES)
    for c in range(6):
        there = slice(max(0, c - size // 2), c + (size - 1) // 2 + 1)
        scale = 2.0 + 0.5 / size * (IMAGES[..., there] ** 2).sum(-1)
        expected[..., c] = IMAGES[..., c] / scale**0.6
    np.testing.assert_allclose(harness.get("outputs.default"), expected)


def test_defaults() -> None:
    layer = build_layer(bl.LocalResponseNormalization(), {"default": ("T", "B", 3)})
    assert (layer.before, layer.behind, layer.strength * 5) == (2, 2, 1e-4)
    assert (layer.beta, layer.k) == (0.75, 1.0)
    for create in (bl.LayerNorm, bl.RMSNorm, lambda: bl.GroupNorm(1)):
        assert build_layer(create(), {"default": ("T", "B", 3)}).epsilon == 1e-5


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (bl.LayerNorm(0), "option 'epsilon': expected a number in (0, inf), got 0."),
        (bl.RMSNorm(-1.0), "option 'epsilon': expected a number in (0, inf), got -1.0."),
        (bl.GroupNorm(0), "option 'num_groups': expected an int >= 1, got 0."),
        (
            bl.GroupNorm(4),
            "input 'default': expected (T, B, ..., C) with C a multiple of 4, got (T, B, 2, 6).",
        ),
        (bl.LocalResponseNormalization(0), "option 'size': expected an int >= 1, got 0."),
        (bl.LocalResponseNormalization(k=0.0), "option 'k': expected a number in (0, inf)"),
        (bl.LocalResponseNormalization(alpha=-1), "option 'alpha': expected a number in [0, inf)"),
        (bl.LocalResponseNormalization(beta="b"), "option 'beta': expected a number, got 'b'."),
    ],
)
def test_errors(layer: Any, text: str) -> None:
    with pytest.raises(LayerValidationError, match=re.escape(text)):
        build_layer(layer, {"default": ("T", "B", 2, 6)})
