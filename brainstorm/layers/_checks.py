"""Checks on input shapes that several layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_structure import format_shape

__all__ = ["require_shape", "window_output_size"]


def require_shape(layer: Layer, port: str, *accepted: Sequence[Any]) -> None:
    """Check that the input `port` has one of the accepted shapes.

    Raises:
        LayerValidationError: It has another one; the message names the layers it comes from.
    """
    if layer.in_shapes[port].shape not in accepted:
        shapes = dict.fromkeys(format_shape(shape) for shape in accepted)
        raise layer.misfit(port, " or ".join(shapes))


def window_output_size(
    layer: Layer, kernel_size: Sequence[int], stride: Sequence[int], padding: int
) -> tuple[int, int]:
    """Return the rows and columns that a window sliding over the input image gives.

    Each is ``(size + 2 * padding - kernel) // stride + 1``.

    Args:
        layer: Its input ``default`` has the shape ('T', 'B', H, W, C).
        kernel_size: Rows and columns of the window.
        stride: Rows and columns between two windows.
        padding: Cells added on all four sides.

    Raises:
        LayerValidationError: The window does not fit into the padded image.
    """
    image = layer.in_shapes["default"].feature_shape[:2]
    for axis, kernel, size in zip("HW", kernel_size, image, strict=True):
        if size + 2 * padding < kernel:
            enough = (kernel - size + 1) // 2
            raise layer.misfit(
                "default",
                f"(T, B, H, W, C) with {axis} >= {kernel - 2 * padding}",
                f" Use a smaller kernel_size or padding={enough}.",
            )
    rows, columns = (
        (size + 2 * padding - kernel) // step + 1
        for size, kernel, step in zip(image, kernel_size, stride, strict=True)
    )
    return rows, columns
