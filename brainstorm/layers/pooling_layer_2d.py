"""Pooling of images: each window becomes its maximum or its average."""

from __future__ import annotations

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._pooling import PoolingLayer, pooling_options
from brainstorm.layers.constraints import any_value
from brainstorm.structure import ConstructionWrapper, StructureTemplate


def Pooling2D(
    kernel_size: int | tuple[int, int],
    type: str = "max",
    stride: int | tuple[int, int] = (1, 1),
    padding: Margin = 0,
    name: str | None = None,
    ceil_mode: bool = False,
) -> ConstructionWrapper:
    """Add a pooling layer. Cells of the padding are neither maximum nor counted.

    Output rows and columns: ``(size + paddings - kernel) // stride + 1``.

    Args:
        kernel_size: Rows and columns of a window; one number for both, as for the stride.
        type: 'max' or 'avg'.
        stride: Rows and columns between successive windows.
        padding: Cells added on all sides; or for each axis one number, or two as in
            ``((top, bottom), (left, right))``.
        name: Layer name; made unique within the network.
        ceil_mode: Whether the number of windows is rounded up: the last ones may extend beyond the
            bottom and the right, but no window begins after the last cell.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, C)
    Parameters: none
    Internals: argmax, only for 'max', of the output's shape: flat index ``(row*W + col)*C + c``
        of the first maximum as a float, -1 for an empty window (whose output is 0)
    """
    return ConstructionWrapper.create(
        Pooling2DLayerImpl,
        name=name,
        kernel_size=kernel_size,
        type=type,
        stride=stride,
        padding=padding,
        ceil_mode=ceil_mode,
    )


class Pooling2DLayerImpl(PoolingLayer):
    """Implements `Pooling2D`; `activation_function` is accepted for old files and ignored."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {**pooling_options(2), "activation_function": any_value()}
