"""From when to when each buffer has to keep what it holds."""

import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.layers import (
    Accuracy,
    BatchNorm,
    Convolution2D,
    Dropout,
    Elementwise,
    FullyConnected,
    Input,
    Loss,
    Lstm,
    NoOp,
    SoftmaxCE,
)
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.architecture import (
    generate_architecture,
    instantiate_layers_from_architecture,
)
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import gather_array_nodes
from brainstorm.structure.lifetimes import STRATEGIES, plan_memory
from tests.networks import WIRINGS, classifier


class Plan:
    """The lifetimes of a network, by path; positions are given as layer names."""

    def __init__(self, some_layer, **kwargs):
        self.layers = instantiate_layers_from_architecture(generate_architecture(some_layer))
        self.hubs, self.layout = plan_memory(self.layers, strategy="compact", **kwargs)
        self.nodes = dict(gather_array_nodes(self.layout))

    def lifetime(self, path):
        return self.hubs[self.nodes[path]["@hub"]].lifetime

    def forward(self, name):
        return list(self.layers).index(name)

    def backward(self, name):
        return self.end - self.forward(name)

    @property
    def end(self):
        return 2 * len(self.layers) - 1


@pytest.fixture
def plan():
    """Input >> A (tanh) >> D (dropout) >> N (no-op) >> B (linear) >> Out >> Loss."""
    hidden = FullyConnected(5, "tanh", name="A"), Dropout(name="D"), NoOp(name="N")
    return Plan(classifier(*hidden, FullyConnected(4, "linear", name="B")))


def test_an_output_lives_until_whoever_needs_it_last_has_read_it(plan):
    # A needs its output for the derivative of tanh, D does not need its input.
    assert plan.lifetime("A.outputs.default") == (plan.forward("A"), plan.backward("A"))
    # N needs nothing, D not its output.
    assert plan.lifetime("D.outputs.default") == (plan.forward("D"), plan.forward("N"))
    # B needs its input.
    assert plan.lifetime("N.outputs.default") == (plan.forward("N"), plan.backward("B"))
    assert plan.lifetime("B.inputs.default") == plan.lifetime("N.outputs.default")


def test_an_internal_lives_while_its_layer_needs_it(plan):
    assert plan.lifetime("D.internals.mask") == (plan.forward("D"), plan.backward("D"))


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


def test_a_backward_pass_may_write_to_any_internal():
    probe = ConstructionWrapper.create(LifetimeProbeLayerImpl, name="P")
    plan = Plan(classifier(FullyConnected(5, "linear", name="A"), probe))
    assert plan.lifetime("P.internals.both") == (plan.forward("P"), plan.backward("P"))
    assert plan.lifetime("P.internals.backward") == (plan.backward("P"),) * 2
    assert plan.lifetime("A.outputs.default") == (plan.forward("A"), plan.forward("P"))


def test_a_delta_lives_from_its_first_writer_to_its_reader(plan):
    assert plan.lifetime("A.output_deltas.default") == (plan.backward("D"), plan.backward("A"))
    assert plan.lifetime("D.input_deltas.default") == plan.lifetime("A.output_deltas.default")
    # Nobody writes this one: it is cleared and read in one step.
    cleared = plan.backward("Out")
    assert plan.lifetime("Out.output_deltas.predictions") == (cleared, cleared)


def test_what_is_read_after_a_pass_lives_to_the_end(plan):
    assert plan.lifetime("Out.outputs.predictions") == (plan.forward("Out"), plan.end)
    assert plan.nodes["Out.outputs.predictions"]["@lives"] == "Out forward to the end"


def test_what_is_small_or_comes_from_outside_lives_always(plan):
    for path in (
        "parameters",
        "gradients",
        "A.gradients.W",
        "Loss.outputs.loss",
        "Input.outputs.default",
        "A.inputs.default",
        "Input.outputs.targets",
    ):
        assert plan.lifetime(path) is None
        assert "@lives" not in plan.nodes[path]


def test_the_words_for_a_lifetime(plan):
    assert plan.nodes["A.output_deltas.default"]["@lives"] == "D backward to A backward"
    assert plan.nodes["A.outputs.default"]["@lives"] == "A forward to A backward"


def test_connected_predictions_live_to_the_end_and_other_connected_outputs_do_not():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    out, count = SoftmaxCE(name="Out"), Accuracy(name="Count")
    inp >> FullyConnected(3, "linear", name="A") >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    out - "predictions" >> count
    inp - "targets" >> "targets" - count
    plan = Plan(inp)
    assert plan.lifetime("Out.outputs.predictions") == (plan.forward("Out"), plan.end)
    assert plan.lifetime("A.outputs.default")[1] == plan.backward("Out")
    # It has no backward pass.
    spans = {plan.lifetime(f"Count.internals.{n}") for n in plan.layers["Count"].internal_shapes}
    assert spans <= {None, (plan.forward("Count"),) * 2}


def test_layers_without_a_backward_pass_need_nothing_in_it():
    """Before the first parameter there is none, whatever the layers declare."""
    plan = Plan(
        classifier(
            Elementwise("tanh", name="first"),
            Elementwise("tanh", name="second"),
            FullyConnected(4, name="A"),
        )
    )
    assert plan.lifetime("first.outputs.default") == (plan.forward("first"), plan.forward("second"))


def test_the_state_of_recurrent_layers_lives_always():
    plan = Plan(classifier(Lstm(3, name="L"), Lstm(3, name="M")))
    assert plan.lifetime("L.outputs.default") is None
    assert plan.lifetime("L.internals.Ca") is None
    assert plan.lifetime("M.internals.dCa") == (plan.backward("M"),) * 2
    assert plan.lifetime("L.output_deltas.default") == (plan.backward("M"), plan.backward("L"))


def test_running_statistics_live_always():
    plan = Plan(classifier(FullyConnected(3), BatchNorm(name="BN")))
    assert plan.lifetime("BN.internals.running_mean") is None
    assert plan.lifetime("BN.internals.x_hat") == (plan.forward("BN"), plan.backward("BN"))


def test_deltas_of_the_input_live_to_the_end():
    plan = Plan(classifier(FullyConnected(3, name="A")), keep_input_deltas=True)
    assert plan.lifetime("A.input_deltas.default") == (plan.backward("A"), plan.end)


def test_an_in_place_layer_prolongs_the_life_of_what_it_overwrites():
    plan = Plan(
        classifier(
            FullyConnected(3, "linear", name="A"),
            Elementwise("tanh", inplace=True, name="E"),
            FullyConnected(3, "linear", name="B"),
        )
    )
    assert plan.lifetime("A.outputs.default") == (plan.forward("A"), plan.backward("E"))
    assert plan.lifetime("E.output_deltas.default") == (plan.backward("B"), plan.backward("A"))


def test_copies_use_both_sides():
    """Sources joined on their channels are copied before the step, their deltas behind it."""
    inp = Input({"default": ("T", "B", 4, 4, 2)})
    left, right = (Convolution2D(2, (1, 1), activation="linear", name=n) for n in ("l", "r"))
    joint = Convolution2D(3, (2, 2), activation="linear", name="joint")
    for side in (left, right):
        inp >> side >> joint
    joint >> Loss()
    plan = Plan(inp)
    forward, backward = plan.forward("joint"), plan.backward("joint")
    assert plan.lifetime("l.outputs.default") == (plan.forward("l"), forward)
    assert plan.lifetime("joint.inputs.default") == (forward, backward)
    assert plan.lifetime("joint.input_deltas.default") == (backward, backward)
    assert plan.lifetime("l.output_deltas.default") == (backward, plan.backward("l"))


@pytest.mark.parametrize("keep_input_deltas", [False, True])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_the_strategies_plan_the_same_layout(wiring, keep_input_deltas):
    plan = Plan(WIRINGS[wiring](), keep_input_deltas=keep_input_deltas)
    hubs, layout = plan_memory(plan.layers, keep_input_deltas)
    assert all(hub.lifetime is None for hub in hubs)
    for hub, node in ((hub, dict(gather_array_nodes(layout))[hub.sources[0]]) for hub in hubs):
        assert plan.nodes[hub.sources[0]]["@hub"] == node["@hub"]
        assert plan.nodes[hub.sources[0]]["@slice"] == node["@slice"]
    for hub in plan.hubs:
        assert hub.lifetime is None or 0 < hub.lifetime[0] <= hub.lifetime[1] <= plan.end


def test_an_unknown_strategy():
    layers = instantiate_layers_from_architecture(generate_architecture(WIRINGS["mlp"]()))
    with pytest.raises(
        NetworkValidationError,
        match=r"^unknown memory strategy 'compat'\. Choices are: inspectable, compact\. "
        r"Did you mean 'compact'\?$",
    ):
        plan_memory(layers, strategy="compat")
    assert STRATEGIES == ("inspectable", "compact")
