"""Shared parameters and in-place layers: one memory, right gradients, refused where unsafe."""

import numpy as np
import pytest

from brainstorm.errors import LayerValidationError, NetworkValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import Dropout, Elementwise, FullyConnected, Input, Loss, Lstm, Recurrent
from brainstorm.network import Network
from brainstorm.training import SgdStepper
from brainstorm.value_modifiers import ClipValues
from tests.networks import assert_gradients, classifier, data_for


def network(inp):
    net = Network.from_layer(inp, seed=1, handler=DebugHandler(NumpyHandler(np.float64)))
    net.initialize(Gaussian(0.5))
    return net


def twins(layer_type=FullyConnected, **kwargs):
    first = layer_type(4, "tanh", name="First")
    second = layer_type(4, "tanh", name="Second").share_parameters_with(first)
    return classifier(first, second)


@pytest.mark.parametrize("layer_type", [FullyConnected, Recurrent, Lstm])
def test_shared_parameters_are_one_memory_with_summed_gradients(layer_type):
    net = network(twins(layer_type))
    projection = 4 * 3 + 3
    assert net.parameters_size == net.buffer.First.parameters._full_buffer.size + projection
    for name, array in net.buffer.First.parameters.items():
        shared = net.buffer.Second.parameters[name]
        assert np.shares_memory(array.array, shared.array)
        assert net.memory(1, 1).layers["Second"].get("parameters") is None
    assert_gradients(net)


def test_modifiers_and_initializers_apply_once():
    net = network(twins())
    net.set_weight_modifiers(ClipValues(-0.1, 0.1))
    assert set(net.weight_modifiers) == {"First", "Projection"}
    with pytest.raises(NetworkValidationError, match="Second"):
        net.initialize({"Second": {"W": 0}, "default": 1})


def test_sharing_survives_architecture_and_file(tmp_path):
    net = network(twins())
    assert net.architecture["Second"]["@shared_parameters"] == "First"
    net.save_as_hdf5(tmp_path / "net.hdf5")
    loaded = Network.from_hdf5(tmp_path / "net.hdf5")
    np.testing.assert_array_equal(loaded.get("Second.parameters.W"), net.get("First.parameters.W"))
    assert loaded.parameters_size == net.parameters_size


def sharing(shared, size=4):
    built = {
        "Input": {
            "@type": "Input",
            "@outgoing_connections": ["A"],
            "out_shapes": {"default": ("T", "B", 4)},
        },
        "A": {"@type": "FullyConnected", "@outgoing_connections": ["B"], "size": 4},
        "B": {"@type": "FullyConnected", "@outgoing_connections": ["C"], "size": size},
        "C": {"@type": "FullyConnected", "@outgoing_connections": [], "size": 4},
    }
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
    ],
)
def test_what_cannot_be_shared(shared, size, message):
    with pytest.raises(LayerValidationError, match=message):
        Network.from_architecture(sharing(shared, size))


def test_malformed_sharing():
    with pytest.raises(NetworkValidationError, match="layer 'B', '@shared_parameters': expected"):
        Network.from_architecture(sharing({"B": {"W": 5}}))


def test_single_parameters_can_be_shared():
    net = Network.from_architecture(sharing({"C": {"W": "A.W"}}), handler=NumpyHandler())
    assert np.shares_memory(net.buffer.C.parameters.W, net.buffer.A.parameters.W)
    assert not np.shares_memory(net.buffer.C.parameters.bias, net.buffer.A.parameters.bias)


# -- in place -------------------------------------------------------------------------------------


def test_in_place_layers_use_less_memory_and_compute_the_same():
    def train(inplace):
        drop, act = Dropout(0.4, inplace=inplace), Elementwise("tanh", name="Act", inplace=inplace)
        fc = [FullyConnected(n, "linear", name=f"Fc{n}") for n in (5, 4)]
        net, stepper = network(classifier(fc[0], drop, fc[1], act)), SgdStepper(0.1)
        net.provide_external_data(data_for(net))
        stepper.start(net)
        for _ in range(3):
            stepper.run()
        assert net.layers["Act"].characteristics.is_inplace == inplace
        return net

    nets = train(True), train(False)
    data = data_for(nets[0])["default"]
    for ours, theirs in zip(
        *((net.get("parameters"), net.predict(data)) for net in nets), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert nets[0].memory(5, 5).total < nets[1].memory(5, 5).total
    outputs = (nets[0].buffer[f"{name}.outputs.default"].array for name in ("Fc4", "Act"))
    assert np.shares_memory(*outputs)


def test_gradients_through_in_place_layers():
    act = Elementwise("tanh", name="Act", inplace=True)
    assert_gradients(network(classifier(FullyConnected(4, "linear", name="Fc"), act)))


def second_consumer():
    inp = Input({"default": ("T", "B", 4)})
    fc = FullyConnected(4, "linear", name="Fc")
    inp >> fc >> Elementwise(name="Act", inplace=True) >> Loss(name="L1")
    fc >> Loss(name="L2")
    return inp


def joined():
    inp = Input({"default": ("T", "B", 4)})
    act = Elementwise(name="Act", inplace=True)
    inp >> FullyConnected(4, "linear", name="A") >> act
    inp >> FullyConnected(4, "linear", name="B") >> act
    return inp


REFUSED = {
    "input": (
        lambda: classifier(Dropout(inplace=True)),
        "the data that was provided would be lost",
    ),
    "activation": (
        lambda: classifier(FullyConnected(3, "rel", name="Fc"), Dropout(inplace=True)),
        "cannot work in place on 'Fc.default': layer 'Fc' needs its outputs in the backward pass",
    ),
    "recurrent": (
        lambda: classifier(Recurrent(3, name="Rnn"), Dropout(inplace=True)),
        "layer 'Rnn' needs its output for the next time step",
    ),
    "consumers": (second_consumer, "L2 would get the overwritten values"),
    "joined": (joined, "its input is joined from several outputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_in_place_is_refused_with_the_reason(case):
    wire, reason = REFUSED[case]
    with pytest.raises(LayerValidationError, match=reason):
        Network.from_layer(wire())


@pytest.mark.parametrize("method", ["initialize", "set_weight_modifiers", "set_gradient_modifiers"])
def test_references_to_those_of_another_layer_are_refused(method):
    net = network(twins())
    with pytest.raises(NetworkValidationError, match="shares those of 'First'. Name that instead"):
        getattr(net, method)({"default": ClipValues(), "Second": ClipValues()})


@pytest.mark.parametrize("memory", ["inspectable", "compact"])
def test_outputs_are_joined_in_the_same_order_if_a_layer_works_in_place(memory):
    found = []
    for inplace in (False, True):
        inp, first = Input({"default": ("T", "B", 2)}), FullyConnected(2, "linear", name="z")
        last = Elementwise("tanh", name="Act", inplace=inplace)
        join = FullyConnected(1, "linear", name="Join")
        inp >> first >> last >> join
        inp >> join >> Loss()
        net = Network.from_layer(inp, memory=memory, handler=NumpyHandler(np.float64))
        weights = {"z": np.eye(2), "Join": np.array([[1.0, 10, 100, 1000]])}
        net.initialize({name: {"W": W, "bias": 0} for name, W in weights.items()})
        net.provide_external_data({"default": np.array([[[0.1, 0.2]]])})
        net.forward_pass()
        found.append(net.get("Join.outputs.default"))
    np.testing.assert_array_equal(*found)
    assert found[0] == pytest.approx(np.tanh(0.1) + 10 * np.tanh(0.2) + 100 * 0.1 + 1000 * 0.2)
