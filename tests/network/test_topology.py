"""Checks on the graph as a whole."""

import re
from functools import partial

import pytest

from brainstorm import layers as bl
from brainstorm.data_iterators import (
    AddGaussianNoise,
    Chunk,
    IterableBatches,
    Minibatches,
    SequenceChunks,
)
from brainstorm.errors import NetworkValidationError
from brainstorm.hooks import StopAfterEpoch
from brainstorm.network import Network
from brainstorm.network.topology import warn_of_one_sequence
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import SgdStepper, Trainer
from tests.networks import chain, data_for, wire_input, wire_loss


@pytest.fixture
def warnings(caplog):
    """Return a function that gives the texts of the warnings so far."""
    return lambda: [record.getMessage() for record in caplog.records]


FLOOR = "'Floor' (Expression) has no derivative by its input 'default'"
PREDICTIONS = "'Out' (SoftmaxCE) takes no deltas from its output 'predictions'"


@pytest.mark.parametrize(
    ("output", "formula", "reason"),
    [
        ("loss", "floor(x)", f", because {FLOOR}. Use another one, or connect"),
        ("predictions", "x", f", because {PREDICTIONS}. Use another one, or connect"),
        ("predictions", "floor(x)", f", because {FLOOR}. Use another one, or connect"),
        ("", "x", ". Connect"),
    ],
)
def test_a_loss_that_no_parameter_leads_to(output, formula, reason):
    inp, out = wire_input(), bl.SoftmaxCE(name="Out")
    last = inp >> bl.FullyConnected(3, name="Fc") >> bl.Expression(formula, name="Floor") >> out
    (last - output if output else inp) >> bl.Loss()
    inp - "targets" >> "targets" - out
    text = (
        f"no path leads from a parameter to a loss: 'Fc' cannot be trained{reason} an output "
        f"'loss' to a Loss layer: out - 'loss' >> Loss()."
    )
    with pytest.raises(NetworkValidationError, match=f"^{re.escape(text)}$"):
        Network.from_layer(inp)


@pytest.mark.parametrize("formula", ["x", "floor(x)"])
def test_a_layer_that_is_never_trained_is_a_warning(warnings, formula):
    inp = wire_input()
    inp >> bl.FullyConnected(3, name="Trained") >> bl.Loss()
    last = inp >> bl.FullyConnected(3, name="Idle") >> bl.Expression(formula, name="Floor")
    if formula != "x":
        last >> bl.Loss(name="Vain")
    Network.from_layer(inp)
    because = "" if formula == "x" else f", because {FLOOR}"
    assert warnings()[0] == (
        f"no path leads from 'Idle' to a loss: never trained{because}. See "
        f"docs/not_learning.md#layers-that-are-never-trained."
    )


def test_a_loss_that_trains_nothing_is_a_warning(warnings):
    inp, out = wire_input(), bl.SoftmaxCE(name="Out")
    inp >> bl.FullyConnected(3, "linear") >> out - "loss" >> bl.Loss()
    inp - "targets" >> "targets" - out
    out - "predictions" >> bl.Expression("sum(x * log(x), axis=-1)") >> bl.Loss(name="Entropy")
    Network.from_layer(inp)
    (text,) = warnings()
    assert text.startswith("no gradient of 'Entropy' reaches a parameter: it trains nothing. See ")


def test_networks_without_a_loss_or_without_parameters_are_fine():
    for layer in (bl.FullyConnected(3), bl.Loss()):
        Network.from_layer(wire_input() >> layer)


class LonelySourceLayerImpl(bl.Layer):
    expected_inputs = {}

    def setup(self, kwargs, in_shapes):
        return {"default": BufferStructure("T", "B", 2)}, {}, {}


def test_what_the_input_does_not_reach():
    inp, joint = wire_input(), bl.FullyConnected(3)
    source = ConstructionWrapper.create(LonelySourceLayerImpl, name="Source")
    inp >> joint
    source >> joint
    net = Network.from_layer(inp)
    lost = {name: dict(net.architecture[name]) for name in ("Source", "Input")}
    lost["Input"]["@outgoing_connections"] = []
    lost["FullyConnected"] = {"@type": "FullyConnected", "size": 3}
    with pytest.raises(NetworkValidationError, match="the Input to 'FullyConnected'. Connect"):
        Network.from_architecture(lost)


# -- what is hardly meant --------------------------------------------------------------------------


def wire(*hidden, loss=bl.SquaredError, features=(4,), targets=(2,), port="targets"):
    """Return the network of layers between an Input and a loss."""
    inp = wire_input(features, targets)
    return Network.from_layer(wire_loss(inp, chain(inp, *hidden), loss, port))


RECTIFIED = {
    "squared error": (bl.FullyConnected, 2, {}),
    "softmax": (bl.FullyConnected, 3, {"loss": bl.SoftmaxCE, "targets": (1,)}),
    "sigmoids": (bl.FullyConnected, 2, {"loss": bl.SigmoidCE}),
    "labels": (bl.FullyConnected, 3, {"loss": bl.CTC, "targets": (1,), "port": "labels"}),
    "images": (
        partial(bl.Convolution2D, kernel_size=1),
        2,
        {"features": (3, 3, 1), "targets": (3, 3, 2)},
    ),
}


def rectified(kind):
    create, size, options = RECTIFIED[kind]
    return wire(create(size, name="Fc"), **options)


@pytest.mark.parametrize("kind", RECTIFIED)
def test_a_rectified_prediction_is_a_warning_once_for_each_network(warnings, tmp_path, kind):
    net = rectified(kind)
    (text,) = warnings()
    layer, loss = net.layers["Fc"].type_name, net.layers["Out"].type_name
    assert text == (
        f"layer 'Fc' ({layer}) is rectified and leads directly into 'Out' ({loss}): its "
        f"predictions are never below 0, and it does not learn where they are 0. Write {layer}"
        f"(..., activation='linear'); if this is intended, activation='rel'. See "
        f"docs/not_learning.md#predictions-are-never-below-0."
    )
    net.initialize(1)
    net.copy()
    net.save_as_hdf5(tmp_path / "net.hdf5")
    Network.from_hdf5(tmp_path / "net.hdf5")
    assert warnings() == [text]
    rectified(kind)
    assert warnings() == [text, text]


def test_an_architecture_that_names_no_activation_is_warned_about(warnings):
    architecture = rectified("squared error").architecture
    for asked, number in (({}, 2), ({"activation": "rel"}, 2)):
        entry = {k: v for k, v in architecture["Fc"].items() if k != "activation"}
        Network.from_architecture(architecture | {"Fc": entry | asked})
        assert len(warnings()) == number


@pytest.mark.parametrize(
    "hidden",
    [
        [bl.FullyConnected(2, "linear")],
        [bl.FullyConnected(2, "rel")],
        [bl.FullyConnected(2, activation="relu")],
        [bl.FullyConnected(2, "linear"), bl.Elementwise("rel")],
        [bl.FullyConnected(2), bl.FullyConnected(2, "linear")],
        [bl.Recurrent(2, "rel")],  # whose default is another: it was asked for
    ],
    ids=lambda layers: repr(layers),
)
def test_what_is_linear_or_asked_for_is_no_warning(warnings, hidden):
    wire(*hidden)
    Network.from_layer(wire_input() >> bl.FullyConnected(3) >> bl.Loss())  # a penalty on activities
    assert warnings() == []


WHOLE = partial(Minibatches, 100)


def train_on(net, T, B, iterator=WHOLE):
    net.initialize(0.1)
    trainer = Trainer(SgdStepper(0.001), verbose=False)
    trainer.add_hook(StopAfterEpoch(2))
    trainer.train(net, iterator(**data_for(net, T, B)))


def linear(*more):
    return wire(*more, bl.FullyConnected(2, "linear"))


def test_rows_given_as_steps_are_a_warning_once_for_each_network(warnings):
    nets = [linear(), linear()]
    for net in (*nets, *nets):
        train_on(net, 30, 1)
    assert warnings() == 2 * [
        "layer 'Input': all data are one sequence of 30 steps, but no layer connects steps. If "
        "they are 30 rows, use the shape (1, 30, ...): data.swapaxes(0, 1). Then the loss is the "
        "mean over the rows; now it is their sum. If they are a sequence, use "
        "SequenceChunks(30, ...). See docs/not_learning.md#rows-given-as-time-steps."
    ]


def test_steps_given_as_rows_are_a_warning(warnings):
    layers = [bl.Recurrent(3, name=name) for name in "RST"]
    images = wire(*layers[1:], bl.FullyConnected(2, "linear"), features=(4, 5, 1))
    for net in (linear(), linear(layers[0]), images):
        train_on(net, 1, 30)
    start, rows, link = (
        "layer 'Input': all data have one time step, but ",
        "over time. If the rows are the steps of one sequence, use the shape (steps, 1, ...): "
        "data.swapaxes(0, 1). ",
        "See docs/not_learning.md#steps-given-as-rows.",
    )
    columns = (
        "If the columns of images are the steps, use (columns, B, rows, channels): "
        "data[0].transpose(2, 0, 1, 3). "
    )
    assert warnings() == [
        f"{start}'R' (Recurrent) computes {rows}{link}",
        f"{start}'S' (Recurrent), 'T' (Recurrent) compute {rows}{columns}{link}",
    ]


def chunks_of(**x):
    return IterableBatches([Chunk(x, continues=False)])


@pytest.mark.parametrize(
    ("more", "T", "B", "iterator"),
    [
        ([], 1, 30, WHOLE),
        ([bl.Recurrent(3)], 1, 30, chunks_of),
        ([bl.Recurrent(3)], 1, 30, partial(SequenceChunks, 1)),
        ([], 30, 2, partial(Minibatches, 1)),  # sequences of which each is a batch
        ([], 4, 1, WHOLE),
        ([bl.Recurrent(3)], 30, 1, WHOLE),
        ([bl.Reverse()], 30, 1, WHOLE),
        ([bl.PositionalEncoding()], 30, 1, WHOLE),
        ([], 30, 1, partial(SequenceChunks, 30)),
        ([], 30, 1, lambda **x: AddGaussianNoise(SequenceChunks(30, **x), {"default": 0.1})),
    ],
)
def test_rows_and_sequences_are_no_warning(warnings, more, T, B, iterator):
    train_on(linear(*more), T, B, iterator)
    assert warnings() == []


def test_a_loss_over_whole_sequences_couples_their_steps(warnings):
    net = wire(bl.FullyConnected(3, "linear"), loss=bl.CTC, targets=(1,), port="labels")
    warn_of_one_sequence(net.layers, 30, 1)
    assert warnings() == []
    net = wire(
        bl.BatchNorm(), bl.FullyConnected(2, "linear")
    )  # which is over all steps, as over rows
    warn_of_one_sequence(net.layers, 30, 1)
    assert len(warnings()) == 1
