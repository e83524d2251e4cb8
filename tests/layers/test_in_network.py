"""Layers of many types together: joined inputs, shared memory, first writers, null deltas."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import NumpyHandler
from brainstorm.layers.noop_layer import NoOpLayerImpl
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import approx_fprime
from tests.networks import checked, run_passes, wire_input, wire_loss


def two_recurrent_layers():
    """Images to convolution, batch norm and pooling; two recurrent layers side by side; classes."""
    source = wire_input((5, 5, 2))
    images = source >> bl.Convolution2D(3, (2, 2), padding=1, activation="tanh") >> bl.BatchNorm()
    pooled = images >> bl.Pooling2D((2, 2), stride=(2, 2))
    joined = bl.FullyConnected(6, "tanh")
    for recurrent in (bl.Lstm(4), bl.Recurrent(3)):
        pooled >> recurrent >> joined
    return wire_loss(source, joined)


def many_parts():
    """Images to parts that are split, joined by residual connections and gates, and reshaped."""
    source = wire_input((5, 5, 2))
    images = source >> bl.ConvolutionTranspose2D(4, (2, 2), (2, 1), activation="tanh")
    images = images >> bl.GroupNorm(2) >> bl.Convolution2D(4, (2, 2), dilation=(3, 1), groups=2)
    parts, gated, total = bl.Split((2, 2)), bl.Multiply(), bl.Add(3)
    images >> parts - "outputs_1" >> "inputs_1" - gated
    parts - "outputs_2" >> "inputs_2" - gated >> "inputs_1" - total
    parts - "outputs_2" >> "inputs_2" - total
    images >> bl.ChannelPooling(2, "avg") >> "inputs_3" - total
    cut = total >> bl.LocalResponseNormalization(2, 0.5) >> bl.Crop((6, 3))
    lists = cut >> bl.Reshape((3, 2, 3, 2)) >> bl.Convolution3D(2, (1, 2, 2)) >> bl.Reshape((6, 2))
    rows = lists >> bl.Convolution1D(6, 2, activation="tanh") >> bl.LayerNorm() >> bl.Slice(1, 5, 0)
    rows = rows >> bl.RMSNorm() >> bl.Reshape((2, 2, 6)) >> bl.GlobalPooling2D("avg")
    return wire_loss(source, rows)


@pytest.mark.parametrize("wire", [two_recurrent_layers, many_parts])
def test_gradient_of_a_whole_network(wire):
    """That a `DebugHandler` finds nothing in them: tests/structure/test_compact.py."""
    network = checked(wire(), NumpyHandler(np.float64))
    gradient, parameters = run_passes(network), network.get("parameters")
    chosen = np.random.RandomState(0).permutation(gradient.size)[:25]

    def total_loss(changed):
        moved = parameters.copy()
        moved[chosen] = changed
        network.buffer.parameters[:] = moved
        network.forward_pass(training_pass=True)
        return network.get_loss_values()["total_loss"]

    expected = approx_fprime(parameters[chosen], total_loss, 1e-5)
    np.testing.assert_allclose(gradient[chosen], expected, rtol=1e-5, atol=1e-8)


class ForgetsSuperLayerImpl(NoOpLayerImpl):
    def set_handler(self, handler):
        self.stream = handler.create_random_stream(1)


def test_a_set_handler_of_ones_own_may_do_without_that_of_the_base():
    source, own = wire_input((2,)), ConstructionWrapper.create(ForgetsSuperLayerImpl, name="Own")
    net = checked(wire_loss(source, source >> own))
    assert net.layers["Own"].handler is net.handler
