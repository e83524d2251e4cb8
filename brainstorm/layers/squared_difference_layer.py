"""Squared difference of two inputs, both of which get deltas."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper, StructureTemplate


def SquaredDifference(name: str | None = None) -> ConstructionWrapper:
    """Add a squared difference: ``y = (inputs_1 - inputs_2)**2`` per element, without a half.

    Args:
        name: Layer name; made unique within the network.

    Inputs: inputs_1 and inputs_2, both ('T', 'B', ...) of one shape
    Outputs: default, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SquaredDifferenceLayerImpl, name=name)


@formula
def squared_difference(a: Any, b: Any) -> Any:
    """Return the output."""
    return fn.square(a - b)


class SquaredDifferenceLayerImpl(FormulaLayer):
    """Implements `SquaredDifference`."""

    is_traceable = True
    formula = squared_difference
    expected_inputs = dict.fromkeys(("inputs_1", "inputs_2"), StructureTemplate("T", "B", "..."))
