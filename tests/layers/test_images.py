"""Pooling against loops over single windows, of one to three axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.layers import Pooling1D, Pooling2D, Pooling3D
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.testing import build_layer
from tests.handlers.test_against_reference import avg_forward, max_forward
from tests.layers.running import run, run_backward

small = st.integers(1, 3)


KINDS = {1: Pooling1D, 2: Pooling2D, 3: Pooling3D}


@st.composite
def windows(draw: st.DrawFn) -> tuple[Any, ...]:
    """Image size, kernel, stride and padding of one to three axes that fit together."""
    axes = draw(st.integers(1, 3))
    kernel, stride = (draw(st.tuples(*[small] * axes)) for _ in range(2))
    side = st.tuples(st.integers(0, 2), st.integers(0, 2))
    padding = draw(st.tuples(*[side] * axes))
    least = (max(1, k - sum(p)) for k, p in zip(kernel, padding, strict=True))
    return tuple(draw(st.integers(n, n + 3)) for n in least), kernel, stride, padding


def pooling(kernel: Any, kind: str, stride: Any, padding: Any, **options: Any) -> Any:
    """Return a layer for as many axes as the tuples have."""
    values = kernel, stride, padding
    kernel, stride, padding = (v if len(v) > 1 else v[0] for v in values)
    return KINDS[len(values[0])](kernel, kind, stride, padding, **options)


@settings(max_examples=60)
@given(windows(), st.sampled_from(["max", "avg"]))
def test_pooling(window: tuple[Any, ...], kind: str) -> None:
    size, kernel, stride, padding = window
    x = np.random.RandomState(0).normal(size=(1, 2, *size, 2))
    harness = run(pooling(kernel, kind, stride, padding), {"default": x})
    found = harness.get("outputs.default")
    empty, options = np.zeros(found[0].shape), (padding, stride)
    if kind == "max":
        expected, _ = max_forward(x[0], kernel, empty, *options, empty)
    else:
        expected = avg_forward(x[0], kernel, empty, *options)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)
    counts = [
        (n + sum(p) - k) // s + 1 for n, p, k, s in zip(size, padding, kernel, stride, strict=True)
    ]
    assert found.shape[2:-1] == tuple(counts)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "cells"),
    [
        (5, 2, 2, 0, [(0, 2), (2, 4), (4, 5)]),
        (6, 3, 2, 0, [(0, 3), (2, 5), (4, 6)]),
        (4, 2, 2, 0, [(0, 2), (2, 4)]),
        (1, 2, 2, 0, [(0, 1)]),
        (4, 2, 3, (0, 1), [(0, 2), (3, 4)]),
        (3, 2, 2, (1, 0), [(0, 1), (1, 3)]),
        (3, 1, 2, (0, 2), [(0, 1), (2, 3)]),  # none begins behind the last cell
        (4, 1, 2, (0, 1), [(0, 1), (2, 3)]),
    ],
)
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_rounded_up_every_cell_is_in_a_window(
    kind: str, size: int, kernel: int, stride: int, padding: Any, cells: list[tuple[int, int]]
) -> None:
    x = np.random.RandomState(1).normal(size=(1, 1, size, 1))
    layer = Pooling1D(kernel, kind, stride, padding, ceil_mode=True)
    found = run(layer, {"default": x}).get("outputs.default")[0, 0, :, 0]
    best = np.max if kind == "max" else np.mean
    np.testing.assert_allclose(found, [best(x[0, 0, a:b]) for a, b in cells])


def test_the_first_of_equal_maxima_in_a_volume_gets_the_delta() -> None:
    x = np.zeros((1, 1, 2, 2, 2, 1))
    harness = run(Pooling3D(2), {"default": x})
    run_backward(harness)
    assert np.flatnonzero(harness.get("input_deltas.default")).tolist() == [0]


def test_argmax_is_a_flat_index_of_the_first_maximum() -> None:
    x = np.zeros((1, 1, 2, 3, 2))
    x[0, 0, 1, 2, 1] = 5.0
    harness = run(Pooling2D((2, 3)), {"default": x})
    assert harness.get("internals.argmax").tolist() == [[[[[0.0, (1 * 3 + 2) * 2 + 1]]]]]


def test_window_over_padding_alone_gives_zero() -> None:
    harness = run(Pooling2D((1, 1), "max", padding=1), {"default": np.full((1, 1, 1, 1, 1), -3.0)})
    output = harness.get("outputs.default")[0, 0, :, :, 0]
    np.testing.assert_array_equal(output, [[0, 0, 0], [0, -3, 0], [0, 0, 0]])
    assert harness.get("internals.argmax")[0, 0, 0, 0, 0] == -1


def test_average_pooling_has_no_argmax() -> None:
    assert not build_layer(
        Pooling2D((1, 1), "avg"), {"default": ("T", "B", 2, 2, 1)}
    ).internal_shapes


def test_pooling_ignores_activation_function() -> None:
    construction = Pooling2D((1, 1))
    construction.layer.layer_kwargs["activation_function"] = "whatever"
    layer = build_layer(construction, {"default": BufferStructure("T", "B", 2, 2, 1)})
    assert layer.out_shapes["default"].shape == ("T", "B", 2, 2, 1)
