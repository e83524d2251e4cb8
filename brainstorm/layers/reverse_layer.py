"""Reverse layer: reverses time."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array


def Reverse(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that reverses sequences in time: ``y_t = x_(T - 1 - t)``.

    With a mask, each sequence is reversed within its own length (one more than the last t at which
    its mask is not 0), and all later steps stay in place.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...); optional mask ('T', 'B', 1)
    Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(ReverseLayerImpl, name=name)


class ReverseLayerImpl(Layer):
    """Implements `Reverse`; the backward pass is the same reversal."""

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    optional_inputs = ("mask",)
    computes_no_input_deltas_for = ("mask",)
    time_coupled = True
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.needs_in_backward = ("inputs",) if "mask" in in_shapes else ()
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def _mask(self, buffers: BufferView) -> Array | None:
        return buffers.inputs.mask if "mask" in self.in_shapes else None

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = buffers.inputs.default, buffers.outputs.default
        self.handler.reverse_time(x, self._mask(buffers), y)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
            add = not self.overwrites("input_deltas.default")
            self.handler.reverse_time(dy, self._mask(buffers), dx, add=add)
