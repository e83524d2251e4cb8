"""No operation: copies its input."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper

__all__ = ["NoOp", "NoOpLayerImpl"]


def NoOp(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that copies its input: ``outputs.default = inputs.default``.

    Useful to give several joined outputs one name.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(NoOpLayerImpl, name=name)


class NoOpLayerImpl(Layer):
    """Implements `NoOp`."""

    is_traceable = True
    accepts_null_deltas = True
    needs_in_backward = ()
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.copy_to(buffers.inputs.default, buffers.outputs.default)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
            write(self, "input_deltas.default", dy, dx)
