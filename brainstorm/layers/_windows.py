"""Windows that slide over images: what convolutions and poolings share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from brainstorm.layers.base_layer import Layer
from brainstorm.layers.constraints import on_each_axis, padded_sides
from brainstorm.utils import Array

#: Cells added before and after, for each axis.
Sides = tuple[tuple[int, int], ...]


class Windows(NamedTuple):
    """How windows slide over images, or over volumes, as the operations expect it."""

    size: Any
    stride: Any
    padding: Any
    dilation: Any = (1, 1)


class WindowLayer(Layer):
    """Base of layers that move windows over their input, of shape ('T', 'B', *axes, C).

    Attributes:
        axes: One letter for each axis that windows move along.
        kernel_size: Size of a window on each axis; set by `count_windows`, like the others.
        stride: Step between windows.
        dilation: Step between cells of a window.
        padding: Cells added before and after.
    """

    axes = "HW"
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: Sides = ((0, 0), (0, 0))

    def count_windows(self, kwargs: Mapping[str, Any]) -> tuple[int, ...]:
        """Set the windows from the options, and return how many fit into an image, on each axis.

        Raises:
            LayerValidationError: The window does not fit into the padded image.
        """
        self.kernel_size, self.stride, self.dilation = (
            on_each_axis(kwargs.get(name, 1), len(self.axes))
            for name in ("kernel_size", "stride", "dilation")
        )
        self.padding = padded_sides(kwargs.get("padding", 0), len(self.axes))
        *image, _ = self.in_shapes["default"].feature_shape
        if kwargs.get("ceil_mode"):
            axes = image, self.kernel_size, self.stride, self.padding
            self.padding = tuple(map(up_to_last_cell, *axes))
        return tuple(map(self._count, self.axes, image, range(len(image))))

    @property
    def windows(self) -> Windows:
        """The windows on what `lift` returns."""
        row = (1,) * (len(self.axes) == 1)
        return Windows(
            row + self.kernel_size,
            row + self.stride,
            ((0, 0),) * len(row) + self.padding,
            row + self.dilation,
        )

    def lift(self, array: Array) -> Array:
        """Return images or filters; those with one axis as images with a single row."""
        is_row = len(self.axes) == 1
        return array.reshape((array.shape[0], 1, *array.shape[1:])) if is_row else array

    def _count(self, letter: str, size: int, axis: int) -> int:
        extent = self.dilation[axis] * (self.kernel_size[axis] - 1) + 1
        added = sum(self.padding[axis])
        if size + added < extent:
            raise self.misfit(
                "default",
                f"(T, B, {', '.join(self.axes)}, C) with {letter} >= {extent - added}",
                f" Use a smaller kernel_size or padding={(extent - size + 1) // 2}.",
            )
        return (size + added - extent) // self.stride[axis] + 1


def up_to_last_cell(size: int, kernel: int, step: int, sides: tuple[int, int]) -> tuple[int, int]:
    """Return the padding of an axis with which the number of windows is rounded up, not down.

    But no window begins after the last cell.
    """
    before, after = sides
    last = -((kernel - size - before - after) // step)  # number of the last window
    last -= last * step >= size + before
    return before, max(0, last * step + kernel - size - before)
