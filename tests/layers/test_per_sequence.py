"""Layers on inputs ('B', ...): one vector per sequence, seen as a single time step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.testing import build_layer

RND = np.random.RandomState(3)
#: A layer that looks at time, and its inputs without T.
LOOKING = [
    (bl.Recurrent(2), {"default": ("B", 3)}),
    (bl.Lstm(2), {"default": ("B", 3), "mask": ("B", 1)}),
    (bl.Gru(2), {"default": ("B", 3)}),
    (bl.Clockwork(2), {"default": ("B", 3)}),
    (bl.ClockworkLstm(2), {"default": ("B", 3)}),
    (bl.MultiHeadSelfAttention(1), {"default": ("B", 3)}),
    (bl.PositionalEncoding(), {"default": ("B", 3)}),
    (bl.LearnedPositionalEncoding(4), {"default": ("B", 3)}),
    (bl.Reverse(), {"default": ("B", 3)}),
    (bl.CTC(), {"default": ("B", 3), "labels": ("B", 1)}),
    (bl.TimePooling(), {"default": ("B", 3)}),
]


@pytest.mark.parametrize(("layer", "shapes"), LOOKING, ids=lambda x: getattr(x, "layer", None))
def test_layers_that_look_at_time_refuse_inputs_without(layer: Any, shapes: dict) -> None:
    kind = layer.layer.layer_type
    with pytest.raises(
        LayerValidationError,
        match=rf"^layer '{kind}' \({kind}\), input 'default': expected \(T, B, [.F]+\), got "
        rf"\(B, 3\)\. It computes over time, but this input has no time axis\. Connect it "
        rf"before TimePooling, which makes one vector of each sequence, or use a layer that does "
        rf"not compute over time\.$",
    ):
        build_layer(layer, shapes)


@pytest.mark.parametrize(
    ("layer", "shapes", "port", "got"),
    [
        (bl.Mask(), {"default": ("T", "B", 3), "mask": ("B", 1)}, "mask", r"\(B, 1\)"),
        (bl.SoftmaxCE(), {"default": ("T", "B", 3), "targets": ("B", 1)}, "targets", r"\(B, 1\)"),
        (bl.SoftmaxCE(), {"default": ("B", 3), "targets": ("T", "B", 1)}, "default", r"\(B, 3\)"),
    ],
)
def test_inputs_have_time_all_or_none(layer: Any, shapes: dict, port: str, got: str) -> None:
    match = (
        rf"input '{port}': expected \(T, B, \.\.\.\), got {got}\. Either all inputs have a time "
        rf"axis, or none\. Remove that of the others with TimePooling, or repeat this one for "
        rf"every step\.$"
    )
    with pytest.raises(LayerValidationError, match=match):
        build_layer(layer, shapes)


def classifier(lead: tuple[str, ...], memory: str = "inspectable") -> Network:
    """Images to classes, without anything that looks at time."""
    inp = bl.Input({"default": (*lead, 5, 5, 2), "targets": (*lead, 1)})
    out = bl.SoftmaxCE(name="Out")
    hidden = inp >> bl.Convolution2D(3, (2, 2), activation="tanh") >> bl.BatchNorm()
    hidden = hidden >> bl.Pooling2D((2, 2), stride=(2, 2)) >> bl.Dropout(0.3)
    joined = bl.FullyConnected(3, "linear", name="Last")
    for size in (4, 3):
        hidden >> bl.FullyConnected(size, "gelu") >> joined
    joined >> out - "loss" >> bl.Loss()
    inp - "targets" >> "targets" - out
    accuracy = bl.Accuracy(name="Right")
    joined >> accuracy
    inp - "targets" >> "targets" - accuracy
    net = Network.from_layer(inp, seed=1, handler=NumpyHandler(np.float64), memory=memory)
    net.initialize(Gaussian(0.5), seed=2)
    return net


@pytest.mark.parametrize("memory", ["inspectable", "compact"])
def test_a_network_without_time_is_the_one_with_a_single_step(memory: str) -> None:
    data = {"default": RND.normal(size=(4, 5, 5, 2)), "targets": RND.randint(0, 3, (4, 1)) * 1.0}
    found = []
    for lead in (("T", "B"), ("B",)):
        net = classifier(lead, memory)
        net.provide_external_data({n: a[None] if lead[0] == "T" else a for n, a in data.items()})
        net.forward_pass(training_pass=True)
        net.backward_pass()
        found.append((net.get("gradients"), net.get_loss_values(), net.dump_statistics()))
        predictions = net.predict(data["default"][None] if lead[0] == "T" else data["default"])
        found[-1] += (predictions.reshape(4, 3),)
    for with_time, without in zip(*found, strict=True):
        np.testing.assert_equal(with_time, without)


def test_views_and_structures_have_the_shapes_that_were_connected() -> None:
    net = classifier(("B",))
    net.provide_external_data({"default": np.zeros((4, 5, 5, 2)), "targets": np.zeros((4, 1))})
    last = net.layers["Last"]
    assert (last.in_shapes["default"].shape, last.out_shapes["default"].shape) == (
        ("B", 7),
        ("B", 3),
    )
    assert net.buffer.Last.outputs.default.shape == (4, 3)
    assert net.buffer.Out.inputs.targets.shape == (4, 1)
