"""What poolings have in common: windows of images become their maximum or their average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array, flatten_time

__all__ = ["PoolingLayer"]


class PoolingLayer(Layer):
    """Base of poolings; where buffers are no images, a subclass says how to see them as such.

    Attributes:
        kernel_size: Rows and columns of a window; set in `setup`.
        stride: Rows and columns between two windows.
        padding: Cells added on all four sides.
    """

    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)
    needs_in_backward = ("internals",)

    kernel_size: tuple[Any, ...]
    stride: tuple[Any, ...] = (1, 1)
    padding = 0

    def set_type(self, kwargs: dict[str, Any], argmax: BufferStructure) -> Structures:
        """Take the option ``type``, and return the internals that it needs."""
        self.type = kwargs.get("type", "max")
        return {"argmax": argmax} if self.type == "max" else {}

    def images(self, array: Array) -> Array:
        """Return an input, or its delta, as (images, H, W, C)."""
        return flatten_time(array)

    def windows(self, array: Array) -> Array:
        """Return an output, its delta, or argmax as (images, rows, cols, C)."""
        return flatten_time(array)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = self.images(buffers.inputs.default), self.windows(buffers.outputs.default)
        arguments = x, self.kernel_size, y, self.padding, self.stride
        if self.type == "max":
            argmax = self.windows(buffers.internals.argmax)
            self.handler.maxpool2d_forward_batch(*arguments, argmax)
        else:
            self.handler.avgpool2d_forward_batch(*arguments)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        x, y = self.images(buffers.inputs.default), self.windows(buffers.outputs.default)
        dx = self.images(buffers.input_deltas.default)
        dy = self.windows(buffers.output_deltas.default)
        arguments = x, self.kernel_size, y, self.padding, self.stride
        add = not self.overwrites("input_deltas.default")
        if self.type == "max":
            argmax = self.windows(buffers.internals.argmax)
            self.handler.maxpool2d_backward_batch(*arguments, argmax, dx, dy, add)
        else:
            self.handler.avgpool2d_backward_batch(*arguments, dx, dy, add)
