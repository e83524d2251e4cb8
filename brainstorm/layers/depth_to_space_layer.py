"""Rearranging channels into blocks of pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import flatten_time


def DepthToSpace(block: int, order: str = "CRD", name: str | None = None) -> ConstructionWrapper:
    """Add a layer that turns r * r channels each into blocks of r by r pixels (Shi et al. 2016).

    ``y[p*r + i, q*r + j, c] = x[p, q, (c*r + i)*r + j]``, as in PyTorch's PixelShuffle; with order
    'DCR' it is ``x[p, q, (i*r + j)*C + c]`` for C channels of the output, as in TensorFlow.
    `SpaceToDepth` is the inverse.

    Args:
        block: Rows and columns of a block, r.
        order: 'CRD' or 'DCR' (as in ONNX): the order of the axes within the channels.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, r*r*C)  Outputs: default ('T', 'B', H*r, W*r, C)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(DepthToSpaceLayerImpl, name=name, block=block, order=order)


#: Option to the order of (row in a block, column in a block, channel) in the channel axis.
_ORDERS = {"CRD": (4, 5, 3), "DCR": (3, 4, 5)}


@functools.cache
def to_pixels(block: int, order: str) -> Formula:
    """Return the formula of images (N, H, W, C) whose channels become blocks of pixels."""
    row, column, channel = _ORDERS[order]

    @formula
    def pixels(x: Any) -> Any:
        n, rows, columns, size = x.shape
        sizes = {row: block, column: block, channel: size // block**2}
        apart = fn.reshape(x, (n, rows, columns, *(sizes[axis] for axis in (3, 4, 5))))
        ordered = fn.transpose(apart, (0, 1, row, 2, column, channel))
        return fn.reshape(ordered, (n, rows * block, columns * block, sizes[channel]))

    return pixels


@functools.cache
def to_channels(block: int, order: str) -> Formula:
    """Return the inverse of `to_pixels`."""
    axes = 0, 1, *_ORDERS[order][:1], 2, *_ORDERS[order][1:]

    @formula
    def channels(x: Any) -> Any:
        n, rows, columns, size = x.shape
        shape = n, rows // block, block, columns // block, block, size
        ordered = fn.transpose(fn.reshape(x, shape), tuple(map(axes.index, range(6))))
        return fn.reshape(ordered, (n, rows // block, columns // block, size * block**2))

    return channels


class BlockLayer(Layer):
    """Base of the layers between blocks and channels."""

    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {"block": integer(minimum=1).required(), "order": one_of(*_ORDERS)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)
    needs_in_backward = ()

    #: Formulas, by size and order of the blocks, of the output and of the input delta.
    formulas: tuple[Callable[[int, str], Formula], Callable[[int, str], Formula]]

    def _formula(self, place: int) -> Formula:
        return self.formulas[place](self.kwargs["block"], self.kwargs.get("order", "CRD"))

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.compute(self._formula(0), [x], [y])

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            dx = flatten_time(buffers.input_deltas.default)
            dy = flatten_time(buffers.output_deltas.default)
            compute_into(self, self._formula(1), [dy], {"input_deltas.default": dx})


class DepthToSpaceLayerImpl(BlockLayer):
    """Implements `DepthToSpace`."""

    is_traceable = True
    formulas = to_pixels, to_channels

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        block = kwargs["block"]
        rows, columns, channels = in_shapes["default"].feature_shape
        if channels % block**2:
            raise self.misfit("default", f"(T, B, H, W, C) with C a multiple of {block**2}")
        size = rows * block, columns * block, channels // block**2
        return {"default": BufferStructure("T", "B", *size)}, {}, {}
