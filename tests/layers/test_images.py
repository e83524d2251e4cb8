"""Pooling of images against loops over single windows."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.layers import Pooling2D
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.testing import build_layer
from tests.layers.running import run

small = st.integers(1, 3)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    """Image size, kernel, stride and padding that fit together."""
    kernel, stride = (draw(small), draw(small)), (draw(small), draw(small))
    padding = draw(st.integers(0, 2))
    size = tuple(draw(st.integers(max(1, k - 2 * padding), 6)) for k in kernel)
    return size, kernel, stride, padding


def padded(image: np.ndarray, padding: int, value: float) -> np.ndarray:
    return np.pad(image, ((padding, padding), (padding, padding), (0, 0)), constant_values=value)


def slide(image: np.ndarray, kernel: tuple[int, int], stride: tuple[int, int]) -> np.ndarray:
    """Return (rows, cols, kernel rows, kernel cols, C)."""
    counts = [(n - k) // s + 1 for n, k, s in zip(image.shape, kernel, stride, strict=False)]
    out = np.empty((*counts, *kernel, image.shape[-1]))
    for p, q in itertools.product(*map(range, counts)):
        top, left = p * stride[0], q * stride[1]
        out[p, q] = image[top : top + kernel[0], left : left + kernel[1]]
    return out


@settings(max_examples=30, deadline=None)
@given(windows(), st.sampled_from(["max", "avg"]))
def test_pooling(window: tuple, kind: str) -> None:
    size, kernel, stride, padding = window
    x = np.random.RandomState(0).normal(size=(2, 2, *size, 2))
    bench = run(Pooling2D(kernel, kind, stride, padding), {"default": x})
    for t, b in itertools.product(range(2), range(2)):
        patches = slide(padded(x[t, b], padding, np.nan), kernel, stride)
        valid = ~np.isnan(patches)
        if kind == "max":
            expected = np.where(valid, patches, -np.inf).max((2, 3))
            expected[~valid.any((2, 3))] = 0.0
        else:
            expected = np.nansum(patches, (2, 3)) / np.maximum(valid.sum((2, 3)), 1)
        np.testing.assert_allclose(bench.get("outputs.default")[t, b], expected, atol=1e-12)


def test_argmax_is_a_flat_index_of_the_first_maximum() -> None:
    x = np.zeros((1, 1, 2, 3, 2))
    x[0, 0, 1, 2, 1] = 5.0
    bench = run(Pooling2D((2, 3)), {"default": x})
    assert bench.get("internals.argmax").tolist() == [[[[[0.0, (1 * 3 + 2) * 2 + 1]]]]]


def test_window_over_padding_alone_gives_zero() -> None:
    bench = run(Pooling2D((1, 1), "max", padding=1), {"default": np.full((1, 1, 1, 1, 1), -3.0)})
    output = bench.get("outputs.default")[0, 0, :, :, 0]
    np.testing.assert_array_equal(output, [[0, 0, 0], [0, -3, 0], [0, 0, 0]])
    assert bench.get("internals.argmax")[0, 0, 0, 0, 0] == -1


def test_average_pooling_has_no_argmax() -> None:
    assert not build_layer(
        Pooling2D((1, 1), "avg"), {"default": ("T", "B", 2, 2, 1)}
    ).internal_shapes


def test_pooling_ignores_activation_function() -> None:
    construction = Pooling2D((1, 1))
    construction.layer.layer_kwargs["activation_function"] = "whatever"
    layer = build_layer(construction, {"default": BufferStructure("T", "B", 2, 2, 1)})
    assert layer.out_shapes["default"].shape == ("T", "B", 2, 2, 1)
