"""Activations in layers: which keep the input of theirs, and functions that a user registers."""

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.errors import LayerValidationError
from brainstorm.handlers import NumpyHandler, register_activation
from brainstorm.network import Network
from brainstorm.optree import functions as fn
from brainstorm.testing import build_layer, check_layer
from tests.networks import assert_gradients, checked, classifier

VECTOR, IMAGE = {"default": ("T", "B", 4)}, {"default": ("T", "B", 3, 3, 2)}
LAYERS = [
    (lambda a: bl.FullyConnected(3, a), VECTOR),
    (lambda a: bl.TiedFullyConnected(bl.FullyConnected(4), a, size=3), VECTOR),
    (lambda a: bl.Convolution2D(2, (2, 2), activation=a), IMAGE),
    (lambda a: bl.ConvolutionTranspose2D(2, (2, 2), activation=a), IMAGE),
]


@pytest.mark.parametrize(("create", "shapes"), LAYERS)
@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("linear", {"inputs"}),
        ("rel", {"inputs", "outputs"}),
        ("gelu", {"inputs", "outputs", "internals"}),
    ],
)
def test_what_is_kept_for_the_backward_pass(create, shapes, name, needed):
    layer = build_layer(create(name), shapes)
    assert layer.characteristics.needs_in_backward == needed
    internals = {"Ha": layer.out_shapes["default"]} if name == "gelu" else {}
    assert layer.internal_shapes == internals


# -- registered functions -----------------------------------------------------------------------


def softsign(x):
    return x / (1 + fn.absolute(x))


@pytest.fixture
def _registered(fresh_registry):
    register_activation("softsign", softsign, lambda y: fn.square(1 - fn.absolute(y)))
    register_activation("softsign_2", softsign)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("name", ["softsign", "softsign_2"])
@pytest.mark.parametrize(
    ("create", "shapes"),
    [
        *LAYERS,
        *((create, VECTOR) for create in (bl.Elementwise, bl.GLU)),
        *((lambda a, c=c: c(3, a), VECTOR) for c in (bl.Recurrent, bl.Lstm, bl.Gru)),
    ],
)
def test_layers_with_registered_functions_obey_all_properties(name, create, shapes):
    check_layer(create(name), shapes, sizes=[(2, 1)])


@pytest.mark.usefixtures("_registered")
def test_registered_functions_work_in_place():
    first = bl.FullyConnected(4, "linear", name="A")
    second = bl.Elementwise("softsign", inplace=True, name="B")
    net = checked(classifier(first, second, bl.FullyConnected(3, "softsign_2")))
    assert_gradients(net)
    outputs = [net.buffer[name].outputs.default.array for name in "AB"]
    assert np.shares_memory(*outputs)


@pytest.mark.usefixtures("fresh_registry")
def test_a_function_can_be_registered_when_the_handler_exists():
    handler = NumpyHandler(np.float64)
    with pytest.raises(LayerValidationError, match="expected one of .*'hard_swish', got 'square'"):
        Network.from_layer(classifier(bl.FullyConnected(3, "square")), handler=handler)
    register_activation("square", lambda x: x * x)
    Network.from_layer(classifier(bl.FullyConnected(3, "square")), handler=handler)
    with pytest.raises(LayerValidationError, match="expected one of .*'square', got 'cube'"):
        build_layer(bl.FullyConnected(3, "cube"), VECTOR)
