"""Checks on the graph as a whole."""

import logging

import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.layers import FullyConnected, Input, Layer, Loss, SoftmaxCE
from brainstorm.network import Network
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper


def test_a_loss_that_no_parameter_leads_to():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    out = SoftmaxCE(name="Out")
    inp >> FullyConnected(3, name="Fc") >> out - "predictions" >> Loss()
    inp - "targets" >> "targets" - out
    with pytest.raises(
        NetworkValidationError, match="no path leads from a parameter to a loss: 'Fc' cannot"
    ):
        Network.from_layer(inp)


def test_a_layer_that_is_never_trained_is_a_warning(caplog):
    inp = Input({"default": ("T", "B", 4)})
    inp >> FullyConnected(3, name="Trained") >> Loss()
    inp >> FullyConnected(3, name="Idle")
    with caplog.at_level(logging.WARNING, logger="brainstorm"):
        Network.from_layer(inp)
    assert "no path leads from 'Idle' to a loss: never trained" in caplog.text


def test_networks_without_a_loss_or_without_parameters_are_fine():
    inp = Input({"default": ("T", "B", 4)})
    inp >> FullyConnected(3)
    Network.from_layer(inp)
    inp = Input({"default": ("T", "B", 4)})
    inp >> Loss()
    Network.from_layer(inp)


class LonelySourceLayerImpl(Layer):
    expected_inputs = {}

    def setup(self, kwargs, in_shapes):
        return {"default": BufferStructure("T", "B", 2)}, {}, {}


def test_what_the_input_does_not_reach():
    inp = Input({"default": ("T", "B", 4)})
    source = ConstructionWrapper.create(LonelySourceLayerImpl, name="Source")
    architecture = {
        "Input": {
            "@type": "Input",
            "@outgoing_connections": [],
            "out_shapes": {"default": ("T", "B", 4)},
        },
        "Source": {"@type": "LonelySource", "@outgoing_connections": ["Lost"]},
        "Lost": {"@type": "FullyConnected", "@outgoing_connections": [], "size": 3},
    }
    with pytest.raises(NetworkValidationError, match="no path leads from the Input to 'Lost'"):
        Network.from_architecture(architecture)
    joint = FullyConnected(3)
    inp >> joint
    source >> joint
    Network.from_layer(inp)
