"""Power layer: scale, shift and power, element by element."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.structure import ConstructionWrapper


def Power(
    scale: float = 1.0, shift: float = 0.0, power: float = 1.0, name: str | None = None
) -> ConstructionWrapper:
    """Add a power of every element: ``y = (scale * x + shift) ** power`` (a layer of Mocha).

    Args:
        scale: Factor.
        shift: Summand.
        power: Exponent; a whole number if ``scale * x + shift`` can be negative.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(
        PowerLayerImpl, name=name, scale=scale, shift=shift, power=power
    )


@formula
def powers(x: Any, *, scale: float = 1.0, shift: float = 0.0, power: float = 1.0) -> Any:
    """Return the output."""
    return (scale * x + shift) ** power


class PowerLayerImpl(FormulaLayer):
    """Implements `Power`."""

    is_traceable = True
    expected_kwargs = {"scale": number(), "shift": number(), "power": number()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula = powers.given(**kwargs)
        return super().setup(kwargs, in_shapes)
