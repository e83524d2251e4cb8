"""What layers declare, and what follows from it."""

import pytest

from brainstorm import layers as bl
from brainstorm.testing import build_layer

FLAGS = [
    (bl.Input({"default": ("T", "B", 3)}), {"source"}),
    (bl.NoOp(), {"can_backprop"}),
    (bl.FullyConnected(2), {"parameters", "activation", "can_backprop"}),
    (bl.Dropout(), {"can_backprop", "depends_on_mode"}),
    (bl.Lstm(2), {"parameters", "activation", "can_backprop", "time_coupled"}),
    (bl.Argmax(), set()),
    (bl.Loss(), {"loss", "can_backprop"}),
    (bl.Accuracy(), {"sink", "stats"}),
    (bl.Elementwise(inplace=True), {"activation", "inplace", "can_backprop"}),
]


@pytest.mark.parametrize(("layer", "flags"), FLAGS, ids=[c.layer.layer_type for c, _ in FLAGS])
def test_what_is_derived(layer, flags):
    shapes = {} if "source" in flags else {"default": ("T", "B", 3)}
    shapes |= {"targets": ("T", "B", 1)} if "stats" in flags else {}
    assert set(build_layer(layer, shapes).characteristics.flags) == flags
