"""Pooling of images: each window becomes its maximum or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import window_output_size
from brainstorm.layers._pooling import PoolingLayer
from brainstorm.layers.base_layer import Structures
from brainstorm.layers.constraints import any_value, integer, on_each_axis, one_of, pair
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["Pooling2D", "Pooling2DLayerImpl"]


def Pooling2D(
    kernel_size: int | tuple[int, int],
    type: str = "max",
    stride: int | tuple[int, int] = (1, 1),
    padding: int = 0,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a pooling layer. Cells of the padding are ignored: neither maximum nor counted.

    Output rows and columns: ``(size + 2 * padding - kernel) // stride + 1``.

    Args:
        kernel_size: Rows and columns of a window; one number for both, as for the stride.
        type: 'max' or 'avg'.
        stride: Rows and columns between two windows.
        padding: Cells added on all four sides.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, C)
    Parameters: none
    Internals: argmax, for 'max' alone, of the output's shape: flat index ``(row*W + col)*C + c``
        of the first maximum as a float, -1 for an empty window (whose output is 0)
    """
    return ConstructionWrapper.create(
        Pooling2DLayerImpl,
        name=name,
        kernel_size=kernel_size,
        type=type,
        stride=stride,
        padding=padding,
    )


class Pooling2DLayerImpl(PoolingLayer):
    """Implements `Pooling2D`; `activation_function` is accepted for old files and ignored."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "F", "F", "F")}
    expected_kwargs = {
        "kernel_size": pair(1).required(),
        "type": one_of("max", "avg"),
        "stride": pair(1),
        "padding": integer(minimum=0),
        "activation_function": any_value(),
    }

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.kernel_size, self.stride = (
            on_each_axis(kwargs.get(name, 1), 2) for name in ("kernel_size", "stride")
        )
        self.padding = kwargs.get("padding", 0)
        size = window_output_size(self, self.kernel_size, self.stride, self.padding)
        output = BufferStructure("T", "B", *size, in_shapes["default"].shape[-1])
        return {"default": output}, {}, self.set_type(kwargs, output)
