"""Common parts of poolings: windows of images become their maximum or average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._windows import WindowLayer, Windows
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import Constraint, margin, one_of, per_axis
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array, flatten_time


def pooling_options(axes: int) -> dict[str, Constraint]:
    """Return the options of a pooling over so many axes."""
    steps = per_axis(axes, 1)
    return {
        "kernel_size": steps.required(),
        "type": one_of("max", "avg"),
        "stride": steps,
        "padding": margin(axes),
        "ceil_mode": one_of(False, True),
    }


class PoolingLayer(WindowLayer):
    """Base of poolings; if buffers are not images, a subclass defines how to view them as such.

    Attributes:
        type: 'max' or 'avg'.
    """

    can_overwrite = ("input_deltas",)
    needs_in_backward = ("internals",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        size, channels = self.count_windows(kwargs), in_shapes["default"].shape[-1]
        output = BufferStructure("T", "B", *size, channels)
        return {"default": output}, {}, self.set_type(kwargs, argmax=output)

    def set_type(self, kwargs: dict[str, Any], **argmax: BufferStructure) -> Structures:
        """Set the option ``type``, and return the internals that it requires."""
        self.type = kwargs.get("type", "max")
        return argmax if self.type == "max" else {}

    def images(self, array: Array) -> Array:
        """Return an input, or its delta, as (images, H, W, C)."""
        return self.lift(flatten_time(array))

    def results(self, array: Array) -> Array:
        """Return an output, its delta, or argmax as (images, rows, cols, C)."""
        return self.lift(flatten_time(array))

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = self.images(buffers.inputs.default), self.results(buffers.outputs.default)
        self.pool(self.windows, x, y, *map(self.results, buffers.internals))

    def backward_pass(self, buffers: BufferView) -> None:
        x, y = self.images(buffers.inputs.default), self.results(buffers.outputs.default)
        dx = self.images(buffers.input_deltas.default)
        dy = self.results(buffers.output_deltas.default)
        add = not self.overwrites("input_deltas.default")
        self.unpool(self.windows, x, y, *map(self.results, buffers.internals), dx, dy, add)

    def pool(self, windows: Windows, x: Array, y: Array, *argmax: Array) -> None:
        """Pool images; for the maximum, also write its positions."""
        arguments = x, windows.size, y, windows.padding, windows.stride
        if self.type == "max":
            self.handler.maxpool2d_forward_batch(*arguments, *argmax)
        else:
            self.handler.avgpool2d_forward_batch(*arguments)

    def unpool(self, windows: Windows, x: Array, y: Array, *deltas: Any) -> None:
        """Write the deltas of images, given argmax (for 'max'), dx, dy, and whether to add."""
        arguments = x, windows.size, y, windows.padding, windows.stride
        if self.type == "max":
            self.handler.maxpool2d_backward_batch(*arguments, *deltas)
        else:
            self.handler.avgpool2d_backward_batch(*arguments, *deltas)
