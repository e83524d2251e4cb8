"""Convolutions over one, two and three axes, and transposed ones, against loops over cells."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm import layers as bl
from brainstorm.testing import build_layer
from tests.handlers.test_against_reference import conv_forward
from tests.layers.running import run

#: Number of axes to construction function.
KINDS = {1: bl.Convolution1D, 2: bl.Convolution2D, 3: bl.Convolution3D}


@pytest.mark.parametrize("axes", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_against_loops(axes: int, data: st.DataObject) -> None:
    small = st.integers(1, 3)
    kernel, stride, dilation = (data.draw(st.tuples(*[small] * axes)) for _ in range(3))
    side = st.integers(0, 2)
    padding = data.draw(st.tuples(*[st.tuples(side, side)] * axes))
    groups = data.draw(st.integers(1, 2))
    filters = groups * data.draw(st.integers(1, 2))
    extents = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, extent) + data.draw(st.integers(0, 2)) for extent in extents]
    x = np.random.RandomState(0).normal(size=(2, 1, *size, 2 * groups))
    options = [v if axes > 1 else v[0] for v in (kernel, stride, padding, dilation)]
    layer = KINDS[axes](filters, *options[:3], "linear", dilation=options[3], groups=groups)
    harness = run(layer, {"default": x})
    W, bias = harness.get("parameters.W"), harness.get("parameters.bias")
    assert W.shape == (filters, *kernel, 2)
    found = harness.get("outputs.default")[:, 0]
    options = padding, stride, dilation, groups, "linear"
    expected = conv_forward(x[:, 0], W, bias, np.zeros(found.shape), *options)
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "features", "activation"),
    [
        (bl.FullyConnected(1), (2,), "rel"),
        (bl.Convolution1D(1, 1), (2, 1), "rel"),
        (bl.Convolution2D(1, 1), (2, 2, 1), "tanh"),
        (bl.Convolution3D(1, 1), (2, 2, 2, 1), "rel"),
        (bl.ConvolutionTranspose2D(1, 1), (2, 2, 1), "rel"),
    ],
)
def test_activation_when_none_is_named(layer: Any, features: Any, activation: str) -> None:
    assert layer.layer.layer_kwargs.pop("activation") == "rel"
    assert build_layer(layer, {"default": ("T", "B", *features)}).activation == activation


# -- transposed ----------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    kernel=st.tuples(st.integers(2, 4), st.integers(2, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.tuples(st.integers(0, 1), st.integers(0, 1))] * 2),
    extra=st.integers(0, 2),
)
def test_transposed_convolution(
    kernel: tuple[int, int], stride: tuple[int, int], padding: Any, extra: int
) -> None:
    extra = min(extra, min(stride) - 1)
    x = np.random.RandomState(0).normal(size=(1, 2, 2, 3, 2))
    layer = bl.ConvolutionTranspose2D(3, kernel, stride, padding, extra, "linear")
    harness = run(layer, {"default": x})
    W, bias = harness.get("parameters.W"), harness.get("parameters.bias")
    assert W.shape == (2, *kernel, 3)
    rows, columns = ((n - 1) * s + k for n, s, k in zip((2, 3), stride, kernel, strict=True))
    full = np.zeros((2, rows + extra, columns + extra, 3))
    for p, q, i, j in itertools.product(range(2), range(3), *map(range, kernel)):
        full[:, p * stride[0] + i, q * stride[1] + j] += x[0, :, p, q] @ W[:, i, j]
    (top, bottom), (left, right) = padding
    inner = slice(top, rows + extra - bottom), slice(left, columns + extra - right)
    np.testing.assert_allclose(
        harness.get("outputs.default")[0], full[:, inner[0], inner[1]] + bias, atol=1e-12
    )
