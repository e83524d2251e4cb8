"""Connectionist temporal classification: what it refuses, and that it can be learned."""

import numpy as np
import pytest

from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import CTC, FullyConnected, Input, Loss, Recurrent
from brainstorm.network import Network
from brainstorm.testing import build_layer
from tests.layers.running import run, run_backward

RND = np.random.RandomState(7)


def labels(*rows):
    return np.array(rows, dtype=float).T[:, :, None]


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([[1, np.nan, 0]], r"whole numbers in \[0, 3\), got nan at index \(1, 0, 0\)"),
        ([[1, 3, 0]], r"whole numbers in \[0, 3\), got 3.0 at index \(1, 0, 0\)\. 0 is the blank"),
        ([[1, 0, 0], [1, 0, 2]], r"got a label after the 0 at t=1 of sequence 1\. Fill up"),
        ([[1, 0, 0], [2, 2, 1]], r"fit into T=3 steps, but those of sequence 1 need 4: one each"),
    ],
)
def test_bad_labels(rows, match):
    layer = build_layer(CTC(), {"default": ("T", "B", 3), "labels": ("T", "B", 1)})
    layer.validate_data("labels", labels([1, 2, 1], [1, 1, 0], [0, 0, 0]))
    layer.validate_data("default", np.full((3, 2, 3), np.nan))
    with pytest.raises(LayerValidationError, match=rf"'CTC' \(CTC\), input 'labels': .*{match}"):
        layer.validate_data("labels", labels(*rows))
    with pytest.raises(LayerValidationError, match="'mask': expected finite numbers, got -inf"):
        layer.validate_data("mask", np.full((3, 1, 1), -np.inf))


def test_the_derivative_is_scaled_by_the_delta_of_the_loss():
    x = RND.normal(size=(4, 3, 3))
    harness = run(CTC(), {"default": x, "labels": labels([1, 2, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0])})
    derivative = harness.get("internals.derivative")
    scale = run_backward(harness)["loss"][:, 0]
    expected = derivative * scale[:, None]
    np.testing.assert_allclose(harness.get("input_deltas.default"), expected)
    blanks = harness.get("outputs.predictions")[:, 2, 0]
    np.testing.assert_allclose(harness.get("outputs.loss")[2, 0], -np.log(blanks).sum())


def test_a_network_learns_what_is_not_aligned():
    inp = Input({"default": ("T", "B", 2), "labels": ("T", "B", 1), "mask": ("T", "B", 1)})
    ctc, recurrent = CTC(name="Out"), Recurrent(8)
    inp >> recurrent >> FullyConnected(3, "linear") >> ctc - "loss" >> Loss()
    inp - "labels" >> "labels" - ctc
    inp - "mask" >> "mask" - ctc
    inp - "mask" >> "mask" - recurrent
    net = Network.from_layer(inp, seed=1, handler=NumpyHandler(float))
    net.initialize(Gaussian(0.3))
    x = np.repeat(np.eye(2)[[0, 1, 0]], 2, axis=0)[:, None].repeat(2, axis=1)
    mask = np.ones((6, 2, 1))
    mask[4:, 1] = 0
    net.provide_external_data(
        {"default": x, "labels": labels([1, 2, 1, 0, 0, 0], [1, 2, 0, 0, 0, 0]), "mask": mask}
    )
    losses = []
    for _ in range(200):
        net.forward_pass(training_pass=True)
        net.backward_pass()
        losses.append(net.get_loss_values()["total_loss"])
        net.buffer.parameters[:] -= 0.1 * net.buffer.gradients
    assert losses[-1] < 0.1 < losses[0]
