"""Layers with the transposed weights of another one, in autoencoders."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError, NetworkValidationError
from brainstorm.network import Network
from tests.networks import assert_gradients, chain, checked, wire_input, wire_loss


def wire(*hidden, features=(4,)):
    """Wire Input >> hidden layers >> SquaredError >> Loss."""
    source = wire_input(features, features)
    return wire_loss(source, chain(source, *hidden), bl.SquaredError)


def autoencoder(activation="tanh", **kwargs):
    outer, inner = (bl.FullyConnected(n, activation, f"Enc{n}") for n in (3, 2))
    decoder = bl.TiedFullyConnected(outer, "linear", "Dec3", **kwargs)
    return [outer, inner, bl.TiedFullyConnected(inner, activation, "Dec2"), decoder]


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_gradients_of_a_deep_autoencoder(activation):
    net = checked(wire(*autoencoder(activation)))
    assert_gradients(net)
    assert net.parameters_size == (4 * 3 + 3) + (3 * 2 + 2) + 3 + 4
    for n in (3, 2):
        ours, theirs = (net.buffer[f"{part}{n}"].parameters.W for part in ("Dec", "Enc"))
        assert np.shares_memory(ours.array, theirs.array)
    assert net.get("Dec3.outputs.default").shape == (3, 2, 4)
    assert net.architecture["Dec2"]["@shared_parameters"] == {"W": "Enc2.W"}


def test_it_may_come_first_if_its_size_is_given():
    encoder = bl.FullyConnected(4, "tanh", "Enc")
    assert_gradients(checked(wire(bl.TiedFullyConnected(encoder, "tanh", "Dec", 3), encoder)))


def test_names_are_unique_among_both():
    encoder = bl.FullyConnected(4, name="Same")
    assert bl.TiedFullyConnected(encoder, name="Same").layer.name == "Same_2"
    assert encoder.layer.name == "Same_1"


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        (lambda enc: (bl.TiedFullyConnected(enc, "tanh", "Dec"), enc),
         r"layer 'Dec' .*option 'size': expected that .* got no W\. Tie it to such a layer, or"),
        (lambda enc: (rnn := bl.Lstm(3), bl.TiedFullyConnected(rnn)), "that of .* got no W"),
        (lambda enc: (bl.Reshape((2, 2)), c := bl.Convolution1D(3, 1), bl.TiedFullyConnected(c)),
         r"that of FullyConnected, got a W \(3, 1, 2\)\. Tie it to such a layer"),
        (lambda enc: (enc, bl.FullyConnected(5), bl.TiedFullyConnected(enc, "linear", "Dec")),
         r"layer 'Dec' .*'W' cannot be shared with 'Enc.W': expected shape \(5, 4\), got \(3, 4"),
        (lambda enc: (enc, bl.TiedFullyConnected(enc, size=5), bl.FullyConnected(4, "linear")),
         r"'W' cannot be shared with 'Enc.W': expected shape \(3, 5\), got \(3, 4\)"),
        (lambda enc: (bl.FullyConnected(3), bl.TiedFullyConnected(enc, "linear", size=4)),
         "layer 'TiedFullyConnected', '@shared_parameters': unknown layer 'Enc'"),
        (lambda enc: (bl.FullyConnected(3), bl.TiedFullyConnected(enc)), "unknown layer 'Enc'"),
        (lambda enc: (enc, bl.TiedFullyConnected(enc, size=4.5)),
         "'size': expected a positive int or a tuple of positive ints or None, got 4.5"),
        (lambda enc: bl.TiedFullyConnected("Enc"), "expected tied_to to be the .* got 'Enc'\\."),
    ],
)  # fmt: skip
def test_what_cannot_be_tied(hidden, message):
    with pytest.raises((LayerValidationError, NetworkValidationError), match=message):
        Network.from_layer(wire(*hidden(bl.FullyConnected(3, name="Enc"))))
