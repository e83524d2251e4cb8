"""Checks on input shapes that several layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_structure import format_shape


def require_shape(layer: Layer, port: str, *accepted: Sequence[Any]) -> None:
    """Check that the input `port` has one of the accepted shapes.

    Raises:
        LayerValidationError: Its shape is another; the message names the layers it comes from.
    """
    if layer.in_shapes[port].shape not in accepted:
        shapes = dict.fromkeys(format_shape(shape) for shape in accepted)
        raise layer.misfit(port, " or ".join(shapes))


def require_class_indices(
    layer: Layer, port: str, array: np.ndarray, classes: int, remedy: str
) -> None:
    """Check that external data for the input `port` are whole numbers in [0, classes).

    Raises:
        LayerValidationError: Some are not; the message names the first, and ends in `remedy`.
    """
    with np.errstate(invalid="ignore"):  # NaN compares as false, so it is found
        right = (array >= 0) & (array < classes) & (array == np.floor(array))
    expected = f"class indices, whole numbers in [0, {classes})"
    _require(layer, port, array, right, expected, remedy)


def require_probabilities(layer: Layer, port: str, array: np.ndarray) -> None:
    """Check that external data for the input `port` are in [0, 1].

    Raises:
        LayerValidationError: Some are not; the message names the first.
    """
    with np.errstate(invalid="ignore"):
        right = (array >= 0) & (array <= 1)
    remedy = "Give 0 and 1 for no and yes."
    _require(layer, port, array, right, "probabilities in [0, 1]", remedy)


def _require(
    layer: Layer, port: str, array: np.ndarray, right: np.ndarray, expected: str, remedy: str
) -> None:
    if not right.all():
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        raise layer.fail(
            f"expected {expected}, got {array[index]} at index {index}. {remedy}", port
        )


def window_output_size(
    layer: Layer,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
    axes: str = "HW",
) -> tuple[int, ...]:
    """Return the number of windows that fit into the input image, along each axis.

    It is ``(size + padding before and after - extent) // stride + 1`` for windows of the extent
    ``dilation * (kernel - 1) + 1``.

    Args:
        layer: A layer whose input ``default`` has the shape ('T', 'B', *axes, C).
        kernel_size: Size of the window on each axis, e.g. rows and columns.
        stride: Step between windows.
        padding: Cells added before and after, for each axis.
        dilation: Step between cells of a window; `None`: 1 everywhere.
        axes: One letter per axis, for messages.

    Raises:
        LayerValidationError: The window does not fit into the padded image.
    """
    image = layer.in_shapes["default"].feature_shape
    counts = []
    for axis, letter in enumerate(axes):
        between = 1 if dilation is None else dilation[axis]
        extent, size = between * (kernel_size[axis] - 1) + 1, image[axis]
        added = sum(padding[axis])
        if size + added < extent:
            enough = (extent - size + 1) // 2
            raise layer.misfit(
                "default",
                f"(T, B, {', '.join(axes)}, C) with {letter} >= {extent - added}",
                f" Use a smaller kernel_size or padding={enough}.",
            )
        counts.append((size + added - extent) // stride[axis] + 1)
    return tuple(counts)


def up_to_last_cell(
    image: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> tuple[tuple[int, int], ...]:
    """Return the padding with which the number of windows is rounded up, not down.

    But no window begins after the last cell.
    """
    found = []
    for size, kernel, step, (before, after) in zip(
        image, kernel_size, stride, padding, strict=True
    ):
        last = -((kernel - size - before - after) // step)  # number of the last window
        last -= last * step >= size + before
        found.append((before, max(0, last * step + kernel - size - before)))
    return tuple(found)
