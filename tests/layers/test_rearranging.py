"""Layers that select, join and rearrange: exact values of outputs and deltas, and errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.network import Network
from brainstorm.testing import build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(5)
IMAGES = RND.normal(size=(2, 3, 4, 5, 6))
VECTORS = RND.normal(size=(2, 3, 6))


@pytest.mark.parametrize(
    ("layer", "x", "part"),
    [
        (bl.Crop((2, 3)), IMAGES, np.s_[:, :, 1:3, 1:4]),
        (bl.Crop((1, 2)), IMAGES, np.s_[:, :, 1:2, 1:3]),
        (bl.Crop((2, 3), (0, 2)), IMAGES, np.s_[:, :, 0:2, 2:5]),
        (bl.Slice(1, 4), VECTORS, np.s_[..., 1:4]),
        (bl.Slice(2, 6), IMAGES, np.s_[..., 2:6]),
        (bl.Slice(1, 2, 0), IMAGES, np.s_[:, :, 1:2]),
        (bl.Slice(0, 4, axis=-2), IMAGES, np.s_[:, :, :, 0:4]),
    ],
)
def test_parts(layer: Any, x: np.ndarray, part: Any) -> None:
    harness = run(layer, {"default": x})
    np.testing.assert_array_equal(harness.get("outputs.default"), x[part])
    dy = run_backward(harness)["default"]
    dx = np.zeros_like(x)
    dx[part] = dy
    np.testing.assert_array_equal(harness.get("input_deltas.default"), dx)


@pytest.mark.parametrize(
    ("layer", "x", "padding"),
    [
        (bl.Padding(1, 0.5), IMAGES, ((1, 1), (1, 1))),
        (bl.Padding(((0, 2), 1), -1), IMAGES, ((0, 2), (1, 1))),
        (bl.Padding([2, 0]), VECTORS[..., None], ((2, 0),)),
        (bl.Padding(0), IMAGES, ((0, 0), (0, 0))),
    ],
)
def test_padding(layer: Any, x: np.ndarray, padding: Any) -> None:
    harness = run(layer, {"default": x})
    around = ((0, 0), (0, 0), *padding, (0, 0))
    expected = np.pad(x, around, constant_values=layer.layer.layer_kwargs["value"])
    np.testing.assert_array_equal(harness.get("outputs.default"), expected)
    dy = run_backward(harness)["default"]
    inner = tuple(slice(a, size - b) for (a, b), size in zip(around, dy.shape, strict=True))
    np.testing.assert_array_equal(harness.get("input_deltas.default"), dy[inner])


@pytest.mark.parametrize("order", ["CRD", "DCR"])
def test_depth_to_space_and_back(order: str) -> None:
    x = RND.normal(size=(2, 1, 2, 3, 12))
    wide = run(bl.DepthToSpace(2, order), {"default": x}).get("outputs.default")
    for p, q, i, j, c in np.ndindex(2, 3, 2, 2, 3):
        channel = (c * 2 + i) * 2 + j if order == "CRD" else (i * 2 + j) * 3 + c
        np.testing.assert_array_equal(wide[:, :, p * 2 + i, q * 2 + j, c], x[:, :, p, q, channel])
    back = run(bl.SpaceToDepth(2, order), {"default": wide}).get("outputs.default")
    np.testing.assert_array_equal(back, x)


def test_upsampling_to_the_nearest() -> None:
    y = run(bl.Upsampling2D((2, 3)), {"default": IMAGES}).get("outputs.default")
    np.testing.assert_array_equal(y, IMAGES.repeat(2, axis=2).repeat(3, axis=3))
    y = run(bl.Upsampling2D(size=(3, 7)), {"default": IMAGES}).get("outputs.default")
    np.testing.assert_array_equal(y, IMAGES[:, :, [0, 1, 2]][:, :, :, [0, 0, 1, 2, 2, 3, 4]])


def test_bilinear_upsampling_is_exact_on_a_plane_but_at_its_edges() -> None:
    rows, columns = np.mgrid[0:4.0, 0:3.0]
    x = (2 * rows - 3 * columns).reshape(1, 1, 4, 3, 1)
    y = run(bl.Upsampling2D(2, "bilinear"), {"default": x}).get("outputs.default")
    rows, columns = np.clip((np.mgrid[0:8.0, 0:6.0] + 0.5) / 2 - 0.5, 0, [[[3]], [[2]]])
    np.testing.assert_allclose(y[0, 0, :, :, 0], 2 * rows - 3 * columns, atol=1e-12)


@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
def test_upsampling_keeps_nan_and_infinity_where_they_are(kind: str) -> None:
    for bad in (np.nan, np.inf):
        x = np.ones((1, 1, 5, 1, 1))
        x[0, 0, 0] = bad
        inp = bl.Input({"default": ("T", "B", 5, 1, 1)})
        net = Network.from_layer(inp >> bl.Upsampling2D((2, 1), kind))
        found, reached = net.predict(x).ravel(), 3 if kind == "bilinear" else 2
        assert np.isfinite(found).tolist() == [False] * reached + [True] * (10 - reached)


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (bl.Padding(-1), "option 'padding': expected an int >= 0, or for each of 2 axes one or two "
         "of them (before, after), got -1."),
        (bl.Padding((1, 2, 3)), "option 'padding': expected an int >= 0, or for each of 2 axes"),
        (bl.Padding(1, "0"), "option 'value': expected a number"),
        (bl.Padding(1, np.nan), "option 'value': expected a number, got nan"),
        (bl.DepthToSpace(2), "input 'default': expected (T, B, H, W, C) with C a multiple of 4, "
         "got (T, B, 4, 5, 6)."),
        (bl.DepthToSpace(0), "option 'block': expected an int >= 1, got 0."),
        (bl.DepthToSpace(2, "RCD"), "option 'order': expected one of 'CRD', 'DCR', got 'RCD'."),
        (bl.SpaceToDepth(2), "input 'default': expected (T, B, H, W, C) with H and W multiples of "
         "2, got (T, B, 4, 5, 6). Use Padding or Crop."),
        (bl.Upsampling2D(), "expected a scale or a size, got scale=None and size=None."),
        (bl.Upsampling2D(2, size=3), "expected a scale or a size, got scale=2 and size=3."),
        (bl.Upsampling2D(2**20), "expected at most 1048576 rows and columns of the output, got "
         "4194304 and 5242880. Use a smaller scale or size."),
        (bl.Upsampling2D(1.5), "option 'scale': expected an int >= 1 or two of them (rows, "
         "columns) or None, got 1.5."),
        (bl.Upsampling2D(2, "cubic"), "'type': expected one of 'nearest', 'bilinear', got 'cubic'"),
        (bl.Pooling2D(2, padding=((1, 2, 3), 0)), "option 'padding': expected an int >= 0, or for "
         "each of 2 axes one or two of them (before, after), got ((1, 2, 3), 0)."),
        (bl.Pooling2D(2, ceil_mode=2), "option 'ceil_mode': expected one of False, True, got 2."),
        (bl.Pooling2D(9, stride=2, ceil_mode=True), "with H >= "),
    ],
)  # fmt: skip
def test_what_image_layers_refuse(layer: Any, text: str) -> None:
    with pytest.raises(LayerValidationError, match=re.escape(text)):
        build_layer(layer, {"default": ("T", "B", 4, 5, 6)})


def test_what_poolings_of_other_axes_refuse() -> None:
    for layer, shape, text in (
        (bl.Padding(1), (3,), "expected (T, B, ..., C) with at least one axis before C, got"),
        (bl.Pooling1D(2, padding=(1, -1)), (3, 2), "an int >= 0 or two of them (before, after)"),
        (bl.Pooling1D(4), (3, 2), "expected (T, B, L, C) with L >= 4, got (T, B, 3, 2). Use a "
         "smaller kernel_size or padding=1."),
        (bl.Pooling1D((2, 2)), (3, 2), "option 'kernel_size': expected an int >= 1, got (2, 2)."),
        (bl.Pooling3D(4), (4, 4, 3, 2), "(T, B, D, H, W, C) with W >= 4, got (T, B, 4, 4, 3, 2)"),
        (bl.Pooling3D((2, 2)), (4, 4, 3, 2), "or three of them (depth, rows, columns), got (2, 2)"),
        (bl.Pooling3D(2), (4, 3, 2), "expected (T, B, D, H, W, C), got (T, B, 4, 3, 2)"),
    ):  # fmt: skip
        with pytest.raises(LayerValidationError, match=re.escape(text)):
            build_layer(layer, {"default": ("T", "B", *shape)})


@pytest.mark.parametrize(
    ("x", "shape"), [(IMAGES, 120), (IMAGES, (6, 4, 5)), (VECTORS, (3, 2)), (VECTORS, [1, 1, 6])]
)
def test_reshape(x: np.ndarray, shape: Any) -> None:
    harness = run(bl.Reshape(shape), {"default": x})
    new = (2, 3, *np.atleast_1d(shape))
    np.testing.assert_array_equal(harness.get("outputs.default"), x.reshape(new))
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.default"), dy.reshape(x.shape))


@pytest.mark.parametrize("x", [VECTORS, IMAGES])
def test_split(x: np.ndarray) -> None:
    harness = run(bl.Split((1, 3, 2)), {"default": x})
    outputs = [harness.get(f"outputs.outputs_{i}") for i in (1, 2, 3)]
    np.testing.assert_array_equal(outputs[1], x[..., 1:4])
    np.testing.assert_array_equal(np.concatenate(outputs, axis=-1), x)
    dy = run_backward(harness)
    expected = np.concatenate([dy[f"outputs_{i}"] for i in (1, 2, 3)], axis=-1)
    np.testing.assert_array_equal(harness.get("input_deltas.default"), expected)


@pytest.mark.parametrize("count", [2, 3, 11])
def test_add_and_multiply(count: int) -> None:
    inputs = {f"inputs_{i}": RND.normal(size=(2, 3, 4)) for i in range(1, count + 1)}
    harness = run(bl.Add(count), inputs)
    np.testing.assert_allclose(harness.get("outputs.default"), sum(inputs.values()))
    dy = run_backward(harness)["default"]
    for port in inputs:
        np.testing.assert_array_equal(harness.get(f"input_deltas.{port}"), dy)
    harness = run(bl.Multiply(count), inputs)
    np.testing.assert_allclose(
        harness.get("outputs.default"), np.prod(list(inputs.values()), axis=0)
    )
    dy = run_backward(harness)["default"]
    for port in inputs:
        others = np.prod([x for other, x in inputs.items() if other != port], axis=0)
        np.testing.assert_allclose(harness.get(f"input_deltas.{port}"), dy * others)


def test_delta_of_a_product_with_zeros() -> None:
    x = np.ones((1, 1, 2))
    harness = run(bl.Multiply(3), {"inputs_1": x, "inputs_2": x * 0, "inputs_3": x * 2})
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_2"), dy * 2)
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_1"), dy * 0)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_global_pooling(kind: str) -> None:
    harness = run(bl.GlobalPooling2D(kind), {"default": IMAGES})
    reduce = np.max if kind == "max" else np.mean
    np.testing.assert_allclose(harness.get("outputs.default"), reduce(IMAGES, axis=(2, 3)))
    assert harness.paths("internals") == (["internals.argmax"] if kind == "max" else [])


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("x", [VECTORS, IMAGES])
def test_channel_pooling(x: np.ndarray, kind: str) -> None:
    harness = run(bl.ChannelPooling(3, kind), {"default": x})
    groups = x.reshape(*x.shape[:-1], 2, 3)
    expected = (np.max if kind == "max" else np.mean)(groups, axis=-1)
    np.testing.assert_allclose(harness.get("outputs.default"), expected)
    if kind == "max":
        first = groups.argmax(-1) + np.array([0, 3])
        np.testing.assert_array_equal(harness.get("internals.argmax"), first)


IMAGE = {"default": ("T", "B", 4, 5, 6)}
PAIR = {"inputs_1": ("T", "B", 3), "inputs_2": ("T", "B", 3)}


@pytest.mark.parametrize(
    ("layer", "shapes", "text"),
    [
        (bl.Crop((5, 1)), IMAGE, "with H >= 5, got (T, B, 4, 5, 6). Use a smaller size or offset."),
        (bl.Crop((2, 3), (0, 3)), IMAGE, "expected (T, B, H, W, C) with W >= 6, got"),
        (
            bl.Crop(True),
            IMAGE,
            "option 'size': expected an int >= 1 or two of them (rows, columns), got True.",
        ),
        (
            bl.Crop((1, 1), -1),
            IMAGE,
            "option 'offset': expected an int >= 0 or two of them (rows, columns) or No",
        ),
        (bl.Reshape((7, 2)), IMAGE, "expected 14 features, for shape=(7, 2), got (T, B, 4, 5, 6)."),
        (bl.Reshape(-1), IMAGE, "option 'shape': expected a positive int or a tuple of positive"),
        (bl.Slice(2, 2), IMAGE, "option 'start': expected less than stop=2, got 2."),
        (
            bl.Slice(2, 6, 1),
            IMAGE,
            "expected at least 6 on feature dimension 1, got (T, B, 4, 5, 6",
        ),
        (bl.Slice(0, 1, 3), IMAGE, "expected a feature dimension 3, got (T, B, 4, 5, 6)."),
        (bl.Slice(0, 1, -4), IMAGE, "expected a feature dimension -4, got (T, B, 4, 5, 6)."),
        (bl.Slice(-1, 1), IMAGE, "option 'start': expected an int >= 0, got -1."),
        (
            bl.Split((2, 3)),
            IMAGE,
            "expected (T, B, ..., 5), the sum of sizes=(2, 3), got (T, B, 4, 5, 6).",
        ),
        (bl.ChannelPooling(4), IMAGE, "expected (T, B, ..., C) with C a multiple of 4, got (T, B"),
        (bl.GlobalPooling2D("min"), IMAGE, "option 'type': expected one of 'max', 'avg', got 'min"),
        (bl.Add(1), PAIR, "option 'num_inputs': expected an int >= 2, got 1."),
        (bl.Add(3), PAIR, "input 'inputs_3': expected (T, B, ...), but nothing is connected."),
        (
            bl.Multiply(2),
            {**PAIR, "inputs_3": ("T", "B", 3)},
            "unknown input 'inputs_3'. Choices are: inputs_1, inputs_2.",
        ),
        (
            bl.Multiply(),
            {**PAIR, "inputs_2": ("T", "B", 4)},
            "input 'inputs_2': expected (T, B, 3), got (T, B, 4).",
        ),
    ],
)
def test_errors(layer: Any, shapes: dict, text: str) -> None:
    with pytest.raises(LayerValidationError, match=re.escape(text)):
        build_layer(layer, shapes)
