"""Exact values of feed-forward layers and losses, against formulas written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.testing import LayerHarness, build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(7)
X = RND.normal(size=(2, 3, 4))

ACTIVATIONS = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "rel": lambda x: np.maximum(x, 0),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "linear": lambda x: x,
    "el": lambda x: np.where(x >= 0, x, np.exp(x) - 1),
    "elu": lambda x: np.where(x >= 0, x, np.exp(x) - 1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_elementwise(name: str) -> None:
    harness = run(bl.Elementwise(name), {"default": X})
    np.testing.assert_allclose(harness.get("outputs.default"), ACTIVATIONS[name](X))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_fully_connected(name: str) -> None:
    W, bias = RND.normal(size=(5, 4)), RND.normal(size=5)
    harness = run(bl.FullyConnected(5, name), {"default": X}, W=W, bias=bias)
    np.testing.assert_allclose(harness.get("outputs.default"), ACTIVATIONS[name](X @ W.T + bias))


def test_fully_connected_backward() -> None:
    harness = run(bl.FullyConnected(5, "linear"), {"default": X})
    dy = run_backward(harness)["default"]
    W = harness.get("parameters.W")
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy @ W)
    np.testing.assert_allclose(harness.get("gradients.W"), np.einsum("tbo,tbi->oi", dy, X))
    np.testing.assert_allclose(harness.get("gradients.bias"), dy.sum((0, 1)))


def test_fully_connected_shapes_and_defaults() -> None:
    layer = build_layer(bl.FullyConnected(), {"default": ("T", "B", 2, 3)})
    assert layer.get_shape("outputs.default").shape == ("T", "B", 2, 3)
    assert list(layer.parameter_shapes) == ["W", "bias"]
    assert layer.get_shape("parameters.W").shape == (6, 6)
    layer = build_layer(bl.FullyConnected((2, 2)), {"default": ("T", "B", 3)})
    assert layer.get_shape("outputs.default").shape == ("T", "B", 2, 2)
    assert layer.activation == "rel"


def test_noop_copies() -> None:
    np.testing.assert_array_equal(run(bl.NoOp(), {"default": X}).get("outputs.default"), X)


def test_loss_divides_by_batch_size_alone() -> None:
    harness = run(bl.Loss(0.5), {"default": X})
    np.testing.assert_allclose(harness.get("outputs.loss"), [0.5 * X.sum() / 3])
    run_backward(harness)
    np.testing.assert_allclose(harness.get("input_deltas.default"), np.full(X.shape, 0.5 / 3))


@pytest.mark.parametrize(
    ("shape", "divisor"), [(("T", "B", 2), 3), (("B", 2, 2), 3), ((2, 2), 1), ((4,), 1)]
)
def test_loss_of_every_buffer_type(shape: tuple, divisor: int) -> None:
    harness = LayerHarness(build_layer(bl.Loss(), {"default": shape}))
    harness.resize(5, 3)
    values = harness.sample(np.random.RandomState(0))
    harness.forward(values)
    expected = values["inputs.default"].sum() / divisor
    np.testing.assert_allclose(harness.get("outputs.loss"), [expected])


def test_softmax_ce() -> None:
    targets = RND.randint(0, 4, size=(2, 3, 1)).astype(float)
    harness = run(bl.SoftmaxCE(), {"default": X, "targets": targets})
    p = np.exp(X) / np.exp(X).sum(-1, keepdims=True)
    onehot = np.eye(4)[targets[..., 0].astype(int)]
    np.testing.assert_allclose(harness.get("outputs.predictions"), p)
    loss = -np.log((p * onehot).sum(-1, keepdims=True))
    np.testing.assert_allclose(harness.get("outputs.loss"), loss)
    dloss = run_backward(harness)["loss"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), (p - onehot) * dloss)


def test_softmax_ce_is_exact_for_hopeless_predictions() -> None:
    x = np.array([[[1000.0, -1000.0, 0.0]]])
    harness = run(bl.SoftmaxCE(), {"default": x, "targets": np.ones((1, 1, 1))})
    np.testing.assert_allclose(harness.get("outputs.loss"), [[[2000]]])
    dloss = run_backward(harness)["loss"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), [[[1, -1, 0]]] * dloss)


def test_sigmoid_ce() -> None:
    targets = RND.uniform(size=X.shape)
    harness = run(bl.SigmoidCE(), {"default": X, "targets": targets})
    y = 1 / (1 + np.exp(-X))
    loss = -(targets * np.log(y) + (1 - targets) * np.log(1 - y))
    np.testing.assert_allclose(harness.get("outputs.predictions"), y)
    np.testing.assert_allclose(harness.get("outputs.loss"), loss)
    dloss = run_backward(harness)["loss"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), (y - targets) * dloss)


def test_sigmoid_ce_is_exact_for_hopeless_and_certain_predictions() -> None:
    x, targets = np.array([[[100.0, -100.0, 50.0]]]), np.array([[[0.0, 1.0, 1.0]]])
    harness = run(bl.SigmoidCE(), {"default": x, "targets": targets})
    np.testing.assert_allclose(harness.get("outputs.loss"), [[[100, 100, np.exp(-50)]]])


def test_squared_error() -> None:
    targets = RND.normal(size=X.shape)
    harness = run(bl.SquaredError(), {"default": X, "targets": targets})
    np.testing.assert_array_equal(harness.get("outputs.predictions"), X)
    np.testing.assert_allclose(harness.get("outputs.loss"), 0.5 * (X - targets) ** 2)
    dloss = run_backward(harness)["loss"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), (X - targets) * dloss)


def test_squared_difference() -> None:
    other = RND.normal(size=X.shape)
    harness = run(bl.SquaredDifference(), {"inputs_1": X, "inputs_2": other})
    np.testing.assert_allclose(harness.get("outputs.default"), (X - other) ** 2)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.inputs_1"), 2 * dy * (X - other))
    np.testing.assert_allclose(harness.get("input_deltas.inputs_2"), -2 * dy * (X - other))


@pytest.mark.parametrize("features", [(1,), (3, 1), (3, 2)])
def test_mask(features: tuple[int, ...]) -> None:
    x = RND.normal(size=(2, 3, 3, 2))
    mask = RND.normal(size=(2, 3, *features))
    full = mask[..., None] if features == (1,) else mask
    harness = run(bl.Mask(), {"default": x, "mask": mask})
    np.testing.assert_allclose(harness.get("outputs.default"), x * full)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy * full)


@pytest.mark.parametrize("handler", [NumpyHandler(np.float64), NativeHandler()])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_a_mask_leaves_out_may_be_anything(wrong: float, handler: NumpyHandler) -> None:
    shapes = {"default": ("T", "B", 3), "mask": ("T", "B", 1)}
    harness = LayerHarness(build_layer(bl.Mask(), shapes), handler)
    harness.resize(2, 1)
    x, mask = np.full((2, 1, 3), [[[1.0]], [[wrong]]]), np.array([[[2.0]], [[0.0]]])
    harness.forward({"inputs.default": x, "inputs.mask": mask})
    np.testing.assert_array_equal(harness.get("outputs.default")[:, 0, 0], [2.0, 0.0])
    run_backward(harness)
    np.testing.assert_array_equal(harness.get("input_deltas.default")[1], np.zeros((1, 3)))


def test_merge_joins_channels() -> None:
    first, second = RND.normal(size=(2, 3, 4, 2)), RND.normal(size=(2, 3, 4, 1))
    harness = run(bl.Merge(), {"inputs_1": first, "inputs_2": second})
    np.testing.assert_array_equal(
        harness.get("outputs.default"), np.concatenate([first, second], -1)
    )
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_1"), dy[..., :2])
    np.testing.assert_array_equal(harness.get("input_deltas.inputs_2"), dy[..., 2:])
