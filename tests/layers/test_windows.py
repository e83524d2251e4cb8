"""Layers with windows: rounding up, ties, padding alone, and defaults. Values: `test_formulas`."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.testing import build_layer
from tests.layers.running import run, run_backward


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
def test_activation_when_none_is_named(layer, features, activation):
    assert layer.layer.layer_kwargs.pop("activation") == "rel"
    assert build_layer(layer, {"default": ("T", "B", *features)}).activation == activation


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
@pytest.mark.parametrize(("kind", "best"), [("max", np.max), ("avg", np.mean)])
def test_rounded_up_every_cell_is_in_a_window(kind, best, size, kernel, stride, padding, cells):
    x = np.random.RandomState(1).normal(size=(1, 1, size, 1))
    layer = bl.Pooling1D(kernel, kind, stride, padding, ceil_mode=True)
    found = run(layer, {"default": x}).get("outputs.default")[0, 0, :, 0]
    np.testing.assert_allclose(found, [best(x[0, 0, a:b]) for a, b in cells])


def test_the_first_of_equal_maxima_in_a_volume_gets_the_delta():
    harness = run(bl.Pooling3D(2), {"default": np.zeros((1, 1, 2, 2, 2, 1))})
    run_backward(harness)
    assert np.flatnonzero(harness.get("input_deltas.default")).tolist() == [0]


def test_argmax_is_a_flat_index_of_the_first_maximum_and_minus_one_over_padding_alone():
    x = np.zeros((1, 1, 2, 3, 2))
    x[0, 0, 1, 2, 1] = 5.0
    harness = run(bl.Pooling2D((2, 3)), {"default": x})
    assert harness.get("internals.argmax").tolist() == [[[[[0.0, (1 * 3 + 2) * 2 + 1]]]]]
    harness = run(bl.Pooling2D(1, padding=1), {"default": np.full((1, 1, 1, 1, 1), -3.0)})
    output = harness.get("outputs.default")[0, 0, :, :, 0]
    np.testing.assert_array_equal(output, [[0, 0, 0], [0, -3, 0], [0, 0, 0]])
    assert harness.get("internals.argmax")[0, 0, 0, 0, 0] == -1


@pytest.mark.parametrize("create", [bl.Pooling2D, bl.GlobalPooling2D])
def test_average_pooling_has_no_argmax(create):
    window = {"kernel_size": 1} if create is bl.Pooling2D else {}
    for kind, internals in (("max", ["argmax"]), ("avg", [])):
        layer = build_layer(create(type=kind, **window), {"default": ("T", "B", 2, 2, 1)})
        assert list(layer.internal_shapes) == internals


def test_pooling_ignores_activation_function():
    construction = bl.Pooling2D((1, 1))
    construction.layer.layer_kwargs["activation_function"] = "whatever"
    layer = build_layer(construction, {"default": ("T", "B", 2, 2, 1)})
    assert layer.out_shapes["default"].shape == ("T", "B", 2, 2, 1)
