"""Layers together: joined inputs, shared memory, first writers and null deltas of a network."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import Network, initializers
from brainstorm import layers as bl
from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.testing import approx_fprime


def build(handler: Handler) -> Network:
    """Images to convolution, batch norm and pooling; two recurrent layers side by side; classes."""
    source = bl.Input({"default": ("T", "B", 5, 5, 2), "targets": ("T", "B", 1)})
    images = source >> bl.Convolution2D(3, (2, 2), padding=1, activation="tanh") >> bl.BatchNorm()
    pooled = images >> bl.Pooling2D((2, 2), stride=(2, 2))
    joined, loss = bl.FullyConnected(6, "tanh"), bl.SoftmaxCE()
    for recurrent in (bl.Lstm(4), bl.Recurrent(3)):
        pooled >> recurrent >> joined
    joined >> loss - "loss" >> bl.Loss()
    source - "targets" >> "targets" - loss
    network = Network.from_layer(loss)
    network.set_handler(handler)
    network.initialize(initializers.Gaussian(0.5), seed=1)
    return network


@pytest.mark.parametrize(
    "handler",
    [NumpyHandler(np.float64), DebugHandler(NumpyHandler(np.float64))],
    ids=["numpy", "debug"],
)
def test_gradient_of_a_whole_network(handler: Handler) -> None:
    network = build(handler)
    rnd = np.random.RandomState(0)
    images = rnd.normal(size=(3, 2, 5, 5, 2))
    targets = rnd.randint(0, 6, size=(3, 2, 1)).astype(float)
    network.provide_external_data({"default": images, "targets": targets})
    network.forward_pass(training_pass=True)
    network.backward_pass()
    gradient, parameters = network.get("gradients"), network.get("parameters")
    chosen = rnd.permutation(gradient.size)[:40]

    def total_loss(changed: np.ndarray) -> float:
        moved = parameters.copy()
        moved[chosen] = changed
        handler.set_from_numpy(network.buffer.parameters, moved)
        network.forward_pass(training_pass=True)
        return network.get_loss_values()["total_loss"]

    expected = approx_fprime(parameters[chosen], total_loss, 1e-5)
    np.testing.assert_allclose(gradient[chosen], expected, rtol=1e-5, atol=1e-8)
