"""Gated recurrent units against a loop over single steps, with a context that is not zero."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.layers import Gru
from brainstorm.testing import build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(3)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (5, 2)])
def test_forward(steps: int, batch: int) -> None:
    x = RND.normal(size=(steps, batch, 3))
    harness = run(Gru(4), {"default": x})
    p = {name: harness.get(f"parameters.{name}") for name in harness.layer.parameter_shapes}
    y = harness.values["context.outputs.default"][0]
    for t in range(steps):
        R = sigmoid(x[t] @ p["Wr"].T + y @ p["Rr"].T + p["br"])
        Z = sigmoid(x[t] @ p["Wz"].T + y @ p["Rz"].T + p["bz"])
        H = np.tanh(x[t] @ p["Wh"].T + p["bh"] + R * (y @ p["Rh"].T + p["bRh"]))
        y = (1 - Z) * H + Z * y
        for name, expected in (("Rb", R), ("Zb", Z), ("Hb", H)):
            np.testing.assert_allclose(harness.get(f"internals.{name}")[t], expected, err_msg=name)
        np.testing.assert_allclose(harness.get("outputs.default")[t], y)


def test_gradients_contain_the_context() -> None:
    harness = run(Gru(3), {"default": RND.normal(size=(1, 2, 4))})
    run_backward(harness)
    state = harness.values["context.outputs.default"][0]
    for weights, before in (("Rr", "Ra"), ("Rz", "Za"), ("Rh", "Qa")):
        delta = harness.get(f"internals.d{before}")[0]
        np.testing.assert_allclose(harness.get(f"gradients.{weights}"), delta.T @ state)


def test_names_and_shapes() -> None:
    layer = build_layer(Gru(5), {"default": ("T", "B", 3)})
    assert " ".join(layer.parameter_shapes) == "Wr Wz Wh Rh Rr Rz bRh br bz bh"
    assert sum(s.feature_size for s in layer.parameter_shapes.values()) == 3 * 5 * 8 + 4 * 5
    assert layer.out_shapes["default"].context_size == 1
    assert " ".join(layer.internal_shapes) == "Qa Ra Za Ha Rb Zb Hb dQa dRa dZa dHa carry"
