"""The state of recurrent layers, carried from one part of long sequences to the next."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.data_iterators import SequenceChunks, Undivided
from brainstorm.errors import NetworkValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.hooks import MonitorLoss
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.tools import evaluate, run_network
from brainstorm.training import SgdStepper
from tests.networks import chain, checked, forward, run_passes, wire_input, wire_loss
from tests.trainings import Call, make_trainer

RND = np.random.RandomState(9)
DATA = {"default": RND.normal(size=(7, 5, 2)), "targets": RND.normal(size=(7, 5, 1))}


def over_time(*hidden) -> Network:
    inp = wire_input((2,))
    wire_loss(inp, chain(inp, *hidden, bl.FullyConnected(1, "linear")), bl.SquaredError)
    net = Network.from_layer(inp, seed=1, handler=NumpyHandler(float))
    clocks = {n: {"timing": [1, 2, 3, 4, 6]} for n in net.layers if n.startswith("Clock")}
    net.initialize({"default": Gaussian(1.0), **clocks}, seed=2)
    return net


@pytest.fixture
def net() -> Network:
    return over_time(bl.Lstm(4), bl.Gru(3))


def chunks(length: int = 3, **options) -> SequenceChunks:
    return SequenceChunks(length, shuffle=False, **{"batch_size": 2, **options, **DATA})


def whole_outputs(net: Network) -> np.ndarray:
    forward(net, data=DATA, training_pass=False)
    return net.get("Out.outputs.predictions")


HIDDEN = {
    "gates": lambda: [bl.Lstm(4), bl.Gru(3)],
    "clocks": lambda: [bl.Clockwork(5)],
    "gates and clocks": lambda: [bl.ClockworkLstm(5)],
}


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 10])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_parts_give_what_whole_sequences_give(hidden: str, length: int) -> None:
    """Also where the last part is shorter, and the last batch smaller."""
    net, batches = over_time(*HIDDEN[hidden]()), []
    continues = [part.continues for part in chunks(length)()]
    for number in run_network(net, chunks(length)()):
        if not continues[number]:
            batches.append([])
        net.forward_pass()
        batches[-1].append(net.get("Out.outputs.predictions"))
    outputs = np.concatenate([np.concatenate(parts) for parts in batches], axis=1)
    np.testing.assert_allclose(outputs, whole_outputs(net))  # which begin with zeros again


def test_forward_passes_may_be_repeated(net: Network) -> None:
    for _ in run_network(net, chunks(batch_size=5)()):
        net.forward_pass()
        first = net.get("Out.outputs.predictions")
        net.forward_pass(training_pass=True)
        np.testing.assert_array_equal(net.get("Out.outputs.predictions"), first)
    np.testing.assert_allclose(first, whole_outputs(net)[6:])


@pytest.mark.parametrize(
    "disturb",
    [
        lambda net: evaluate(net, chunks(2)),
        lambda net: evaluate(net, Undivided(**DATA)),
        lambda net: net.predict(DATA["default"]),
        lambda net: net.set_handler(NumpyHandler(float)),
    ],
)
def test_other_data_and_handlers_in_between_do_not_disturb(net: Network, disturb) -> None:
    found = []
    for _ in run_network(net, chunks(batch_size=5)()):
        net.forward_pass()
        found.append(net.get("Out.outputs.predictions"))
        disturb(net)
    np.testing.assert_allclose(np.concatenate(found), whole_outputs(net), 1e-12)


def test_training_in_parts(net: Network) -> None:
    """Each part starts where the part before ended, whatever hooks have done in between."""
    ends = Call(lambda epoch, update, net: net.get("Lstm.internals.Ca")[-2:], "ends")
    monitor = MonitorLoss("validation", timescale="update", interval=1)
    trainer = make_trainer(ends, monitor, stepper=SgdStepper(0.01), epochs=2)
    trainer.train(net, chunks(), validation=chunks(2))
    _, *states = trainer.logs["ends"]  # the last state, and that before the first step
    assert len(states) == 2 * 3 * 3
    for number, (after, before) in enumerate(states):
        expected = np.zeros_like(before) if number % 3 == 0 else states[number - 1][0]
        np.testing.assert_array_equal(before, expected)
        assert after.any()


def test_gradients_end_at_the_border(net: Network) -> None:
    """They are those of the second part alone, from a given context."""
    state: list = []
    for part, array in enumerate((slice(0, 4), slice(4, 7))):
        net.provide_external_data({name: a[array] for name, a in DATA.items()})
        net.carry_context(state, continues=part > 0)
        net.forward_pass(training_pass=True)
        net.backward_pass()
    gradient = net.get("gradients")
    forward(net, data={name: a[:4] for name, a in DATA.items()}, training_pass=False)
    second = {name: a[4:] for name, a in DATA.items()}
    np.testing.assert_array_equal(run_passes(net, second, context=net.get_context()), gradient)


def test_a_state_that_does_not_fit(net: Network) -> None:
    net.provide_external_data(DATA)
    state: list = []
    net.carry_context(state, continues=False)
    net.provide_external_data({name: array[:, :2] for name, array in DATA.items()})
    for wrong, continues, text in (
        ([], True, r"for 'Lstm.*expected .*got none\. The first batch, in training of each epoch"),
        ((), True, r"^carry_context: expected a list, which is .*, got \(\)\.$"),
        (state, True, r"\(1, 2, \d+\), got \(1, 5, \d+\)\. A context"),
        ([[0.0]] * len(state), True, r"for 'Lstm.*\(1, 2, \d+\), got \[0\.0\]\. A context"),
        (state, np.array([True, False]), r"^carry_context, continues: expected True or"),
    ):
        with pytest.raises(NetworkValidationError, match=text):
            net.carry_context(wrong, continues)


def test_the_memory_of_the_state_is_used_again(net: Network) -> None:
    state: list = []
    addresses = []
    for number in range(4):
        net.provide_external_data(DATA)
        net.carry_context(state, continues=number > 0)
        net.forward_pass()
        addresses.append([a.ctypes.data for a in state if a is not None])
    assert addresses[0] == []
    assert addresses[1] == addresses[2] == addresses[3] != []


@pytest.mark.parametrize(
    "change",
    [
        lambda array: np.frombuffer(array.tobytes()).reshape(array.shape),
        lambda array: array.astype(int),
        lambda array: array.astype(">f8"),
    ],
    ids=["read-only", "integers", "other bytes"],
)
def test_a_state_from_a_file_is_replaced_where_it_cannot_be_written(net: Network, change) -> None:
    """Its memory may be mapped, or of another type."""
    expected = whole_outputs(net)
    given = [a if a is None else change(np.zeros_like(a)) for a in net.get_context()]
    state = list(given)
    for start in (0, 3):
        net.provide_external_data({name: array[start : start + 3] for name, array in DATA.items()})
        net.carry_context(state, continues=True)
        net.forward_pass()
        found = net.get("Out.outputs.predictions")
        np.testing.assert_allclose(found, expected[start : start + 3])
    assert not any(a.any() for a in given if a is not None)


def test_a_context_to_write_to_that_is_none(net: Network) -> None:
    whole_outputs(net)
    for wrong, got in (([None], "list"), ("text", "str"), ({1: 2}, "dict")):
        with pytest.raises(NetworkValidationError, match=rf"^get_context, out: .* got a {got}\.$"):
            net.get_context(out=wrong)
    assert len(net.get_context(out=[])) == len(net.get_context())


def linear_behind(*layers) -> Network:
    inp = bl.Input({"default": ("T", "B", 2)})
    chain(inp, *layers, bl.FullyConnected(1, "linear", "Out"))
    return checked(inp, NumpyHandler(float))


def outputs_and_warnings(net: Network, caplog, **options) -> tuple[np.ndarray, list[str]]:
    found = []
    for _ in range(2):  # epochs
        for _ in run_network(net, SequenceChunks(4, 5, shuffle=False, default=DATA["default"])()):
            net.forward_pass(**options)
            found.append(net.get("Out.outputs.default"))
    return np.concatenate(found[:2]), [record.getMessage() for record in caplog.records]


def attention():
    return bl.MultiHeadSelfAttention(2, causal=True, name="Attention")


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (bl.BidirectionalWrapper(bl.Lstm, 3, name="Both"),
         "'Both_reversed' (Reverse), 'Both_restored' (Reverse)"),
        (attention(), "'Attention' (MultiHeadSelfAttention)"),
        (bl.PositionalEncoding(name="Positions"), "'Positions' (PositionalEncoding)"),
    ],
)  # fmt: skip
def test_a_layer_that_sees_only_parts_beside_carried_state_is_a_warning(layer, names, caplog):
    net = linear_behind(bl.Lstm(4), layer)
    outputs, warnings = outputs_and_warnings(net, caplog)
    assert warnings == [
        f"the state of recurrent layers is carried from part to part of sequences, but in "
        f"{names} each part is on its own: the outputs are not those for whole sequences. See "
        f"docs/not_learning.md#parts-of-sequences."
    ]
    assert np.abs(outputs - net.predict(DATA["default"])).max() > 0.01


def test_layers_that_carry_all_they_need_are_none_nor_is_attention_alone(caplog):
    net = linear_behind(bl.Lstm(4))
    outputs, warnings = outputs_and_warnings(net, caplog)
    np.testing.assert_allclose(outputs, net.predict(DATA["default"]))
    pooled = linear_behind(bl.Lstm(4), bl.TimePooling())
    outputs, warnings = outputs_and_warnings(pooled, caplog)
    np.testing.assert_allclose(outputs[-5:], pooled.predict(DATA["default"]))
    assert not warnings
    alone = linear_behind(attention())
    assert not outputs_and_warnings(alone, caplog)[1]
    alone.forward_pass(context=alone.get_context())
    assert "in 'Attention' (MultiHeadSelfAttention) each part is on its own" in caplog.text


def test_the_loss_of_ctc_is_one_but_not_its_predictions_alone(caplog):
    """Speech is recognized while it is heard, without labels."""
    inp, ctc = bl.Input({"default": ("T", "B", 2), "labels": ("T", "B", 1)}), bl.CTC(name="Ctc")
    inp >> bl.Lstm(4) >> ctc - "loss" >> bl.Loss()
    inp - "labels" >> "labels" - ctc
    net = checked(inp, NumpyHandler(float))
    expected, state = net.predict(DATA["default"], "Ctc.outputs.predictions"), []
    for start in (0, 2, 4):
        part = {"default": DATA["default"][start : start + 2]}
        net.provide_external_data(part, all_inputs=False)
        net.carry_context(state, continues=start > 0)
        net.forward_pass()
        found = net.get("Ctc.outputs.predictions")
        np.testing.assert_allclose(found, expected[start : start + 2])
    net.forward_pass(context=net.get_context())
    assert not caplog.text
    net.provide_external_data({**part, "labels": np.zeros((2, 5, 1))})
    net.forward_pass(context=net.get_context())
    assert "in 'Ctc' (CTC) each part is on its own" in caplog.text
