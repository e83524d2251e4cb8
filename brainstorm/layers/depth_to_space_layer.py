"""Rearranging channels into blocks of pixels."""

from __future__ import annotations

import math
from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper, StructureTemplate


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


@formula
def to_pixels(x: Any, *, block: int, order: str = "CRD") -> Any:
    """Return images (T, B, H, W, C) whose channels became blocks of pixels."""
    row, column, channel = _ORDERS[order]
    *lead, rows, columns, size = x.shape
    sizes = {row: block, column: block, channel: size // block**2}
    parts = (sizes[axis] for axis in (3, 4, 5))
    apart = fn.reshape(x, (math.prod(lead), rows, columns, *parts))
    ordered = fn.transpose(apart, (0, 1, row, 2, column, channel))
    return fn.reshape(ordered, (*lead, rows * block, columns * block, sizes[channel]))


@formula
def to_channels(x: Any, *, block: int, order: str = "CRD") -> Any:
    """Return the inverse of `to_pixels`."""
    axes = 0, 1, *_ORDERS[order][:1], 2, *_ORDERS[order][1:]
    *lead, rows, columns, size = x.shape
    shape = math.prod(lead), rows // block, block, columns // block, block, size
    ordered = fn.transpose(fn.reshape(x, shape), tuple(map(axes.index, range(6))))
    return fn.reshape(ordered, (*lead, rows // block, columns // block, size * block**2))


class BlockLayer(FormulaLayer):
    """Base of the layers between blocks and channels."""

    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {"block": integer(minimum=1).required(), "order": one_of(*_ORDERS)}
    needs_in_backward = ()
    delta_operands = ("output_deltas.default",)


class DepthToSpaceLayerImpl(BlockLayer):
    """Implements `DepthToSpace`."""

    is_traceable = True

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula, self.delta = to_pixels.given(**kwargs), to_channels.given(**kwargs)
        block = kwargs["block"]
        rows, columns, channels = in_shapes["default"].feature_shape
        if channels % block**2:
            raise self.misfit("default", f"(T, B, H, W, C) with C a multiple of {block**2}")
        size = rows * block, columns * block, channels // block**2
        return {"default": BufferStructure("T", "B", *size)}, {}, {}
