"""Architecture dictionaries: both connection forms, order, and the text of every refusal."""

import pytest

from brainstorm import layers as bl
from brainstorm.errors import (
    LayerValidationError,
    NetworkValidationError,
    UnknownTypeError,
    ValidationError,
)
from brainstorm.layers import FullyConnected, Input, Loss, Recurrent, SoftmaxCE
from brainstorm.layers.base_layer import Layer, get_layer_class_from_typename
from brainstorm.network import Network
from brainstorm.structure.architecture import (
    Connection,
    collect_all_connections,
    collect_all_outgoing_connections,
    generate_architecture,
    get_canonical_layer_order,
    get_kwargs,
    get_layer_description,
    instantiate_layers_from_architecture,
    parse_connection,
)
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import build_layer
from tests.networks import assert_gradients, checked


def architecture(**changes):
    layers = {
        "Input": {
            "@type": "Input",
            "@outgoing_connections": ["Hidden"],
            "out_shapes": {"default": ("T", "B", 4)},
        },
        "Hidden": {"@type": "FullyConnected", "@outgoing_connections": [], "size": 3},
    }
    return layers | {name: layers.get(name, {}) | change for name, change in changes.items()}


def wired(name, targets):
    """Return the architecture with other connections of a layer."""
    return architecture(**{name: {"@outgoing_connections": targets}})


def test_wiring_gives_the_dictionary_form():
    inp = Input({"default": ("T", "B", 4), "targets": ("T", "B", 1)})
    out = SoftmaxCE(name="Out")
    inp >> FullyConnected(3, name="Hidden") >> out - "loss" >> Loss()
    inp - "targets" >> "targets" - out
    inp - "targets" >> "targets" - out
    built = generate_architecture(out)
    assert built["Input"] == {
        "@type": "Input",
        "@outgoing_connections": {"default": ["Hidden.default"], "targets": ["Out.targets"]},
        "out_shapes": {"default": ("T", "B", 4), "targets": ("T", "B", 1)},
    }
    assert built["Hidden"] == {
        "@type": "FullyConnected",
        "@outgoing_connections": {"default": ["Out.default"]},
        "size": 3,
        "activation": "rel",
    }
    assert generate_architecture(inp) == built


@pytest.mark.parametrize("wrong", ["Hidden", FullyConnected, [FullyConnected(3)]])
def test_what_is_no_layer(wrong):
    with pytest.raises(
        NetworkValidationError,
        match=r"^expected a layer, as FullyConnected\(100\) returns one, got .*\.$",
    ):
        Network.from_layer(wrong)


@pytest.mark.parametrize("targets", [["Hidden"], ("Hidden.default",), {"default": ["Hidden"]}])
def test_connection_forms_are_equivalent(targets):
    net = Network.from_architecture(architecture(Input={"@outgoing_connections": targets}))
    assert net.layers["Hidden"].incoming == {Connection("Input", "default", "Hidden", "default")}


def test_canonical_order_is_by_distance_to_the_outputs_then_alphabetical():
    links = {"Input": ["B", "A", "Z"], "A": ["C"], "B": ["C"], "C": [], "Z": []}
    built = {n: {"@type": "X", "@outgoing_connections": out} for n, out in links.items()}
    assert get_canonical_layer_order(built) == ["Input", "A", "B", "C", "Z"]
    assert collect_all_connections(built) == sorted(collect_all_connections(built))


def test_the_callers_dictionary_is_not_changed_and_may_change():
    built = architecture()
    before = repr(built)
    net = Network.from_architecture(built)
    assert repr(built) == before
    built["Hidden"]["size"] = 5
    built["Input"]["out_shapes"]["default"] = ("T", "B", 7)
    assert net.architecture == architecture()


LOOP = {
    "Hidden": {"@outgoing_connections": ["A"]},
    "A": {"@type": "NoOp", "@outgoing_connections": ["B"]},
    "B": {"@type": "NoOp", "@outgoing_connections": ["A"]},
}
TWO_OUTPUTS = {"out_shapes": {"x": ("T", "B", 3), "y": ("T", "B", 3)}}
REFUSED = {
    UnknownTypeError: [(architecture(Hidden={"@type": "FulyConnected"}), "Did you mean 'Full")],
    LayerValidationError: [
        (architecture(Hidden={"sise": 3}), "unknown option 'sise'.*'size'"),
        (wired("Input", ["Hidden.left"]),
         r"layer 'Hidden' \(FullyConnected\): unknown input 'left'. Choices are: default"),
        (wired("Input", {"defaults": ["Hidden"]}),
         r"layer 'Input' \(Input\): unknown output 'defaults'.*Did you mean 'default'"),
        (architecture(Input=TWO_OUTPUTS),
         r"layer 'Input' \(Input\): unknown output 'default'. Choices are: x, y. Name it in the "
         r"connection: Input - 'y' >> Hidden."),
        (wired("Input", []), "layer 'Hidden' .*input 'default': expected .* but nothing is conn"),
    ],
    NetworkValidationError: [
        (wired("Input", ["Hiden"]),
         "connection Input.default -> Hiden.default: unknown layer 'Hiden'.*mean 'Hidden'"),
        (wired("Hidden", ["Input"]), "takes data from outside"),
        (wired("Hidden", "Input"), "layer 'Hidden', '@outgoing_connections': expected a list"),
        (wired("Hidden", [5]), "expected a list of 'layer.input' strings"),
        (wired("Input", {1: ["Hidden"]}),
         "layer 'Input', '@outgoing_connections': expected .* a dict from output names to such"),
        (architecture(Hidden={"@type": 3}), "layer 'Hidden': expected a dict"),
        (architecture(fallback={"@type": "NoOp"}), "name 'fallback'"),
        ({**architecture(), 5: {"@type": "NoOp"}}, "layer name 5"),
        ({**architecture(), "Other": 5}, "layer 'Other': expected a dict"),
        ({}, "expected a dict of layers, got an empty one"),
        ([], "expected a dict of layers, got list"),
        (architecture(gradients={"@type": "NoOp"}),
         "layer 'gradients': the name is taken by net.buffer.gradients. Choose another one"),
        (architecture(Hidden={"@shared_parameter": "Input"}),
         "layer 'Hidden': unknown key '@shared_parameter'.*Did you mean '@shared_parameters'"),
        (architecture(Input={"rnd": 1}), "^layer 'Input': no option can be called 'rnd'.$"),
        (architecture(Input={"self": 1, "name": 2}),
         "^layer 'Input': no option can be called 'name' or 'self'.$"),
        ({"Input": {"@type": "Input", 5: 1}},
         r"^layer 'Input': expected texts as keys, got \['@type', 5\].$"),
        ({"Data": {"@type": "Input", "out_shapes": {}}},
         r"exactly one layer of type Input, called 'Input', got \['Data'\]"),
        (architecture(Input2={"@type": "Input", "out_shapes": {}}), r"got \['Input', 'Input2'\]"),
        ({"A": {"@type": "NoOp", "@outgoing_connections": []}}, "got none"),
        (architecture(**LOOP), "form a loop: A -> B -> A"),
    ],
}  # fmt: skip


ROWS = [(error, *row) for error, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("error", "built", "message"), ROWS, ids=[row[2][:40] for row in ROWS])
def test_refusals(error, built, message):
    with pytest.raises(error, match=message):
        Network.from_architecture(built)


def fed(layer, **shapes):
    """Return an Input whose outputs lead to the inputs of a layer that they are named after."""
    inp = Input(shapes)
    for output in shapes:
        inp - output >> output.rstrip("_") - layer
    return inp


TIMED = ("T", "B", 3)
WIRED = [
    (lambda: fed(FullyConnected(3, name="To"), default=("T", "B", 4, 3), default_=("T", "B", 4)),
     NetworkValidationError, r"layer 'To', input 'default', joined from Input.default, "
     r"Input.default_: cannot join \(T, B, 4, 3\) and \(T, B, 4\)"),
    (lambda: fed(Loss(), default=TIMED, default_=("B", 3)),
     NetworkValidationError, "a time sized buffer .* and a batch sized"),
    (lambda: fed(FullyConnected(3, name="To"), default=(4,)),
     LayerValidationError, r"layer 'To' \(FullyConnected\), input 'default': expected "
     r"\(T, B, \.\.\.\), got \(4,\) from 'Input.outputs.default'"),
    (lambda: fed(Loss(name="total_loss"), default=TIMED),
     NetworkValidationError, "'total_loss'.*the name is taken"),
    (lambda: fed(ConstructionWrapper.create("NoSuchLayerImpl"), default=TIMED),
     UnknownTypeError, "unknown layer type 'NoSuch'"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "error", "message"), WIRED, ids=[row[2][:40] for row in WIRED])
def test_wirings_that_are_refused(wire, error, message):
    with pytest.raises(error, match=message):
        Network.from_layer(wire())


@pytest.mark.parametrize(
    ("layer", "output", "message"),
    [
        (FullyConnected(2), "parameters.X", "unknown parameter 'X'. .*: W, "),
        (FullyConnected(2), "gradients.W", "special output '..gradients.W'"),
        (FullyConnected(2), "internals.Ha", "unknown internal 'Ha'"),
        (bl.Dropout(), "internals.mask", "delta of internal 'mask' .*'dmask'"),
        (bl.MultiHeadSelfAttention(1, name="A"), "internals.P",
         r"layer 'Loss', input 'default', joined from A\.\.\.internals\.P: cannot connect "
         r"\(T, B, 1, T\): no layer takes features that grow with T"),
        (Recurrent(2), "internals.Ha", "overwrites the deltas of its int"),
    ],
)  # fmt: skip
def test_special_outputs_that_are_refused(layer, output, message):
    inp = Input({"default": TIMED})
    inp >> layer - f"..{output}" >> Loss()
    with pytest.raises((LayerValidationError, NetworkValidationError), match=message):
        Network.from_layer(inp)


# -- hostile architectures ------------------------------------------------------------------------


def test_an_architecture_without_an_end_or_that_would_unfold_to_billions():
    endless, lists = {"@type": "Input", "out_shapes": {"default": ("T", "B", 3)}}, [0]
    endless["again"] = endless
    for _ in range(40):
        lists = [lists] * 10
    for entry, text in (
        (endless, "at most 64 levels of lists"),
        ({"@type": "Input", "out_shapes": lists}, "at most 1000000 lists and"),
    ):
        with pytest.raises(ValidationError, match=f"architecture: expected {text}"):
            instantiate_layers_from_architecture({"Input": entry})


class HalvesLayerImpl(Layer):
    """(x / 2)², whose internal H = x / 2 may be an output too: its delta is added to."""

    expected_inputs = {"default": StructureTemplate("T", "B", "...")}

    def setup(self, kwargs, in_shapes):
        shape = in_shapes["default"].shape
        names = {"H": False, "dH": True}
        internals = {n: BufferStructure(*shape, is_backward_only=b) for n, b in names.items()}
        return {"default": BufferStructure(*shape)}, {}, internals

    def forward_pass(self, buffers, training_pass=True):
        half = buffers.internals.H
        self.handler.mult_st(0.5, buffers.inputs.default, half)
        self.handler.mult_tt(half, half, buffers.outputs.default)

    def backward_pass(self, buffers):
        half, delta = buffers.internals
        for _ in range(2):  # the derivative of the square is twice its root
            self.handler.mult_add_tt(half, buffers.output_deltas.default, delta)
        self.handler.mult_add_st(0.5, delta, buffers.input_deltas.default)


def test_a_loss_on_an_internal_reaches_the_weights():
    inp, half = Input({"default": ("T", "B", 3)}), ConstructionWrapper.create(HalvesLayerImpl)
    inp >> bl.FullyConnected(3, "tanh") >> half >> Loss(name="Squares")
    half - "..internals.H" >> bl.Elementwise("tanh") >> Loss(name="Halves")
    assert_gradients(checked(inp))


def test_parts_of_an_architecture():
    inp, hidden = bl.Input({"default": ("T", "B", 3)}), bl.FullyConnected(2, name="Hidden")
    inp >> hidden >> bl.Loss()
    entry = get_layer_description(hidden.layer)
    assert parse_connection("A") == ("A", "default")
    assert parse_connection("A.b") == ("A", "b")
    assert get_kwargs(entry) == {"size": 2, "activation": "rel"}
    assert collect_all_outgoing_connections(entry, "Hidden") == [
        Connection("Hidden", "default", "Loss", "default")
    ]


def test_a_layer_class_by_its_name():
    assert get_layer_class_from_typename("LossLayerImpl").__name__ == "LossLayerImpl"
    with pytest.raises(TypeError, match="unknown layer type 'Lost'"):
        get_layer_class_from_typename("LostLayerImpl")


def test_categories_of_shapes():
    layer = build_layer(bl.Lstm(2), {"default": ("T", "B", 3)})
    for path in ("inputs.default", "outputs.default", "parameters.Wz", "internals.Ca"):
        assert layer.get_shape(path).feature_size in (2, 3, 6)
    with pytest.raises(LayerValidationError, match="unknown category 'deltas'"):
        layer.get_shape("deltas.default")
