"""Elementwise layer: only an activation function."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.base_activations import activation_formulas
from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import activation, one_of
from brainstorm.optree.activations import activation as activation_of
from brainstorm.structure import ConstructionWrapper


def Elementwise(
    activation: str = "rel", name: str | None = None, inplace: bool = False
) -> ConstructionWrapper:
    """Add a layer that applies a function to every element: ``y = act(x)``.

    Args:
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        inplace: Whether the output overwrites the memory of the input; an error if the input is
            needed elsewhere.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(
        ElementwiseLayerImpl, name=name, activation=activation, inplace=inplace
    )


class ElementwiseLayerImpl(FormulaLayer):
    """Implements `Elementwise`."""

    is_traceable = True
    expected_kwargs = {"activation": activation(), "inplace": one_of(True, False)}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.is_inplace = kwargs.get("inplace", False)
        self.activation = kwargs.get("activation", "rel")
        function = activation_of(self.activation)
        self.formula, self.delta = activation_formulas(function)
        needed = "inputs" if function.needs_input else "outputs"
        self.needs_in_backward = (needed,)
        self.delta_operands = (f"{needed}.default", "output_deltas.default")
        return super().setup(kwargs, in_shapes)
