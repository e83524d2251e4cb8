"""Multiply layer: the product of any number of inputs."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._joining import JoiningLayer
from brainstorm.layers.base_layer import Structures
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["Multiply", "MultiplyLayerImpl"]


def Multiply(num_inputs: int = 2, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that multiplies its inputs element by element, e.g. for a gate.

    Args:
        num_inputs: Number of inputs, at least 2.
        name: Layer name; made unique within the network.

    Inputs: inputs_1, ..., inputs_<num_inputs> ('T', 'B', ...), all of the same shape
    Outputs: default, of the same shape
    Parameters: none
    Internals: product (scratch of the backward pass), of the same shape, for more than 2 inputs
    """
    return ConstructionWrapper.create(MultiplyLayerImpl, name=name, num_inputs=num_inputs)


class MultiplyLayerImpl(JoiningLayer):
    """Implements `Multiply`."""

    needs_in_backward = ("inputs",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        outputs, parameters, _ = super().setup(kwargs, in_shapes)
        product = BufferStructure(*outputs["default"].shape, is_backward_only=True)
        return outputs, parameters, {"product": product} if len(in_shapes) > 2 else {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        first, second, *others = buffers.inputs
        y = buffers.outputs.default
        self.handler.mult_tt(first, second, y)
        for other in others:
            self.handler.mult_tt(y, other, y)

    def backward_pass(self, buffers: BufferView) -> None:
        # A product of all other inputs for each one: a division by it would fail at zero.
        for port in filter(self.needs_delta, self.in_shapes):
            *others, last = (buffers.inputs[p] for p in self.in_shapes if p != port)
            product = buffers.output_deltas.default
            for other in others:
                self.handler.mult_tt(product, other, buffers.internals.product)
                product = buffers.internals.product
            overwrite = self.overwrites(f"input_deltas.{port}")
            multiply = self.handler.mult_tt if overwrite else self.handler.mult_add_tt
            multiply(product, last, buffers.input_deltas[port])
