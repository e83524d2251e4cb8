"""Names and wiring."""

import re

import pytest

from brainstorm.errors import NetworkValidationError, UnknownTypeError
from brainstorm.layers import BidirectionalWrapper, L2Decay, Lstm
from brainstorm.structure.construction import ConstructionWrapper, LayerDetails, UniquelyNamed


def connected(*basenames):
    objects = [UniquelyNamed(name) for name in basenames]
    for other in objects[1:]:
        objects[0].merge_scopes(other)
    return [o.name for o in objects]


def test_namesakes_are_numbered_in_order_of_creation():
    assert connected("A") == ["A"]
    assert connected("A", "B", "A", "A") == ["A_1", "B", "A_2", "A_3"]
    assert connected("A_2", "A", "A", "A") == ["A_2", "A_1", "A_3", "A_4"]  # A_2 is taken
    a, b, c, d = (UniquelyNamed("X") for _ in range(4))
    a.merge_scopes(b)
    c.merge_scopes(d)
    b.merge_scopes(c)
    assert [o.name for o in (a, b, c, d)] == ["X_1", "X_2", "X_3", "X_4"]


def layer(name, **kwargs):
    return ConstructionWrapper.create("FooLayerImpl", name=name, **kwargs)


def test_connecting_records_both_ends_and_returns_the_second():
    a, b = layer("a"), layer("b")
    assert a - "out" >> "in" - b is not None
    assert (a >> b) is b
    assert a.layer.outgoing == [("out", "in", b.layer), ("default", "default", b.layer)]
    assert b.layer.incoming == [(a.layer, "out", "in"), (a.layer, "default", "default")]


def test_in_place_chaining():
    first = x = layer("first")
    x >>= layer("second")
    x >>= layer("third")
    names = {la.name for la in first.layer.collect_connected_layers()}
    assert names == {"first", "second", "third"}


def test_ports_and_repr():
    ported = "left" - layer("a") - "right"
    assert (ported.input_name, ported.output_name) == ("left", "right")
    assert repr(ported) == "<Layer: 'left' - a - 'right'>"


NO_LAYER = "'>>' {} 'a': expected a layer such as FullyConnected(100), got {}. Call"


@pytest.mark.parametrize(
    ("wire", "error", "message"),
    [
        (lambda a: a >> 5, UnknownTypeError, NO_LAYER.format("after", "5")),
        (lambda a: a >> layer, UnknownTypeError, NO_LAYER.format("after", "<function layer>")),
        (lambda a: layer >> a, UnknownTypeError, NO_LAYER.format("before", "<function layer>")),
        (lambda a: a - 5, TypeError, "unsupported operand"),
        (lambda a: 5 - a, TypeError, "unsupported operand"),
    ],
)
def test_wrong_operands_are_named(wire, error, message):
    with pytest.raises(error, match=re.escape(message)):
        wire(layer("a"))


def test_options_are_given_to_the_function_of_a_layer():
    with pytest.raises(AttributeError, match="has no attribute 'activation'"):
        layer("a").activation = "rel"


@pytest.mark.parametrize("name", ["default", "fallback", "1a", "a b", "a\n", "", 5])
def test_bad_names(name):
    with pytest.raises(NetworkValidationError, match=r"layer name .* expected an identifier"):
        LayerDetails("Foo", name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: LayerDetails("a b"), "layer type 'a b': expected an identifier"),
        (lambda: ConstructionWrapper.create("Foo"), "Rename it to 'FooLayerImpl'"),
        (
            lambda: layer("a").share_parameters_with("b"),
            r"^share_parameters_with: expected a layer, .*, got 'b'\.$",
        ),
        (
            lambda: BidirectionalWrapper(Lstm, 3).share_parameters_with(Lstm(3)),
            r"^share_parameters_with: 'Bidirectional' is made of 5 layers, but 'Lstm' of 1\.$",
        ),
        (
            lambda: L2Decay(0.1),
            r"^layer name 0\.1: expected an identifier other than 'default' and 'fallback'\. If it "
            r"is an option of L2Decay, give it by keyword\.$",
        ),
    ],
)
def test_bad_types_and_options_without_a_keyword(wrong, message):
    with pytest.raises(NetworkValidationError, match=message):
        wrong()
