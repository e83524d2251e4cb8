"""Both directions of time: wiring, names, masks."""

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.layers import BidirectionalWrapper, FullyConnected, Gru, Input, Lstm, Recurrent
from brainstorm.network import Network
from brainstorm.structure.architecture import generate_architecture

RND = np.random.RandomState(8)


def test_it_is_used_like_one_layer():
    inp = Input({"default": ("T", "B", 3), "mask": ("T", "B", 1)})
    first, second = BidirectionalWrapper(Lstm, 4), BidirectionalWrapper(Gru, 2, name="Top")
    inp >> first >> second >> FullyConnected(1, name="Out")
    inp - "mask" >> "mask" - second
    architecture = generate_architecture(inp)
    assert set(architecture) == {
        *("Input", "Out", "Bidirectional", "Bidirectional_forward", "Bidirectional_reversed"),
        *("Bidirectional_backward", "Bidirectional_restored"),
        *("Top", "Top_forward", "Top_backward", "Top_reversed", "Top_restored"),
    }
    assert architecture["Bidirectional"]["@outgoing_connections"] == {
        "default": ["Top_forward.default", "Top_reversed.default"]
    }
    assert architecture["Input"]["@outgoing_connections"]["mask"] == [
        *("Top_backward.mask", "Top_forward.mask", "Top_restored.mask", "Top_reversed.mask")
    ]
    net = Network.from_architecture(architecture)
    assert net.layers["Top"].out_shapes["default"].shape == ("T", "B", 4)


def test_two_of_them_without_a_name():
    inp = Input({"default": ("T", "B", 3)})
    inp >> BidirectionalWrapper(Recurrent, 4) >> BidirectionalWrapper(Recurrent, 4)
    names = set(generate_architecture(inp))
    assert {"Bidirectional_1", "Bidirectional_forward_2", "Bidirectional_reversed_1"} <= names


def test_it_can_have_two_sources():
    inp = Input({"default": ("T", "B", 3), "more": ("T", "B", 2)})
    both = BidirectionalWrapper(Recurrent, 4)
    inp >> both
    inp - "more" >> both
    net = Network.from_layer(inp)
    assert net.layers["Bidirectional_backward"].in_shapes["default"].shape == ("T", "B", 5)


def test_what_it_refuses():
    inp = Input({"default": ("T", "B", 3)})
    match = (
        r"^BidirectionalWrapper: expected a function .*\(Lstm, 100\), got <Layer: 'default' - Ls"
    )
    with pytest.raises(NetworkValidationError, match=match):
        BidirectionalWrapper(Lstm(4))
    match = r"before 'Bidirectional': unknown input 'masks'.*Choices are: default, mask"
    with pytest.raises(NetworkValidationError, match=match):
        inp >> "masks" - BidirectionalWrapper(Recurrent, 4)
