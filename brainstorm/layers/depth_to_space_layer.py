"""Rearranging channels into blocks of pixels."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._blocks import BlockLayer, to_channels, to_pixels
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.structure import BufferStructure, ConstructionWrapper


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
