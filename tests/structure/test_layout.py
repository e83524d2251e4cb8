"""What shares memory, in which order, and what is copied."""

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.layers import FullyConnected, Input, L2Decay, Loss, Lstm, Recurrent
from brainstorm.layers.base_layer import Layer
from brainstorm.network import Network
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import (
    create_layout,
    create_layout_stub,
    gather_array_nodes,
    get_order,
)
from tests.networks import WIRINGS, build, classifier, forward, layers_of


def lay_out(some_layer, **kwargs):
    hubs, layout = create_layout(layers_of(some_layer), **kwargs)
    return hubs, dict(gather_array_nodes(layout)), layout


def four_layers():
    inp = Input({"default": ("T", "B", 2)})
    a, b, c, d = (FullyConnected(n, name=x) for n, x in ((3, "A"), (5, "B"), (7, "C"), (11, "D")))
    for start, end in ((inp, a), (inp, b), (a, c), (b, c), (b, d), (c, d)):
        start >> end
    return inp


def test_the_worked_example():
    hubs, nodes, layout = lay_out(four_layers(), keep_input_deltas=True)
    assert [hub.size for hub in hubs] == [230, 2, 15, 11, 230, 2, 15, 11]
    assert nodes["C.inputs.default"]["@slice"] == (0, 8)
    assert nodes["D.inputs.default"]["@slice"] == (3, 15)
    assert nodes["D.inputs.default"]["@sources"] == ["B.outputs.default", "C.outputs.default"]
    assert nodes["C.input_deltas.default"]["@slice"] == (0, 8)
    assert nodes["parameters"]["@shape"] == (230,)
    assert layout["B"]["parameters"]["@slice"] == (9, 24)
    assert get_order(layout["A"]) == (
        *("inputs", "outputs", "parameters", "internals"),
        *("input_deltas", "output_deltas", "gradients"),
    )


def test_without_parameters_the_flat_arrays_are_empty():
    net = Network.from_layer(Input({"default": ("T", "B", 2)}) >> Loss())
    nodes = net._buffer_manager.nodes
    assert nodes["parameters"]["@slice"] == nodes["gradients"]["@slice"] == (0, 0)
    assert net.get("parameters").shape == net.get("gradients").shape == (0,)


def test_what_cannot_be_adjacent_is_copied():
    _, nodes, _ = lay_out(WIRINGS["impossible"]())
    copied = {path: node["@copy_of"] for path, node in nodes.items() if "@copy_of" in node}
    assert len(copied) == 2, "one of three in the ring, forward and backward"
    (forward, backward) = copied
    assert backward == forward.replace(".inputs.", ".input_deltas.")
    assert copied[forward] == sorted(copied[forward])


def test_image_maps_are_joined_per_channel():
    net = build("channels")
    forward(net)
    sources = net._buffer_manager.nodes["joint.inputs.default"]["@copy_of"]
    assert sources == [f"{name}.outputs.default" for name in ("Input", "left", "right")]
    expected = np.concatenate([net.get(path) for path in sources], axis=4)
    np.testing.assert_array_equal(net.get("joint.inputs.default"), expected)
    assert net.layers["joint"].in_shapes["default"].shape == ("T", "B", 4, 4, 6)


def skip_chain(length, skips):
    members = [Input({"default": ("T", "B", 1)})]
    for i in range(length):
        members.append(FullyConnected(1, name=f"F{i}"))
        for skip in skips:
            members[-1 - min(skip, len(members) - 1)] >> members[-1]
    return members[0]


@pytest.mark.parametrize("skips", [(1, 2, 3), (2, 3)])
def test_long_skip_chains_need_no_search_and_no_copy(skips):
    _, nodes, _ = lay_out(skip_chain(60, skips))
    assert not [path for path, node in nodes.items() if "@copy_of" in node]
    assert nodes["F59.inputs.default"]["@shape"] == ("T", "B", len(skips))


def test_joint_buffers_are_adjacent():
    net = Network.from_layer(Input({"default": ("T", "B", 2)}) >> Lstm(3), handler=NumpyHandler())
    net.provide_external_data({"default": np.zeros((4, 5, 2))})
    internals, parameters = net.buffer.Lstm.internals, net.buffer.Lstm.parameters
    gates = internals.joint("Za", "Ia", "Fa", "Oa")
    weights = parameters.joint("Wz", "Wi", "Wf", "Wo")
    assert (gates.shape, weights.shape) == ((5, 5, 12), (12, 2))
    internals.Fa[...] = 7
    parameters.Wo[...] = 3
    assert (gates[..., 6:9] == 7).all()
    assert (weights[9:] == 3).all()


class UnknownJointLayerImpl(Layer):
    joint_buffers = {"internals": [("a", "c")]}

    def setup(self, kwargs, in_shapes):
        return {"default": in_shapes["default"]}, {}, {"a": BufferStructure(1)}


def test_joint_buffers_must_exist():
    odd = ConstructionWrapper.create(UnknownJointLayerImpl, name="Odd")
    with pytest.raises(ValueError, match="layer 'Odd', joint_buffers: unknown internal 'c'"):
        Network.from_layer(Input({"default": ("T", "B", 2)}) >> odd)


def test_only_deltas_that_lead_to_parameters_have_memory():
    inp = classifier(Recurrent(3, name="Rnn"))
    _, nodes, _ = lay_out(inp)
    null = {path for path, node in nodes.items() if "@null" in node}
    assert null == {
        "Input.output_deltas.default",
        "Input.output_deltas.targets",
        "Rnn.input_deltas.default",
        "Out.input_deltas.targets",
    }
    _, nodes, _ = lay_out(inp, keep_input_deltas=True)
    assert {path for path, node in nodes.items() if "@null" in node} == {"Out.input_deltas.targets"}


class FixedLayerImpl(Layer):
    computes_no_gradients_for = ("W",)

    def setup(self, kwargs, in_shapes):
        return {"default": in_shapes["default"]}, {"W": BufferStructure(2)}, {}


def test_a_loss_on_a_parameter_has_deltas_even_if_its_layer_computes_no_gradients():
    inp = Input({"default": ("T", "B", 2)})
    fixed = inp >> ConstructionWrapper.create(FixedLayerImpl)
    fixed - "..parameters.W" >> L2Decay() - "loss" >> Loss()
    _, nodes, _ = lay_out(inp)
    assert "@null" in nodes["Fixed.input_deltas.default"]
    assert "@null" not in nodes["L2Decay.input_deltas.default"]


@pytest.mark.parametrize(("rnn", "fc"), ["AB", "BA"])
def test_a_hub_takes_the_largest_context_of_its_members(rnn, fc):
    inp, target = Input({"default": ("T", "B", 2)}), FullyConnected(1, name="Target")
    for layer in (Recurrent(3, name=rnn), FullyConnected(4, name=fc)):
        inp >> layer >> target
    net = Network.from_layer(inp, handler=NumpyHandler())
    net.provide_external_data({"default": np.zeros((5, 1, 2))})
    assert net.buffer[rnn].outputs.default.shape == (6, 1, 3)
    assert net.buffer[fc].outputs.default.shape == (5, 1, 4)
    assert net.buffer.Target.inputs.default.shape == (5, 1, 7)


def test_the_numbers_of_siblings():
    stub = create_layout_stub(build("mlp").layers)
    for view in (stub, stub["Out"]):
        numbers = [node["@index"] for name, node in view.items() if name[0] != "@"]
        assert numbers == list(range(len(numbers)))
    assert list(stub)[2:5] == ["parameters", "gradients", "Input"]
