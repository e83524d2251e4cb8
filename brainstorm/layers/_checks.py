"""Checks on input shapes and external data that several layers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.layers._times import remedy_for
from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_structure import StructureTemplate, format_shape


def require_shape(layer: Layer, port: str, *accepted: Sequence[Any]) -> None:
    """Check that the input `port` has one of the accepted shapes.

    Raises:
        LayerValidationError: Its shape is another; the message names the layers it comes from.
    """
    if layer.in_shapes[port].shape not in accepted:
        shapes = dict.fromkeys(format_shape(shape) for shape in accepted)
        remedy = remedy_for(StructureTemplate(*accepted[0]), layer.in_shapes[port])
        raise layer.misfit(port, " or ".join(shapes), remedy)


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
    require(layer, port, array, right, expected, remedy)
    if classes > 2**24:  # float32 has not all of them
        dtype = layer.handler.dtype
        expected = f"class indices that {dtype.name} can hold"
        remedy = "Use a handler with float64, or fewer classes."
        require(layer, port, array, array.astype(dtype) == array, expected, remedy)


def require(
    layer: Layer, port: str, array: np.ndarray, right: np.ndarray, expected: str, remedy: str
) -> None:
    """Check that external data for the input `port` are `right`, a mask of all their elements.

    Raises:
        LayerValidationError: Some are not; the message names the first, and ends in `remedy`.
    """
    if not right.all():
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        raise layer.fail(
            f"expected {expected}, got {array[index]} at index {index}. {remedy}", port
        )
