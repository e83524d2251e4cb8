"""Rearranging blocks of pixels into channels."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.depth_to_space_layer import BlockLayer, to_channels, to_pixels
from brainstorm.structure import BufferStructure, ConstructionWrapper


def SpaceToDepth(block: int, order: str = "CRD", name: str | None = None) -> ConstructionWrapper:
    """Add a layer that turns blocks of r by r pixels into channels: the inverse of `DepthToSpace`.

    ``y[p, q, (c*r + i)*r + j] = x[p*r + i, q*r + j, c]``, as in PyTorch's PixelUnshuffle; with
    order 'DCR' it is ``y[p, q, (i*r + j)*C + c]``, as in TensorFlow and ONNX.

    Args:
        block: Rows and columns of a block, r.
        order: 'CRD' or 'DCR': the order of the axes within the channels.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H*r, W*r, C)  Outputs: default ('T', 'B', H, W, r*r*C)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SpaceToDepthLayerImpl, name=name, block=block, order=order)


class SpaceToDepthLayerImpl(BlockLayer):
    """Implements `SpaceToDepth`."""

    is_traceable = True

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula, self.delta = to_channels.given(**kwargs), to_pixels.given(**kwargs)
        block = kwargs["block"]
        rows, columns, channels = in_shapes["default"].feature_shape
        if rows % block or columns % block:
            raise self.misfit(
                "default",
                f"(T, B, H, W, C) with H and W multiples of {block}",
                " Use Padding or Crop.",
            )
        size = rows // block, columns // block, channels * block**2
        return {"default": BufferStructure("T", "B", *size)}, {}, {}
