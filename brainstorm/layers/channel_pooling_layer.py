"""Pooling over channels: each group of channels becomes its maximum (maxout) or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._pooling import PoolingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.structure import BufferStructure, ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last


def ChannelPooling(
    group_size: int, type: str = "max", name: str | None = None
) -> ConstructionWrapper:
    """Add pooling over groups of consecutive channels, the last dimension.

    ``y[..., g]`` = maximum or mean of ``x[..., g*group_size : (g + 1)*group_size]``. With 'max'
    after a linear layer this is maxout (Goodfellow et al. 2013).

    Args:
        group_size: Channels per group; divides C.
        type: 'max' or 'avg'.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default ('T', 'B', ..., C // group_size)
    Parameters: none
    Internals: argmax, only for 'max', of the output's shape: channel of the first maximum
    """
    return ConstructionWrapper.create(
        ChannelPoolingLayerImpl, name=name, group_size=group_size, type=type
    )


class ChannelPoolingLayerImpl(PoolingLayer):
    """Implements `ChannelPooling`: pooling of images with one row per group."""

    is_traceable = True
    expected_kwargs = {"group_size": integer(minimum=1).required(), "type": one_of("max", "avg")}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        group_size = kwargs["group_size"]
        *rest, channels = in_shapes["default"].shape
        if channels % group_size:
            raise self.misfit("default", f"(T, B, ..., C) with C a multiple of {group_size}")
        self.kernel_size = (1, group_size)
        output = BufferStructure(*rest, channels // group_size)
        return {"default": output}, {}, self.set_type(kwargs, argmax=output)

    def images(self, array: Array) -> Array:
        """Return (cells, groups, group_size, 1)."""
        cells = flatten_all_but_last(array)
        _, group_size = self.kernel_size
        return cells.reshape((cells.shape[0], cells.shape[1] // group_size, group_size, 1))

    def results(self, array: Array) -> Array:
        """Return (cells, groups, 1, 1)."""
        cells = flatten_all_but_last(array)
        return cells.reshape((*cells.shape, 1, 1))
