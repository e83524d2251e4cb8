"""Shared parameters and in-place layers: one memory, right gradients, refused where unsafe."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError, NetworkValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.network import Network
from brainstorm.structure.architecture import generate_architecture
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import SgdStepper
from brainstorm.value_modifiers import ClipValues
from tests.networks import (
    assert_gradients,
    chain,
    checked,
    classifier,
    data_for,
    forward,
    provide,
    wire_input,
    wire_loss,
)


def twins(layer_type=bl.FullyConnected, **kwargs):
    first = layer_type(2, "tanh", name="First")
    second = layer_type(2, "tanh", name="Second").share_parameters_with(first)
    return classifier(first, second, features=(2,))


def test_layers_that_several_are_made_of_share_parameters_each():
    first, second = (bl.BidirectionalWrapper(bl.Gru, 1, name=name) for name in ("First", "Second"))
    second.share_parameters_with(first)
    net = checked(classifier(first, second, features=(2,)))
    parameters = net.parameter_slices
    assert {path.partition(".")[0] for path in parameters} == {
        *("First_forward", "First_backward", "Projection")
    }
    assert_gradients(net)


def test_an_embedding_shares_the_matrix_of_the_last_layer_but_has_no_bias_for_it():
    def tied(user, owner):
        inp, embedding = wire_input((1,)), bl.Embedding(3, 2, name="Embedding")
        layers = {"first": embedding, "last": bl.FullyConnected(3, "linear", name="Last")}
        layers[user].share_parameters_with(layers[owner])
        return checked(wire_loss(inp, chain(inp, embedding, bl.Gru(2), layers["last"])))

    classes = np.arange(6).reshape(3, 2, 1) % 3
    assert_gradients(tied("first", "last"), {"default": classes, "targets": classes[::-1]})
    with pytest.raises(LayerValidationError, match="Let 'Embedding' share those of 'Last'"):
        tied("last", "first")


@pytest.mark.parametrize("layer_type", [bl.FullyConnected, bl.Recurrent, bl.Lstm])
def test_shared_parameters_are_one_memory_with_summed_gradients(layer_type):
    net = checked(twins(layer_type))
    projection = 2 * 3 + 3
    assert net.parameters_size == net.buffer.First.parameters._full_buffer.size + projection
    for name, array in net.buffer.First.parameters.items():
        shared = net.buffer.Second.parameters[name]
        assert np.shares_memory(array.array, shared.array)
        assert net.memory(1, 1).layers["Second"].get("parameters") is None
    assert_gradients(net)


def test_modifiers_apply_once_and_references_to_those_of_another_layer_are_refused():
    net = checked(twins())
    net.set_weight_modifiers(ClipValues(-0.1, 0.1))
    assert set(net.weight_modifiers) == {"First", "Projection"}
    for use in (net.initialize, net.set_weight_modifiers, net.set_gradient_modifiers):
        with pytest.raises(
            NetworkValidationError, match="shares those of 'First'. Name that instead"
        ):
            use({"default": ClipValues(), "Second": ClipValues()})


def test_sharing_survives_architecture_and_file(tmp_path):
    net = checked(twins())
    assert net.architecture["Second"]["@shared_parameters"] == "First"
    net.save_as_hdf5(tmp_path / "net.hdf5")
    loaded = Network.from_hdf5(tmp_path / "net.hdf5")
    np.testing.assert_array_equal(loaded.get("Second.parameters.W"), net.get("First.parameters.W"))
    assert loaded.parameters_size == net.parameters_size


def sharing(shared, size=4):
    """Return the architecture of a chain of layers that share parameters."""
    layers = [bl.FullyConnected(n, name=x) for x, n in (("A", 4), ("B", size), ("C", 4))]
    built = generate_architecture(chain(bl.Input({"default": ("T", "B", 4)}), *layers))
    for name, value in shared.items():
        built[name]["@shared_parameters"] = value
    return built


@pytest.mark.parametrize(
    ("shared", "size", "message"),
    [
        ({"B": "X"}, 4, "unknown layer 'X'"),
        ({"B": "Input"}, 4, "unknown parameter 'W'. There are none"),
        ({"B": {"V": "A.W"}}, 4, "unknown parameter 'V'. Choices are: W, bias"),
        ({"B": {"W": "A.bias"}}, 4, r"expected shape \(4, 4\), got \(4,\)"),
        ({"B": "A"}, 5, r"'W' cannot be shared with 'A.W': expected shape \(5, 4\), got \(4, 4\)"),
        ({"B": "A", "C": "B"}, 4, "it is not the owner"),
        ({"B": "B"}, 4, "it is not the owner"),
        ({"B": {"W": 5}}, 4, "^layer 'B', '@shared_parameters': expected"),
    ],
)
def test_what_cannot_be_shared(shared, size, message):
    with pytest.raises((LayerValidationError, NetworkValidationError), match=message):
        Network.from_architecture(sharing(shared, size))


def test_single_parameters_can_be_shared():
    net = Network.from_architecture(sharing({"C": {"W": "A.W"}}), handler=NumpyHandler())
    assert np.shares_memory(net.buffer.C.parameters.W, net.buffer.A.parameters.W)
    assert not np.shares_memory(net.buffer.C.parameters.bias, net.buffer.A.parameters.bias)


# -- in place -------------------------------------------------------------------------------------


def test_in_place_layers_use_less_memory_and_compute_the_same():
    def train(inplace):
        drop, act = bl.Dropout(0.4, inplace=inplace), bl.Elementwise("tanh", "Act", inplace)
        fc = [bl.FullyConnected(n, "linear", name=f"Fc{n}") for n in (5, 4)]
        net, stepper = checked(classifier(fc[0], drop, fc[1], act)), SgdStepper(0.1)
        provide(net)
        stepper.start(net)
        for _ in range(3):
            stepper.run()
        assert net.layers["Act"].characteristics.is_inplace == inplace
        return net

    ours, theirs = train(True), train(False)
    for read in (lambda n: n.get("parameters"), lambda n: n.predict(data_for(n)["default"])):
        np.testing.assert_allclose(read(ours), read(theirs), rtol=1e-12)
    assert ours.memory(5, 5).total < theirs.memory(5, 5).total
    outputs = (ours.buffer[f"{name}.outputs.default"].array for name in ("Fc4", "Act"))
    assert np.shares_memory(*outputs)


def linear(name):
    return bl.FullyConnected(4, "linear", name=name)


def tanh_in_place():
    return bl.Elementwise("tanh", name="Act", inplace=True)


def second_consumer():
    inp, fc = wire_input(), linear("Fc")
    inp >> fc >> tanh_in_place() >> bl.Loss(name="L1")
    fc >> bl.Loss(name="L2")
    return inp


def joined():
    inp, act = wire_input(), tanh_in_place()
    for name in "AB":
        inp >> linear(name) >> act
    return inp


class DoubleLayerImpl(bl.Layer):
    """In place, although it adds to its input deltas."""

    is_inplace = True
    needs_in_backward = ()

    def setup(self, kwargs, in_shapes):
        return {"default": in_shapes["default"]}, {}, {}


REFUSED = {
    "the data that was provided would be lost": lambda: classifier(bl.Dropout(inplace=True)),
    "cannot work in place on 'Fc.default': layer 'Fc' needs its outputs in the backward pass": (
        lambda: classifier(bl.FullyConnected(3, "rel", name="Fc"), bl.Dropout(inplace=True))
    ),
    "layer 'Rnn' needs its output for the next time step": (
        lambda: classifier(bl.Recurrent(3, name="Rnn"), bl.Dropout(inplace=True))
    ),
    "it needs its own inputs in the backward pass": (
        lambda: classifier(linear("Fc"), bl.Elementwise("gelu", inplace=True))
    ),
    "L2 would get the overwritten values": second_consumer,
    "its input is joined from several outputs": joined,
    r"so it cannot add to them.*declare can_overwrite = \('input_deltas',\)": (
        lambda: classifier(linear("Fc"), ConstructionWrapper.create(DoubleLayerImpl))
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_in_place_is_refused_with_the_reason(reason):
    with pytest.raises(LayerValidationError, match=reason):
        Network.from_layer(REFUSED[reason]())


@pytest.mark.parametrize("memory", ["inspectable", "compact"])
def test_outputs_are_joined_in_the_same_order_if_a_layer_works_in_place(memory):
    found = []
    for inplace in (False, True):
        inp, join = bl.Input({"default": ("T", "B", 2)}), bl.FullyConnected(1, "linear", "Join")
        inp >> bl.FullyConnected(2, "linear", "z") >> bl.Elementwise("tanh", "Act", inplace) >> join
        inp >> join >> bl.Loss()
        net = Network.from_layer(inp, memory=memory, handler=NumpyHandler(np.float64))
        weights = {"z": np.eye(2), "Join": np.array([[1.0, 10, 100, 1000]])}
        net.initialize({name: {"W": W, "bias": 0} for name, W in weights.items()})
        forward(net, data={"default": np.array([[[0.1, 0.2]]])}, training_pass=False)
        found.append(net.get("Join.outputs.default"))
    np.testing.assert_array_equal(*found)
    assert found[0] == pytest.approx(np.tanh(0.1) + 10 * np.tanh(0.2) + 100 * 0.1 + 1000 * 0.2)
