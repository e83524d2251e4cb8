"""Reverse layer: reverses time."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
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


class ReverseLayerImpl(MaskedLayer):
    """Implements `Reverse`; the backward pass is the same reversal."""

    is_traceable = True
    time_coupled = True
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.needs_in_backward = ("inputs",) if "mask" in in_shapes else ()
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def _reverse(self, buffers: BufferView, x: Array, y: Array, add: bool = False) -> None:
        mask = self.mask(buffers)
        self.handler.reverse_time(x, mask[0] if mask else None, y, add=add)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self._reverse(buffers, buffers.inputs.default, buffers.outputs.default)

    def backward_pass(self, buffers: BufferView) -> None:
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        self._reverse(buffers, dy, dx, add=not self.overwrites("input_deltas.default"))
