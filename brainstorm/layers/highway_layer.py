"""Highway layer: a learned gate between a transformation and its input."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import Formula, formula
from brainstorm.structure import BufferStructure, ConstructionWrapper, StructureTemplate

__all__ = ["Highway", "HighwayLayerImpl"]


def Highway(name: str | None = None) -> ConstructionWrapper:
    """Add the gate of a highway network (Srivastava et al. 2015): ``y = T * H + (1 - T) * x``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: H (the transformation), T (the gate, in [0, 1]) and x, all ('T', 'B', ...) of one shape
    Outputs: default, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(HighwayLayerImpl, **locals())


@formula
def highway(H: Any, T: Any, x: Any) -> Any:
    """Return the output."""
    return x + T * (H - x)


class HighwayLayerImpl(FormulaLayer):
    """Implements `Highway`."""

    is_traceable = True
    expected_inputs = {
        "H": StructureTemplate("T", "B", "..."),
        "T": StructureTemplate("T", "B", "..."),
        "x": StructureTemplate("T", "B", "..."),
    }

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["x"].shape
        require_shape(self, "H", shape)
        require_shape(self, "T", shape)
        return {"default": BufferStructure(*shape)}, {}, {}

    def formula(self) -> Formula:
        return highway
