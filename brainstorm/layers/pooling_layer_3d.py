"""Pooling of volumes, e.g. scans or films: each window becomes its maximum or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._pooling import PoolingLayer, pooling_options
from brainstorm.layers._windows import Windows
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time


def Pooling3D(
    kernel_size: int | tuple[int, int, int],
    type: str = "max",
    stride: int | tuple[int, int, int] = (1, 1, 1),
    padding: Margin = 0,
    name: str | None = None,
    ceil_mode: bool = False,
) -> ConstructionWrapper:
    """Add a pooling layer. Cells of the padding are neither maximum nor counted.

    First the planes (H, W) are pooled, then the results along the depth.
    Output sizes: ``(size + paddings - kernel) // stride + 1``.

    Args:
        kernel_size: Depth, rows and columns of a window; one number for all, as for the stride.
        type: 'max' or 'avg'.
        stride: Depth, rows and columns between successive windows.
        padding: Cells added on all sides; or for each axis one number, or two as in
            ``((front, back), (top, bottom), (left, right))``.
        name: Layer name; made unique within the network.
        ceil_mode: As in `Pooling2D`.

    Inputs: default ('T', 'B', D, H, W, C)
    Outputs: default ('T', 'B', depth, rows, cols, C)
    Parameters: none
    Internals: planes ('T', 'B', D, rows, cols, C), the pooled planes, and their deltas dplanes;
        only for 'max', plane_argmax, as in `Pooling2D` for each plane, and argmax, of the output's
        shape: likewise for images of D rows and rows*cols columns
    """
    return ConstructionWrapper.create(
        Pooling3DLayerImpl,
        name=name,
        kernel_size=kernel_size,
        type=type,
        stride=stride,
        padding=padding,
        ceil_mode=ceil_mode,
    )


class Pooling3DLayerImpl(PoolingLayer):
    """Implements `Pooling3D` by pooling images twice."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "D", "H", "W", "C")}
    expected_kwargs = pooling_options(3)
    axes = "DHW"

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        outputs, parameters, _ = super().setup(kwargs, in_shapes)
        depth, *_ = in_shapes["default"].feature_shape
        output = outputs["default"]
        planes = depth, *output.feature_shape[1:]
        internals = {
            "planes": BufferStructure("T", "B", *planes),
            "dplanes": BufferStructure("T", "B", *planes, is_backward_only=True),
            **self.set_type(kwargs, plane_argmax=BufferStructure("T", "B", *planes), argmax=output),
        }
        return outputs, parameters, internals

    @property
    def within(self) -> Windows:
        """The windows on planes."""
        return Windows(self.kernel_size[1:], self.stride[1:], self.padding[1:])

    @property
    def across(self) -> Windows:
        """The windows along the depth."""
        return Windows((self.kernel_size[0], 1), (self.stride[0], 1), (self.padding[0], (0, 0)))

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y, internals = buffers.inputs.default, buffers.outputs.default, buffers.internals
        planes, _, *argmax = internals
        self.pool(self.within, _planes(x), _planes(planes), *map(_planes, argmax[:1]))
        self.pool(self.across, _columns(planes), _columns(y), *map(_columns, argmax[1:]))

    def backward_pass(self, buffers: BufferView) -> None:
        x, y, internals = buffers.inputs.default, buffers.outputs.default, buffers.internals
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        planes, dplanes, *argmax = internals
        arrays = planes, y, *argmax[1:], dplanes, dy
        self.unpool(self.across, *map(_columns, arrays), False)
        arrays = x, planes, *argmax[:1], dx, dplanes
        add = not self.overwrites("input_deltas.default")
        self.unpool(self.within, *map(_planes, arrays), add)


def _planes(array: Array) -> Array:
    """Return volumes as images of their planes, (images, rows, cols, C)."""
    flat = flatten_time(array)
    return flat.reshape((flat.shape[0] * flat.shape[1], *flat.shape[2:]))


def _columns(array: Array) -> Array:
    """Return volumes as images (volumes, depth, rows*cols, C)."""
    flat = flatten_time(array)
    n, depth, rows, columns, channels = flat.shape
    return flat.reshape((n, depth, rows * columns, channels))
