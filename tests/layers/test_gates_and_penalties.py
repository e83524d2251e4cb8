"""Exact values of gates, penalties, margins and powers; penalties on the weights of a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.testing import LayerHarness, build_layer
from tests.layers.running import run, run_backward
from tests.networks import classifier, data_for, numerical_gradients

RND = np.random.RandomState(5)
X = RND.normal(size=(2, 3, 4))


def test_highway() -> None:
    H, T = RND.normal(size=X.shape), RND.uniform(size=X.shape)
    harness = run(bl.Highway(), {"H": H, "T": T, "x": X})
    np.testing.assert_allclose(harness.get("outputs.default"), T * H + (1 - T) * X)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.H"), T * dy)
    np.testing.assert_allclose(harness.get("input_deltas.T"), (H - X) * dy)
    np.testing.assert_allclose(harness.get("input_deltas.x"), (1 - T) * dy)


def test_one_layer_may_be_all_inputs_of_a_highway() -> None:
    """The same delta is then written three times, and only the first time overwritten."""
    source, gate = bl.Input({"default": ("T", "B", 4)}), bl.Highway()
    hidden = source >> bl.FullyConnected(4, "sigmoid")
    for port in "HTx":
        hidden >> port - gate
    gate >> bl.FullyConnected(2, "tanh") >> bl.Loss()
    check_gradients(source)


@pytest.mark.parametrize("factor", [-0.5, 0, 3])
def test_deltas_scaling(factor: float) -> None:
    harness = run(bl.DeltasScaling(factor), {"default": X})
    np.testing.assert_array_equal(harness.get("outputs.default"), X)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), factor * dy)


def test_binomial_cross_entropy() -> None:
    y, t = RND.uniform(0.1, 0.9, size=X.shape), RND.uniform(size=X.shape)
    harness = run(bl.BinomialCrossEntropy(), {"default": y, "targets": t})
    loss = -(t * np.log(y) + (1 - t) * np.log(1 - y))
    np.testing.assert_allclose(harness.get("outputs.default"), loss.sum(-1, keepdims=True))
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), dy * (y - t) / (y - y**2))


def test_binomial_cross_entropy_clips_hopeless_predictions() -> None:
    y, t = np.array([[[0.0, 1.0, 1.0]]]), np.array([[[1.0, 0.0, 1.0]]])
    harness = run(bl.BinomialCrossEntropy(), {"default": y, "targets": t})
    np.testing.assert_allclose(harness.get("outputs.default"), [[[-2 * np.log(1e-6)]]])
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), [[[-1e6, 1e6, 0]]] * dy)


@pytest.mark.parametrize(
    ("shape", "axes"), [(("T", "B", 2, 2), (2, 3)), (("B", 3), 1), ((3, 2), (0, 1)), ((4,), 0)]
)
@pytest.mark.parametrize(
    ("create", "value", "slope"),
    [(bl.L1Decay, np.abs, np.sign), (bl.L2Decay, lambda x: x**2 / 2, lambda x: x)],
)
def test_decay(create: Any, value: Callable, slope: Callable, shape: tuple, axes: Any) -> None:
    harness = LayerHarness(build_layer(create(), {"default": shape}))
    harness.resize(4, 5)
    values = harness.sample(np.random.RandomState(0))
    x = values["inputs.default"]
    x.flat[0] = 0.0
    harness.forward(values)
    loss = harness.get("outputs.loss")
    scaling = tuple({"T": 4, "B": 5}[d] for d in shape if isinstance(d, str))
    assert loss.shape == (*scaling, 1)
    np.testing.assert_allclose(loss[..., 0], value(x).sum(axes))
    dloss = run_backward(harness)["loss"]
    expected = slope(x) * dloss.reshape(scaling + (1,) * (x.ndim - len(scaling)))
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected)


def test_power() -> None:
    harness = run(bl.Power(2.0, 0.5, 3), {"default": X})
    np.testing.assert_allclose(harness.get("outputs.default"), (2 * X + 0.5) ** 3)
    dy = run_backward(harness)["default"]
    np.testing.assert_allclose(harness.get("input_deltas.default"), 6 * (2 * X + 0.5) ** 2 * dy)
    np.testing.assert_array_equal(run(bl.Power(), {"default": X}).get("outputs.default"), X)


@pytest.mark.parametrize(("power", "slope"), [(0, 0.0), (1, 1.0), (2, 0.0)])
def test_powers_of_zero(power: float, slope: float) -> None:
    harness = run(bl.Power(power=power), {"default": np.zeros((1, 1, 2))})
    np.testing.assert_array_equal(harness.get("outputs.default"), np.full((1, 1, 2), power == 0))
    dy = run_backward(harness)["default"]
    np.testing.assert_array_equal(harness.get("input_deltas.default"), slope * dy)


@pytest.mark.parametrize("margin", [1.0, 0.2])
def test_hinge_loss(margin: float) -> None:
    targets = np.array([[0, 1, 2], [3, 0, 1]])[..., None].astype(float)
    harness = run(bl.HingeLoss(margin), {"default": X, "targets": targets})
    target = np.take_along_axis(X, targets.astype(int), -1)
    is_target = np.arange(4) == targets
    others = np.where(is_target, -np.inf, X)
    loss = np.maximum(0, margin + others.max(-1, keepdims=True) - target)
    assert (loss > 0).any()
    np.testing.assert_array_equal(harness.get("outputs.predictions"), X)
    np.testing.assert_allclose(harness.get("outputs.loss"), loss, atol=1e-15)
    dloss = run_backward(harness)["loss"]
    rival = np.arange(4) == others.argmax(-1)[..., None]
    expected = (rival * 1.0 - is_target) * (loss > 0) * dloss
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected)


def test_no_hinge_loss_beyond_the_margin() -> None:
    x = np.array([[[3.0, 1.9, -4.0]]])
    harness = run(bl.HingeLoss(), {"default": x, "targets": np.zeros((1, 1, 1))})
    np.testing.assert_array_equal(harness.get("outputs.loss"), [[[0.0]]])
    run_backward(harness)
    np.testing.assert_array_equal(harness.get("input_deltas.default"), np.zeros((1, 1, 3)))


@pytest.mark.parametrize(
    ("layer", "act"),
    [
        (bl.GLU(), lambda b: 1 / (1 + np.exp(-b))),
        (bl.GLU("tanh"), np.tanh),
        (bl.SwiGLU(), lambda b: b / (1 + np.exp(-b))),
    ],
)
def test_glu(layer: Any, act: Callable) -> None:
    harness = run(layer, {"default": X})
    np.testing.assert_allclose(harness.get("outputs.default"), X[..., :2] * act(X[..., 2:]))


# -- errors -------------------------------------------------------------------------------------

WRONG = [
    (bl.Highway(), {"H": (3,), "T": (2,), "x": (3,)}, "input 'T': expected (T, B, 3), got (T, B,"),
    (bl.Highway(), {"H": (2,), "T": (3,), "x": (3,)}, "input 'H': expected (T, B, 3), got (T, B,"),
    (bl.DeltasScaling("-"), {"default": (3,)}, "option 'factor': expected a number, got '-'."),
    (
        bl.BinomialCrossEntropy(),
        {"default": (3,), "targets": (1,)},
        "input 'targets': expected (T, B, 3), got (T, B, 1)",
    ),
    (bl.Power(power=None), {"default": (3,)}, "option 'power': expected a number, got None."),
    (
        bl.HingeLoss(-1),
        {"default": (3,), "targets": (1,)},
        "option 'margin': expected a number in [0, inf), got -1.",
    ),
    (
        bl.HingeLoss(),
        {"default": (3,), "targets": (3,)},
        "input 'targets': expected (T, B, 1), got (T, B, 3)",
    ),
    (bl.GLU(), {"default": (3,)}, "input 'default': expected an even last dimension, got (T, B, 3"),
    (bl.GLU("glue"), {"default": (4,)}, "option 'activation': expected one of 'sigmoid'"),
]


@pytest.mark.parametrize(("layer", "shapes", "message"), WRONG)
def test_what_does_not_fit(layer: Any, shapes: dict, message: str) -> None:
    with pytest.raises(LayerValidationError, match=re.escape(message)):
        build_layer(layer, {port: ("T", "B", *shape) for port, shape in shapes.items()})


def test_targets_of_a_hinge_loss_are_checked() -> None:
    layer = build_layer(bl.HingeLoss(), {"default": ("T", "B", 3), "targets": ("T", "B", 1)})
    layer.validate_data("default", X)
    with pytest.raises(LayerValidationError, match=r"whole numbers in \[0, 3\), got 3.0 at .*from"):
        layer.validate_data("targets", np.full((1, 1, 1), 3.0))


# -- in networks --------------------------------------------------------------------------------


def check_gradients(source: Any) -> Network:
    """Compare all gradients of a wiring with central differences."""
    net = Network.from_layer(source, seed=1, handler=DebugHandler(NumpyHandler(np.float64)))
    net.initialize(Gaussian(0.5))
    net.provide_external_data(data_for(net))
    expected = numerical_gradients(net)
    net.forward_pass(training_pass=True)
    net.backward_pass()
    np.testing.assert_allclose(net.get("gradients"), expected, rtol=1e-5, atol=1e-8)
    return net


@pytest.mark.parametrize("decay", [bl.L1Decay, bl.L2Decay])
@pytest.mark.parametrize("layer", [bl.FullyConnected, bl.Lstm])
def test_a_penalty_on_weights_reaches_their_gradient(decay: Any, layer: Any) -> None:
    hidden = layer(3, "tanh", name="Hidden")
    source = classifier(hidden)
    weights = "Wz" if layer is bl.Lstm else "W"
    hidden - f"..parameters.{weights}" >> decay() - "loss" >> bl.Loss(0.7, name="Penalty")
    net = check_gradients(source)
    W = net.get(f"Hidden.parameters.{weights}")
    size = np.abs(W).sum() if decay is bl.L1Decay else (W**2).sum() / 2
    np.testing.assert_allclose(net.get_loss_values()["Penalty"], 0.7 * size)


def test_a_penalty_on_activations_reaches_the_weights() -> None:
    hidden = bl.FullyConnected(3, "tanh")
    source = classifier(hidden)
    hidden >> bl.L1Decay() - "loss" >> bl.Loss(0.3, name="Penalty")
    check_gradients(source)


def test_a_hinge_loss_trains_like_any_other() -> None:
    source, loss = bl.Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)}), bl.HingeLoss()
    source >> bl.FullyConnected(6, "linear") >> bl.SwiGLU() >> loss - "loss" >> bl.Loss()
    source - "targets" >> "targets" - loss
    check_gradients(source)
