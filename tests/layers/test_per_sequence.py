"""Layers on inputs ('B', ...): one vector per sequence, seen as a single time step."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.testing import build_layer
from tests.networks import run_passes

RND = np.random.RandomState(3)
#: Layers that look at time, with their other inputs.
LOOKING = [
    (bl.Recurrent(2), ()),
    (bl.Lstm(2), ("mask",)),
    (bl.Gru(2), ()),
    (bl.Clockwork(2), ()),
    (bl.ClockworkLstm(2), ()),
    (bl.MultiHeadSelfAttention(1), ()),
    (bl.PositionalEncoding(), ()),
    (bl.LearnedPositionalEncoding(4), ()),
    (bl.Reverse(), ()),
    (bl.CTC(), ("labels",)),
    (bl.TimePooling(), ()),
]


@pytest.mark.parametrize(("layer", "others"), LOOKING, ids=lambda x: getattr(x, "layer", None))
def test_layers_that_look_at_time_refuse_inputs_without(layer, others):
    kind = layer.layer.layer_type
    match = (
        rf"^layer '{kind}' \({kind}\), input 'default': expected \(T, B, [.F]+\), got \(B, 3\)\. "
        rf"It computes over time, but this input has no time axis\. Connect it before TimePooling, "
        rf"which makes one vector of each sequence, or after RepeatOverTime, which makes a "
        rf"sequence of it\.$"
    )
    with pytest.raises(LayerValidationError, match=match):
        build_layer(layer, {"default": ("B", 3), **dict.fromkeys(others, ("B", 1))})


@pytest.mark.parametrize(
    ("layer", "other", "port"),
    [(bl.Mask(), "mask", "mask"), (bl.SoftmaxCE(), "targets", "targets"),
     (bl.SoftmaxCE(), "targets", "default")],
)  # fmt: skip
def test_inputs_have_time_all_or_none(layer, other, port):
    sizes = {"default": 3, other: 1}
    shapes = {name: ("B", n) if name == port else ("T", "B", n) for name, n in sizes.items()}
    match = (
        rf"input '{port}': expected \(T, B, \.\.\.\), got \(B, {sizes[port]}\)\. Either all inputs "
        rf"have a time axis, or none\. Remove that of the others with TimePooling, or repeat this "
        rf"one for every step with RepeatOverTime\.$"
    )
    with pytest.raises(LayerValidationError, match=match):
        build_layer(layer, shapes)


def test_formulas_of_parameters_are_referred_to_modifiers():
    match = (
        r"expected \(T, B, \.\.\.\), got \(3, 4\)\. It has a constant size: .* gradient modifier\.$"
    )
    with pytest.raises(LayerValidationError, match=match):
        build_layer(bl.Expression("x * x"), {"default": (3, 4)})


def test_what_repeats_vectors_refuses_sequences():
    match = (
        r"^layer 'RepeatOverTime' \(RepeatOverTime\), input 'default': expected \(B, \.\.\.\), got "
        r"\(T, B, 3\)\. Make one vector of each sequence with TimePooling\.$"
    )
    with pytest.raises(LayerValidationError, match=match):
        build_layer(bl.RepeatOverTime(), {"default": ("T", "B", 3)})


def classifier(lead, memory="inspectable"):
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
def test_a_network_without_time_is_the_one_with_a_single_step(memory):
    data = {"default": RND.normal(size=(4, 5, 5, 2)), "targets": RND.randint(0, 3, (4, 1)) * 1.0}
    found = []
    for lead in (("T", "B"), ("B",)):
        net = classifier(lead, memory)
        given = {name: a[None] if lead[0] == "T" else a for name, a in data.items()}
        gradients = run_passes(net, given)
        found.append([gradients, net.get_loss_values(), net.dump_statistics()])
        found[-1].append(net.predict(given["default"]).reshape(4, 3))
    for with_time, without in zip(*found, strict=True):
        np.testing.assert_equal(with_time, without)
