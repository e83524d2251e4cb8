"""Pooling of sequences of vectors that are the features of one time step, e.g. audio frames."""

from __future__ import annotations

from brainstorm.layers._pooling import PoolingLayer, pooling_options
from brainstorm.structure import ConstructionWrapper, StructureTemplate


def Pooling1D(
    kernel_size: int,
    type: str = "max",
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    name: str | None = None,
    ceil_mode: bool = False,
) -> ConstructionWrapper:
    """Add a pooling layer along L, the first of two feature dimensions, not along time.

    Cells of the padding are ignored: neither maximum nor counted.
    Output length: ``(L + paddings - kernel_size) // stride + 1``.

    Args:
        kernel_size: Length of a window.
        type: 'max' or 'avg'.
        stride: Positions between successive windows.
        padding: Cells added on both ends, or two numbers: before and after.
        name: Layer name; made unique within the network.
        ceil_mode: As in `Pooling2D`.

    Inputs: default ('T', 'B', L, C)         Outputs: default ('T', 'B', length, C)
    Parameters: none
    Internals: argmax, only for 'max', as in `Pooling2D`: ``position*C + c``
    """
    return ConstructionWrapper.create(
        Pooling1DLayerImpl,
        name=name,
        kernel_size=kernel_size,
        type=type,
        stride=stride,
        padding=padding,
        ceil_mode=ceil_mode,
    )


class Pooling1DLayerImpl(PoolingLayer):
    """Implements `Pooling1D`: pooling of images with a single row."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "L", "C")}
    expected_kwargs = pooling_options(1)
    axes = "L"
