"""Pooling over channels: each group of channels becomes its maximum (maxout) or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import integer, one_of
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["ChannelPooling", "ChannelPoolingLayerImpl"]


def ChannelPooling(
    group_size: int, type: str = "max", name: str | None = None
) -> ConstructionWrapper:
    """Add pooling over groups of consecutive channels, the last dimension.

    ``y[..., g]`` = maximum or mean of ``x[..., g*group_size : (g + 1)*group_size]``. With 'max'
    behind a linear layer this is maxout (Goodfellow et al. 2013).

    Args:
        group_size: Channels per group; divides C.
        type: 'max' or 'avg'.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default ('T', 'B', ..., C // group_size)
    Parameters: none
    Internals: argmax, for 'max' alone, of the output's shape: channel of the first maximum
    """
    return ConstructionWrapper.create(
        ChannelPoolingLayerImpl, name=name, group_size=group_size, type=type
    )


class ChannelPoolingLayerImpl(Layer):
    """Implements `ChannelPooling`: pooling of images with one row per group."""

    expected_kwargs = {"group_size": integer(minimum=1).required(), "type": one_of("max", "avg")}
    accepts_null_deltas = True
    needs_in_backward = ("internals",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.group_size, self.type = kwargs["group_size"], kwargs.get("type", "max")
        *rest, channels = in_shapes["default"].shape
        if channels % self.group_size:
            raise self.misfit("default", f"(T, B, ..., C) with C a multiple of {self.group_size}")
        shape = (*rest, channels // self.group_size)
        internals = {"argmax": BufferStructure(*shape)} if self.type == "max" else {}
        return {"default": BufferStructure(*shape)}, {}, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = self._grouped(buffers.inputs.default), _as_column(buffers.outputs.default)
        window = (1, self.group_size)
        if self.type == "max":
            argmax = _as_column(buffers.internals.argmax)
            self.handler.maxpool2d_forward_batch(x, window, y, 0, (1, 1), argmax)
        else:
            self.handler.avgpool2d_forward_batch(x, window, y, 0, (1, 1))

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        x, y = self._grouped(buffers.inputs.default), _as_column(buffers.outputs.default)
        dx = self._grouped(buffers.input_deltas.default)
        dy = _as_column(buffers.output_deltas.default)
        window = (1, self.group_size)
        if self.type == "max":
            argmax = _as_column(buffers.internals.argmax)
            self.handler.maxpool2d_backward_batch(x, window, y, 0, (1, 1), argmax, dx, dy)
        else:
            self.handler.avgpool2d_backward_batch(x, window, y, 0, (1, 1), dx, dy)

    def _grouped(self, array: Array) -> Array:
        """Return (cells, groups, group_size, 1)."""
        cells = flatten_all_but_last(array)
        groups = cells.shape[1] // self.group_size
        return cells.reshape((cells.shape[0], groups, self.group_size, 1))


def _as_column(array: Array) -> Array:
    """Return (cells, groups, 1, 1)."""
    cells = flatten_all_but_last(array)
    return cells.reshape((*cells.shape, 1, 1))
