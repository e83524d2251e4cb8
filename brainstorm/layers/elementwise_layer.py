"""Elementwise layer: an activation function on its own."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import one_of
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["Elementwise", "ElementwiseLayerImpl"]


def Elementwise(
    activation: str = "rel", name: str | None = None, inplace: bool = False
) -> ConstructionWrapper:
    """Add a layer that applies a function to every element: ``y = act(x)``.

    Args:
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        inplace: Whether the output overwrites the memory of the input; refused where anything
            else needs the input.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(
        ElementwiseLayerImpl, name=name, activation=activation, inplace=inplace
    )


class ElementwiseLayerImpl(Layer):
    """Implements `Elementwise`."""

    expected_kwargs = {"activation": activation_name(), "inplace": one_of(True, False)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.is_inplace = kwargs.get("inplace", False)
        self.activation = kwargs.get("activation", "rel")
        needs_input = self.activation in Handler.activations_needing_inputs
        self.needs_in_backward = ("inputs", "outputs") if needs_input else ("outputs",)
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = buffers.inputs.default, buffers.outputs.default
        if self.is_inplace:
            self.handler.inplace_act_func[self.activation](y)
        else:
            self.handler.act_func[self.activation](x, y)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        x, y = buffers.inputs.default, buffers.outputs.default
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        if self.overwrites("input_deltas.default") and not self.is_inplace:
            self.handler.act_func_deriv[self.activation](x, y, dy, dx)
            return
        self.handler.inplace_act_func_deriv[self.activation](y, dy, x)
        if not self.is_inplace:
            self.handler.add_tt(dy, dx, dx)
