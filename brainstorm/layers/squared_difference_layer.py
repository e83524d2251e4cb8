"""Squared difference of two inputs, both of which can be learned."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["SquaredDifference", "SquaredDifferenceLayerImpl"]


def SquaredDifference(name: str | None = None) -> ConstructionWrapper:
    """Add a squared difference: ``y = (inputs_1 - inputs_2)**2`` per element, without a half.

    Args:
        name: Layer name; made unique within the network.

    Inputs: inputs_1 and inputs_2, both ('T', 'B', ...) of one shape
    Outputs: default, of that shape
    Parameters: none                         Internals: diff = inputs_1 - inputs_2
    """
    return ConstructionWrapper.create(SquaredDifferenceLayerImpl, name=name)


class SquaredDifferenceLayerImpl(Layer):
    """Implements `SquaredDifference`."""

    expected_inputs = {
        "inputs_1": StructureTemplate("T", "B", "..."),
        "inputs_2": StructureTemplate("T", "B", "..."),
    }
    accepts_null_deltas = True
    needs_in_backward = ("internals",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["inputs_1"].shape
        require_shape(self, "inputs_2", shape)
        return {"default": BufferStructure(*shape)}, {}, {"diff": BufferStructure(*shape)}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        diff = buffers.internals.diff
        self.handler.subtract_tt(buffers.inputs.inputs_1, buffers.inputs.inputs_2, diff)
        self.handler.mult_tt(diff, diff, buffers.outputs.default)

    def backward_pass(self, buffers: BufferView) -> None:
        dy = buffers.output_deltas.default
        self.handler.mult_tt(dy, buffers.internals.diff, dy)
        for port, factor in (("inputs_1", 2.0), ("inputs_2", -2.0)):
            if self.needs_delta(port):
                overwrite = self.overwrites(f"input_deltas.{port}")
                scale = self.handler.mult_st if overwrite else self.handler.mult_add_st
                scale(factor, dy, buffers.input_deltas[port])
