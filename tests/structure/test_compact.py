"""Memory strategy `compact`: the same bits in less memory, and no garbage is ever handed out."""

import re

import numpy as np
import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import NetworkValidationError, ReusedBufferError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.layers import Dropout, FullyConnected, Lstm, TiedFullyConnected
from brainstorm.network import Network
from brainstorm.structure.layout import gather_array_nodes
from brainstorm.tools import extract
from brainstorm.training import MomentumStepper, SgdStepper
from tests.layers.test_in_network import many_parts, two_recurrent_layers
from tests.networks import WIRINGS, checked, classifier, data_for, forward, provide
from tests.poisoning import poison

STRATEGIES = ("inspectable", "compact")
SIZES = [(2, 2), (4, 3), (1, 1), (2, 2)]
FLOAT64 = NumpyHandler(np.float64)


def tied():
    encoder = FullyConnected(3, "tanh", name="Encoder")
    decoder = TiedFullyConnected(encoder, "linear", size=4)
    return classifier(encoder, decoder, Dropout(inplace=True), FullyConnected(4, "silu"))


def dropout():
    hidden = FullyConnected(5, "tanh"), Dropout(), FullyConnected(4, "gelu")
    return classifier(*hidden, FullyConnected(4, "linear"))


NETWORKS = {
    **WIRINGS,
    "tied": tied,
    "images and recurrence": two_recurrent_layers,
    "parts": many_parts,
    "dropout": dropout,
}


def make(name, memory, handler=None):
    return checked(NETWORKS[name](), handler, memory=memory)


def make_both(name):
    return [make(name, memory) for memory in STRATEGIES]


def readable_outputs(net):
    """Return the paths of all outputs that can be read after a forward pass, by the plan."""
    end = len(net.layers) - 1
    hubs, layout = net._buffer_manager.hubs, net._buffer_manager.layout
    return [
        path
        for path, node in gather_array_nodes(layout)
        if ".outputs." in path
        and ((lives := hubs[node["@hub"]].lifetime) is None or lives[0] <= end <= lives[1])
    ]


def assert_same(nets, *paths):
    for path in paths:
        ours, theirs = (net.get(path) for net in nets)
        np.testing.assert_array_equal(ours, theirs, err_msg=path)


def run_both_passes(nets, T, B, seed=3, readable=None, **backward):
    for net in nets:
        forward(net, T, B, seed)
    assert nets[0].get_loss_values() == nets[1].get_loss_values()
    assert_same(nets, *(readable or readable_outputs(nets[1])))
    for net in nets:
        net.backward_pass(**backward)
    assert_same(nets, "gradients")


@pytest.mark.parametrize("name", NETWORKS)
def test_training_gives_the_same_bits(name):
    nets, steppers = make_both(name), [MomentumStepper(0.1), MomentumStepper(0.1)]
    assert [net._buffer_manager.strategy for net in nets] == list(STRATEGIES)
    for net, stepper in zip(nets, steppers, strict=True):
        stepper.start(net)
    for number, (T, B) in enumerate(SIZES):
        run_both_passes(nets, T, B, seed=number)
        for stepper in steppers:
            stepper.run()
        assert_same(nets, "parameters", *nets[0]._buffer_manager.persistent_paths)
        run_both_passes(nets, T, B, seed=number, accumulate=True)


def connected_inputs(net):
    deltas = net.buffer.Input.output_deltas
    return [name for name in deltas.keys() if deltas[name].size]  # noqa: SIM118  (a list)


@pytest.mark.parametrize("keep_input_deltas", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_whatever_the_plan_lets_go_is_not_missed(name, keep_input_deltas):
    """After every step of both passes, all that the plan no longer keeps turns into NaN."""
    nets = [make(name, memory, FLOAT64) for memory in STRATEGIES]
    for net in nets:
        net.keep_input_deltas = keep_input_deltas
    readable = readable_outputs(nets[1])
    poison(nets[1])
    for number, (T, B) in enumerate(SIZES):
        run_both_passes(nets, T, B, seed=number, readable=readable)
        kept = connected_inputs(nets[0]) if keep_input_deltas else []
        assert_same(nets, *(f"Input.output_deltas.{name}" for name in kept))


def test_the_state_is_carried_on():
    nets, states = make_both("lstm"), ([], [])
    for number, T in enumerate((3, 2, 4)):
        for net, state in zip(nets, states, strict=True):
            provide(net, T, 2, seed=number)
            net.carry_context(state, continues=number > 0)
            net.forward_pass(training_pass=True)
            net.backward_pass()
        assert_same(nets, "gradients", "Lstm.outputs.default", "Out.outputs.predictions")
    for net, context in zip(nets, reversed([net.get_context() for net in nets]), strict=True):
        forward(net, 4, 2, seed=5, context=context)
        net.backward_pass()
    assert_same(nets, "gradients", "Out.outputs.predictions")


# -- using a network ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm", "parts", "dropout"])
def test_predictions_and_what_is_extracted_are_the_same(name):
    nets = make_both(name)
    run_both_passes(nets, 3, 2)
    data = data_for(nets[0], 4, 7)
    ours, theirs = (net.predict(data["default"], batch_size=3) for net in nets)
    np.testing.assert_array_equal(ours, theirs)
    run_both_passes(nets, 3, 2)
    path = next(path for path in readable_outputs(nets[1]) if not path.startswith("Input."))
    ours, theirs = (extract(net, lambda handler: iter([data] * 2), path)[path] for net in nets)
    np.testing.assert_array_equal(ours, theirs)


def test_data_and_predictions_stay_after_training_steps():
    nets = make_both("cnn")
    run_both_passes(nets, 3, 2)
    assert_same(nets, "Input.outputs.default", "Input.outputs.targets", "Out.outputs.predictions")
    for net in nets:  # on the same data once more
        net.forward_pass(training_pass=True)
        net._buffer_manager.clear_backward_buffers()  # which harms nothing
        net.backward_pass()
    assert_same(nets, "gradients", "Out.outputs.predictions")


def test_the_strategy_is_saved(tmp_path):
    net = make("mlp", "compact", FLOAT64)
    net.save_as_hdf5(tmp_path / "net.hdf5")
    nets = [net, Network.from_hdf5(tmp_path / "net.hdf5")]
    net.set_handler(NumpyHandler(np.float64))
    assert {each._buffer_manager.strategy for each in nets} == {"compact"}
    assert_same(nets, "parameters")
    run_both_passes(nets, 3, 2)
    description = get_description(net)
    assert create_from_description(description)._buffer_manager.strategy == "compact"
    del description["memory"]
    assert create_from_description(description)._buffer_manager.strategy == "inspectable"


# -- what can be read ---------------------------------------------------------------------------

HIDDEN, DELTA = (f"FullyConnected_1.{kind}.default" for kind in ("outputs", "output_deltas"))


@pytest.fixture
def net():
    net = make("mlp", "compact")
    provide(net)
    return net


def assert_refused(net, *paths):
    for path in paths:
        text = (
            f"{path} cannot be read now: with memory strategy 'compact' its memory is its own only "
            f"from {net._buffer_manager.nodes[path]['@lives']}. Read it when a pass has ended in "
            f"between, or build the network with memory='inspectable'."
        )
        with pytest.raises(ReusedBufferError, match=f"^{re.escape(text)}$"):
            net.get(path)


def test_what_can_be_read_when(net):
    """It depends on the plan and on the last pass, never on T and B."""
    assert_refused(net, HIDDEN)
    for T, B in SIZES:
        provide(net, T, B)
        assert_refused(net, HIDDEN, DELTA)
        net.forward_pass(training_pass=True)
        assert net.get(HIDDEN).shape == (T, B, 5)
        assert_refused(net, DELTA)
        net.backward_pass()
        assert_refused(net, HIDDEN, DELTA)
        net.get("Out.outputs.predictions")


@pytest.mark.parametrize("handler", [NumpyHandler, lambda: DebugHandler(NumpyHandler())])
@pytest.mark.parametrize("kind", ["replay", "report"])
def test_repeating_a_plan_is_a_pass(kind, handler):
    net = make("mlp", "compact", handler())
    provide(net)
    for training_pass in (False, True):
        net.forward_pass()
        plan = net.plan(training_pass)
        net.forward_pass()
        getattr(plan, kind)()
        assert net.get_loss_values()["total_loss"] > 0
        if not training_pass:
            net.get(HIDDEN)
            net.backward_pass()
        assert_refused(net, HIDDEN)
        with pytest.raises(NetworkValidationError, match="needs a forward pass of its own"):
            net.backward_pass()


def test_a_plan_is_a_pass_if_it_is_executed():
    net = make("mlp", "compact", DebugHandler(NumpyHandler()))
    provide(net)
    net.plan(training_pass=False)
    net.get(HIDDEN)
    net.plan()
    assert_refused(net, HIDDEN)


def test_an_update_is_no_pass():
    net, stepper = make("mlp", "compact", FLOAT64), SgdStepper(0.1)
    provide(net)
    stepper.start(net)
    for is_late in (False, False, True):
        net.forward_pass(training_pass=True)
        if is_late:
            stepper.apply()
            assert net.get(HIDDEN).any()
        net.backward_pass()
        stepper.apply()
        assert_refused(net, HIDDEN)
    assert stepper.steps == 4


def test_deltas_of_the_input_can_be_read_after_a_backward_pass(net):
    net.keep_input_deltas = True
    forward(net)
    assert_refused(net, "Input.output_deltas.default")
    net.backward_pass()
    assert net.get("Input.output_deltas.default").any()


def test_nothing_shared_can_be_read_after_a_pass_of_some_layers_or_one_that_failed(
    net, monkeypatch
):
    net.forward_pass()
    net.predict(data_for(net)["default"], HIDDEN)
    assert_refused(net, HIDDEN)
    net.forward_pass()
    monkeypatch.setattr(net.layers["Out"], "forward_pass", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net.forward_pass()
    assert_refused(net, HIDDEN)


def test_a_backward_pass_needs_a_forward_pass_of_its_own(net):
    text = (
        "backward_pass: with memory strategy 'compact' every backward pass needs a forward pass of "
        "its own. Call forward_pass first, or build the network with memory='inspectable'."
    )

    def assert_needed(**options):
        with pytest.raises(NetworkValidationError, match=f"^{re.escape(text)}$"):
            net.backward_pass(**options)

    assert_needed()
    net.forward_pass(training_pass=True)
    net.backward_pass()
    assert_needed(accumulate=True)
    net.forward_pass(training_pass=True)
    net.predict(data_for(net)["default"])
    assert_needed()


def test_replayed_passes_count_as_passes():
    plain, net = (make("mlp", memory, FLOAT64) for memory in STRATEGIES)
    stepper, data = MomentumStepper(0.1), provide(net)
    stepper.start(net)
    for _ in range(4):
        net.forward_pass()
        assert net.get(HIDDEN).any()
        stepper.run()
        assert_refused(net, HIDDEN)
        net.get("Out.outputs.predictions")
        plain.buffer.parameters[:] = net.buffer.parameters
        ours, theirs = (each.predict(data["default"], HIDDEN) for each in (plain, net))
        np.testing.assert_array_equal(ours, theirs)
        assert_refused(net, HIDDEN)
        net.provide_external_data(data)


# -- what is said -------------------------------------------------------------------------------


def test_the_tree_says_when_shared_buffers_live(net):
    lines = repr(net.buffer.FullyConnected_1).split("\n")
    line = lines[lines.index("  outputs") + 1]
    assert line.split("  ")[2:] == [
        "default", "(T, B, 5)", "float64[3, 2, 5]", "240 B",
        "shared: FullyConnected_1 forward to FullyConnected_1 backward",
    ]  # fmt: skip
    assert "shared" not in repr(net.buffer.Input)
    assert "  max  NaN  Inf\n" in repr(net.buffer.FullyConnected_1.tree(values=True))
    assert "shared" not in repr(make("mlp", "inspectable").buffer)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("T", "B"), [(1, 1), (7, 13)])
def test_the_report_is_exact_and_tells_what_is_saved(name, T, B):
    S, nets = T + 2 if name == "two lengths" else None, make_both(name)
    apart, shared = (net.memory(T, B, S) for net in nets)
    assert apart.shared == 0
    assert "shared" not in str(apart)
    rows = sum(sum(row.values()) for row in shared.layers.values())
    assert shared.total + shared.shared == rows + shared.padding
    if S is None:  # attention keeps other buffers there
        assert shared.total + shared.shared == apart.total
        assert (shared.layers, shared.padding) == (apart.layers, apart.padding)
    assert 0 < shared.shared < apart.total
    title, number, *_ = str(shared).split("\n")[-2].split()
    assert (title, number[0]) == ("shared", "-")
    provide(nets[1], T, B)
    manager = nets[1]._buffer_manager
    assert manager.size * manager.item_size == shared.total


def report(layers, T, B):
    """Return how much compact networks in float32 need."""
    handler = NumpyHandler(np.float32)
    return Network.from_layer(classifier(*layers), memory="compact", handler=handler).memory(T, B)


def test_deep_networks_need_little_more_than_what_the_backward_pass_reads():
    found = report([FullyConnected(100) for _ in range(30)], 1, 1000)
    outputs = sum(row.get("outputs", 0) for row in found.layers.values())
    parameters = sum(row.get("parameters", 0) for row in found.layers.values())
    two_deltas = 2 * 4 * 100 * 1000
    assert found.total <= outputs + 2 * parameters + two_deltas


def test_lstm_layers_share_what_their_backward_passes_compute_with():
    one, two = (report([Lstm(20) for _ in range(count)], 50, 10) for count in (1, 2))
    assert two.total - one.total < 0.6 * sum(one.layers["Lstm"].values())
