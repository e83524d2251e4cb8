"""What layers declare, and what follows from it."""

import pytest

from brainstorm import layers as bl
from brainstorm.testing import build_layer

FLAGS = {
    "Input": (bl.Input({"default": ("T", "B", 3)}), {}, {"source"}),
    "NoOp": (bl.NoOp(), {"default": ("T", "B", 3)}, {"can_backprop"}),
    "FullyConnected": (
        bl.FullyConnected(2),
        {"default": ("T", "B", 3)},
        {"parameters", "activation", "can_backprop"},
    ),
    "Dropout": (bl.Dropout(), {"default": ("T", "B", 3)}, {"can_backprop", "depends_on_mode"}),
    "Lstm": (
        bl.Lstm(2),
        {"default": ("T", "B", 3)},
        {"parameters", "activation", "can_backprop", "time_coupled"},
    ),
    "Argmax": (bl.Argmax(), {"default": ("T", "B", 3)}, set()),
    "Loss": (bl.Loss(), {"default": ("T", "B", 3)}, {"loss", "can_backprop"}),
    "Accuracy": (
        bl.Accuracy(),
        {"default": ("T", "B", 3), "targets": ("T", "B", 1)},
        {"sink", "stats"},
    ),
    "Elementwise": (
        bl.Elementwise(inplace=True),
        {"default": ("T", "B", 3)},
        {"activation", "inplace", "can_backprop"},
    ),
}


@pytest.mark.parametrize("name", FLAGS)
def test_what_is_derived(name):
    layer, shapes, flags = FLAGS[name]
    assert set(build_layer(layer, shapes).characteristics.flags) == flags
