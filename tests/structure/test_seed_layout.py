"""The architecture and the joint layout printed in the project's founding documents.

The printed layout speaks of one big buffer per type; here each hub is an array of its own, so a
printed slice is the hub's start among the forward hubs of its type plus the slice inside the hub.
Slips of the printed text: targets and ``OutLayer.internals.Ha`` are 10 wide, an input has exactly
T steps, and the outputs of ``Input`` are separate hubs, because their consumers differ.
"""

from brainstorm.layers import Input
from brainstorm.layers.base_layer import Layer
from brainstorm.network import Network
from brainstorm.structure.architecture import validate_architecture
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import create_layout, gather_array_nodes
from tests.networks import layers_of

ARCHITECTURE = {
    "Input": {
        "@type": "Input",
        "@outgoing_connections": {"default": ["hidden_layer"], "targets": ["output_layer.targets"]},
        "out_shapes": {"default": ("T", "B", 784), "targets": ("T", "B", 1)},
    },
    "hidden_layer": {
        "@type": "FullyConnected",
        "@outgoing_connections": {"default": ["output_projection"]},
        "activation": "rel",
        "size": 100,
    },
    "output_projection": {
        "@type": "FullyConnected",
        "@outgoing_connections": {"default": ["output_layer"]},
        "activation": "linear",
        "size": (10,),
    },
    "output_layer": {"@type": "SoftmaxCE", "@outgoing_connections": {"loss": ["loss_layer"]}},
    "loss_layer": {"@outgoing_connections": {}, "@type": "Loss", "importance": 1.0},
}


def test_the_printed_architecture_becomes_a_network():
    assert validate_architecture(ARCHITECTURE) is True
    net = Network.from_architecture(ARCHITECTURE)
    assert list(net.layers) == list(ARCHITECTURE)
    assert net.buffer.hidden_layer.parameters.W.shape == (100, 784)
    assert net.parameters_size == 784 * 100 + 100 + 100 * 10 + 10


class SeedDenseLayerImpl(Layer):
    """Declares the buffers of the printed Rnn and OutLayer; it is never run."""

    expected_kwargs = {"size", "is_recurrent"}

    def setup(self, kwargs, in_shapes):
        n, size, context = in_shapes["default"].feature_size, kwargs["size"], kwargs["is_recurrent"]
        shapes = {"W": (n, size), "R": (size, size), "b": (size,)}
        rows = BufferStructure("T", "B", size, context_size=int(context))
        parameters = {p: BufferStructure(*s) for p, s in shapes.items() if context or p != "R"}
        return {"default": rows}, parameters, {"Ha": rows}


class SeedMseLayerImpl(Layer):
    """Declares the buffers of the printed Mse."""

    expected_inputs = {
        "net_out": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }

    def setup(self, kwargs, in_shapes):
        return {"default": BufferStructure("T", "B", 1)}, {}, {}


#: Path to slice, features and context.
PRINTED_ARRAYS = {
    "Input.outputs.input_data": ((0, 4), (4,), 0),
    "Input.outputs.targets": ((4, 14), (10,), 0),
    "Rnn.inputs.default": ((0, 4), (4,), 0),
    "Rnn.outputs.default": ((14, 19), (5,), 1),
    "Rnn.parameters.W": ((0, 20), (4, 5), 0),
    "Rnn.parameters.R": ((20, 45), (5, 5), 0),
    "Rnn.parameters.b": ((45, 50), (5,), 0),
    "Rnn.internals.Ha": ((30, 35), (5,), 1),
    "OutLayer.inputs.default": ((14, 19), (5,), 0),
    "OutLayer.outputs.default": ((19, 29), (10,), 0),
    "OutLayer.parameters.W": ((50, 100), (5, 10), 0),
    "OutLayer.parameters.b": ((100, 110), (10,), 0),
    "OutLayer.internals.Ha": ((35, 45), (10,), 0),
    "Mse.inputs.net_out": ((19, 29), (10,), 0),
    "Mse.inputs.targets": ((4, 14), (10,), 0),
    "Mse.outputs.default": ((29, 30), (1,), 0),
}
PRINTED_VIEWS = {
    "Rnn.inputs": (0, 4), "Rnn.outputs": (14, 19), "Rnn.parameters": (0, 50),
    "Rnn.internals": (30, 35), "OutLayer.inputs": (14, 19), "OutLayer.outputs": (19, 29),
    "OutLayer.parameters": (50, 110), "OutLayer.internals": (35, 45), "Mse.outputs": (29, 30),
}  # fmt: skip
WITHOUT_SLICE = ["Input.inputs", "Input.outputs", "Input.parameters", "Mse.inputs", "Mse.internals"]
CATEGORIES = ("inputs", "outputs", "parameters", "internals")


def seed_layout():
    mse = ConstructionWrapper.create("SeedMseLayerImpl", name="Mse")
    inputs = Input(out_shapes={"input_data": ("T", "B", 4), "targets": ("T", "B", 10)})
    rnn, out = (
        ConstructionWrapper.create("SeedDenseLayerImpl", name, size=size, is_recurrent=is_recurrent)
        for name, size, is_recurrent in (("Rnn", 5, True), ("OutLayer", 10, False))
    )
    inputs - "input_data" >> rnn >> out >> "net_out" - mse
    inputs - "targets" >> "targets" - mse
    hubs, layout = create_layout(layers_of(mse))
    starts, running = [], [0, 0, 0]
    for hub in hubs:
        starts.append(running[hub.buffer_type])
        if not hub.is_backward_only:
            running[hub.buffer_type] += hub.size

    def joint_slice(node):
        return tuple(starts[node["@hub"]] + bound for bound in node["@slice"])

    return layout, joint_slice, running


def test_the_printed_arrays():
    layout, joint_slice, running = seed_layout()
    nodes = dict(gather_array_nodes(layout))
    inner = {path for path in nodes if any(f".{category}." in path for category in CATEGORIES)}
    assert inner == PRINTED_ARRAYS.keys()
    for path, (part, features, context) in PRINTED_ARRAYS.items():
        node, lead = nodes[path], () if ".parameters." in path else ("T", "B")
        assert (joint_slice(node), node["@shape"]) == (part, (*lead, *features)), path
        assert node.get("@context_size", 0) == context, path
    assert running == [110, 0, 45], "the sizes of the constant, batch and time sized buffers"


def test_the_printed_views_and_their_order():
    layout, joint_slice, _ = seed_layout()
    for layer in ("Input", "Rnn", "OutLayer", "Mse"):
        assert layout[layer]["@type"] == "BufferView"
        assert [layout[layer][category]["@index"] for category in CATEGORIES] == [0, 1, 2, 3]
        for category in CATEGORIES:
            node, path = layout[layer][category], f"{layer}.{category}"
            found = joint_slice(node) if "@slice" in node else None
            if path in PRINTED_VIEWS or path in WITHOUT_SLICE:
                assert found == PRINTED_VIEWS.get(path), path
