"""Highway layer: a learned gate between a transformation and its input."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.optree import formula
from brainstorm.structure import ConstructionWrapper, StructureTemplate


def Highway(name: str | None = None) -> ConstructionWrapper:
    """Add the gate of a highway network (Srivastava et al. 2015): ``y = T * H + (1 - T) * x``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: H (the transformation), T (the gate, in [0, 1]) and x, all ('T', 'B', ...) of one shape
    Outputs: default, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(HighwayLayerImpl, name=name)


@formula
def highway(H: Any, T: Any, x: Any) -> Any:
    """Return the output."""
    return x + T * (H - x)


class HighwayLayerImpl(FormulaLayer):
    """Implements `Highway`."""

    is_traceable = True
    formula = highway
    expected_inputs = dict.fromkeys("xHT", StructureTemplate("T", "B", "..."))
