"""Mask layer: switches off parts of its input, such as steps after the end of a sequence."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_all_but_last, flatten_time_and_features

__all__ = ["Mask", "MaskLayerImpl"]


def Mask(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that multiplies its input by a mask: ``y = x * mask``, broadcast.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), mask ('T', 'B', ...) whose features are (1,), or those of
        default with the last dimension 1, or those of default
    Outputs: default, of the same shape as the input
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(MaskLayerImpl, name=name)


class MaskLayerImpl(Layer):
    """Implements `Mask`; no delta for the mask."""

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("mask",)
    accepts_null_deltas = True
    needs_in_backward = ("inputs",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape, mask = in_shapes["default"].shape, in_shapes["mask"].shape
        require_shape(self, "mask", ("T", "B", 1), (*shape[:-1], 1), shape)
        # As matrices, the mask is a column beside the input, or its equal.
        self.as_matrix = (
            flatten_time_and_features if mask in (shape, ("T", "B", 1)) else flatten_all_but_last
        )
        return {"default": BufferStructure(*shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, mask = (self.as_matrix(a) for a in buffers.inputs)
        self.handler.mult_mv(x, mask, self.as_matrix(buffers.outputs.default))

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        mask = self.as_matrix(buffers.inputs.mask)
        dx = self.as_matrix(buffers.input_deltas.default)
        overwrite = self.overwrites("input_deltas.default")
        multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
        multiply(self.as_matrix(buffers.output_deltas.default), mask, dx)
