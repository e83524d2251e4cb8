"""Layers that copy elements of their input, and pass the deltas on in the same way."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array


class CopyingLayer(Layer):
    """Base of layers that copy input ``default``, or parts of it.

    A subclass implements `setup` and `pairs`, unless the output is a copy of the input. If it does
    not copy all of the input, it cannot overwrite the delta.
    """

    needs_in_backward = ()
    can_overwrite: Collection[str] = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        """Return parts of the input and of outputs, or of their deltas, that correspond."""
        return [(inputs.default, outputs.default)]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        for x, y in self.pairs(buffers.inputs, buffers.outputs):
            self.handler.copy_to(x, y)

    def backward_pass(self, buffers: BufferView) -> None:
        for dx, dy in self.pairs(buffers.input_deltas, buffers.output_deltas):
            write(self, "input_deltas.default", dy, dx)
