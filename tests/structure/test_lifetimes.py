"""From when to when each buffer has to keep what it holds."""

import pytest

from brainstorm import layers as bl
from brainstorm.errors import NetworkValidationError
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import gather_array_nodes
from brainstorm.structure.lifetimes import STRATEGIES, plan_memory
from tests.networks import WIRINGS, classifier, layers_of, wire_input, wire_loss


class LifetimeProbeLayerImpl(Layer):
    """Reads nothing of the forward pass again, and has an internal of either kind."""

    needs_in_backward = ()

    def setup(self, kwargs, in_shapes):
        shape = in_shapes["default"].shape
        internals = {
            "both": BufferStructure(*shape),
            "backward": BufferStructure(*shape, is_backward_only=True),
        }
        return {"default": BufferStructure(*shape)}, {}, internals


def linear(name):
    return bl.FullyConnected(4, "linear", name=name)


def hidden():
    return classifier(
        bl.FullyConnected(5, "tanh", name="A"), bl.Dropout(name="D"), bl.NoOp(name="N"), linear("B")
    )


def counting():
    """Predictions that are connected, and a layer without a backward pass."""
    inp, out, count = wire_input(), bl.SoftmaxCE(name="Out"), bl.Accuracy(name="Count")
    inp >> linear("A") >> out - "loss" >> bl.Loss()
    out - "predictions" >> count
    for layer in (out, count):
        inp - "targets" >> "targets" - layer
    return inp


def branching():
    inp, first = wire_input(), linear("A")
    inp >> first >> bl.Elementwise("tanh", name="E")
    return wire_loss(inp, first)


def copied():
    """Sources joined on their channels are copied before the step, their deltas behind it."""
    inp, joint = wire_input((4, 4, 2)), bl.Convolution2D(3, (2, 2), activation="linear", name="J")
    for side in "lr":
        inp >> bl.Convolution2D(2, (1, 1), activation="linear", name=side) >> joint
    return wire_loss(inp, joint >> linear("B"))


def probe():
    return ConstructionWrapper.create(LifetimeProbeLayerImpl, "P")


#: A wiring, and the lifetimes of some of its buffers.
LIFETIMES = {
    "a chain": (hidden, {
        # A needs its output for the derivative of tanh, D does not need its input.
        "A.outputs.default": "A forward to A backward",
        # N needs nothing, D not its output.
        "D.outputs.default": "D forward to N forward",
        # B needs its input.
        "N.outputs.default": "N forward to B backward",
        "B.inputs.default": "N forward to B backward",
        "D.internals.mask": "D forward to D backward",
        # A delta lives from its first writer to its reader.
        "A.output_deltas.default": "D backward to A backward",
        "D.input_deltas.default": "D backward to A backward",
        # No layer writes to this one: it is cleared and read in one step.
        "Out.output_deltas.predictions": "Out backward to Out backward",
        # It is read after a pass.
        "Out.outputs.predictions": "Out forward to the end",
        **dict.fromkeys(("parameters", "gradients", "A.gradients.W", "Loss.outputs.loss")),
        **dict.fromkeys(("Input.outputs.default", "A.inputs.default", "Input.outputs.targets")),
    }),
    "a backward pass may write to any internal": (lambda: classifier(linear("A"), probe()), {
        "P.internals.both": "P forward to P backward",
        "P.internals.backward": "P backward to P backward",
        "A.outputs.default": "A forward to P forward",
    }),
    "an output that is not connected": (branching, {"E.outputs.default": "E forward to the end"}),
    "connected predictions": (counting, {
        "Out.outputs.predictions": "Out forward to the end",
        "A.outputs.default": "A forward to Out backward",
    }),
    "no backward pass before the first parameter": (
        lambda: classifier(bl.Elementwise("tanh", name="E"), probe(), linear("A")), {
            "E.outputs.default": "E forward to P forward",
            "P.internals.both": "P forward to P forward",
        },
    ),
    "a recurrent state": (lambda: classifier(bl.Lstm(3, name="L"), bl.Lstm(3, name="M")), {
        **dict.fromkeys(("L.outputs.default", "L.internals.Ca")),
        "M.internals.dCa": "M backward to M backward",
        "L.output_deltas.default": "M backward to L backward",
    }),
    "running statistics": (lambda: classifier(linear("A"), bl.BatchNorm(name="BN")), {
        "BN.internals.running_mean": None,
        "BN.internals.x_hat": "BN forward to BN backward",
    }),
    "in place": (
        lambda: classifier(linear("A"), bl.Elementwise("tanh", "E", True), linear("B")), {
            "A.outputs.default": "A forward to E backward",
            "E.output_deltas.default": "B backward to A backward",
        },
    ),
    "copies": (copied, {
        "l.outputs.default": "l forward to J forward",
        "J.inputs.default": "J forward to J backward",
        "J.input_deltas.default": "J backward to J backward",
        "l.output_deltas.default": "J backward to l backward",
    }),
}  # fmt: skip


def plan(wiring, strategy="compact", keep_input_deltas=False):
    """Return the layers, the hubs, and the array nodes by path."""
    layers = layers_of(wiring)
    hubs, layout = plan_memory(layers, keep_input_deltas, strategy)
    return layers, hubs, dict(gather_array_nodes(layout))


@pytest.mark.parametrize("case", LIFETIMES)
def test_buffers_live_from_their_first_use_to_their_last(case):
    wire, expected = LIFETIMES[case]
    layers, hubs, nodes = plan(wire())
    names, end = list(layers), 2 * len(layers) - 1
    positions = {f"{name} forward": i for i, name in enumerate(names)}
    positions |= {f"{name} backward": end - i for i, name in enumerate(names)} | {"the end": end}
    for path, lives in expected.items():
        assert nodes[path].get("@lives") == lives, path
        lifetime = lives and tuple(positions[each] for each in lives.split(" to "))
        assert hubs[nodes[path]["@hub"]].lifetime == lifetime, path


def test_deltas_of_the_input_live_to_the_end():
    _, _, nodes = plan(classifier(linear("A")), keep_input_deltas=True)
    assert nodes["A.input_deltas.default"]["@lives"] == "A backward to the end"


@pytest.mark.parametrize("keep_input_deltas", [False, True])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_strategies_plan_the_same_layout(wiring, keep_input_deltas):
    layers, shared, nodes = plan(WIRINGS[wiring](), "compact", keep_input_deltas)
    _, hubs, apart = plan(WIRINGS[wiring](), "inspectable", keep_input_deltas)
    assert all(hub.lifetime is None for hub in hubs)
    for node in nodes.values():
        node.pop("@lives", None)
    assert nodes == apart
    for first, last in (hub.lifetime for hub in shared if hub.lifetime):
        assert 0 < first <= last < 2 * len(layers)


def test_an_unknown_strategy():
    text = "unknown memory strategy 'compat'. Choices are: inspectable, compact. Did you mean 'comp"
    with pytest.raises(NetworkValidationError, match=f"^{text}"):
        plan(WIRINGS["mlp"](), "compat")
    assert STRATEGIES == ("inspectable", "compact")
