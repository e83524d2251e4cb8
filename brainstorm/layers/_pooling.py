"""Common parts of poolings: windows of images become their maximum or average."""

from __future__ import annotations

from typing import Any, NamedTuple

from brainstorm.layers._checks import up_to_last_cell, window_output_size
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import (
    Constraint,
    margin,
    on_each_axis,
    one_of,
    padded_sides,
    per_axis,
)
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


class Windows(NamedTuple):
    """How windows slide over images: for rows and columns, as the operations expect it."""

    size: Any
    stride: Any
    padding: tuple[tuple[int, int], ...]


class PoolingLayer(Layer):
    """Base of poolings; if buffers are not images, a subclass defines how to view them as such.

    Attributes:
        axes: One letter for each axis that is pooled.
        kernel_size: Size of a window on each axis; set in `setup`, like the other options.
        stride: Step between windows.
        padding: Cells added before and after.
        type: 'max' or 'avg'.
    """

    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)
    needs_in_backward = ("internals",)

    axes = "HW"
    kernel_size: tuple[Any, ...]
    stride: tuple[Any, ...] = (1, 1)
    padding: tuple[tuple[int, int], ...] = ((0, 0), (0, 0))

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.kernel_size, self.stride = (
            on_each_axis(kwargs.get(name, 1), len(self.axes)) for name in ("kernel_size", "stride")
        )
        *image, channels = in_shapes["default"].feature_shape
        self.padding = padded_sides(kwargs.get("padding", 0), len(self.axes))
        if kwargs.get("ceil_mode"):
            self.padding = up_to_last_cell(image, self.kernel_size, self.stride, self.padding)
        size = window_output_size(self, self.kernel_size, self.stride, self.padding, axes=self.axes)
        output = BufferStructure("T", "B", *size, channels)
        return {"default": output}, {}, self.set_type(kwargs, argmax=output)

    def set_type(self, kwargs: dict[str, Any], **argmax: BufferStructure) -> Structures:
        """Set the option ``type``, and return the internals that it requires."""
        self.type = kwargs.get("type", "max")
        return argmax if self.type == "max" else {}

    def images(self, array: Array) -> Array:
        """Return an input, or its delta, as (images, H, W, C)."""
        return flatten_time(array)

    def results(self, array: Array) -> Array:
        """Return an output, its delta, or argmax as (images, rows, cols, C)."""
        return flatten_time(array)

    @property
    def windows(self) -> Windows:
        """The windows on what `images` returns."""
        return Windows(self.kernel_size, self.stride, self.padding)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = self.images(buffers.inputs.default), self.results(buffers.outputs.default)
        self.pool(self.windows, x, y, *map(self.results, buffers.internals))

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
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
