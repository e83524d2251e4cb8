"""Global pooling of images: each channel becomes its maximum or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import one_of
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_time

__all__ = ["GlobalPooling2D", "GlobalPooling2DLayerImpl"]


def GlobalPooling2D(type: str = "max", name: str | None = None) -> ConstructionWrapper:
    """Add pooling over whole images (Lin et al. 2014): y[c] = maximum or mean of x[:, :, c].

    Args:
        type: 'max' or 'avg'.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', C)
    Parameters: none
    Internals: argmax ('T', 'B', 1, 1, C), for 'max' alone, as in `Pooling2D`
    """
    return ConstructionWrapper.create(GlobalPooling2DLayerImpl, name=name, type=type)


class GlobalPooling2DLayerImpl(Layer):
    """Implements `GlobalPooling2D`: pooling with one window as large as the image."""

    expected_inputs = {"default": StructureTemplate("T", "B", "F", "F", "F")}
    expected_kwargs = {"type": one_of("max", "avg")}
    accepts_null_deltas = True
    needs_in_backward = ("internals",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.type = kwargs.get("type", "max")
        *window, channels = in_shapes["default"].feature_shape
        self.window = tuple(window)
        argmax = BufferStructure("T", "B", 1, 1, channels)
        internals = {"argmax": argmax} if self.type == "max" else {}
        return {"default": BufferStructure("T", "B", channels)}, {}, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), _as_pixels(buffers.outputs.default)
        if self.type == "max":
            argmax = flatten_time(buffers.internals.argmax)
            self.handler.maxpool2d_forward_batch(x, self.window, y, 0, (1, 1), argmax)
        else:
            self.handler.avgpool2d_forward_batch(x, self.window, y, 0, (1, 1))

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        x, y = flatten_time(buffers.inputs.default), _as_pixels(buffers.outputs.default)
        dx = flatten_time(buffers.input_deltas.default)
        dy = _as_pixels(buffers.output_deltas.default)
        if self.type == "max":
            argmax = flatten_time(buffers.internals.argmax)
            self.handler.maxpool2d_backward_batch(x, self.window, y, 0, (1, 1), argmax, dx, dy)
        else:
            self.handler.avgpool2d_backward_batch(x, self.window, y, 0, (1, 1), dx, dy)


def _as_pixels(array: Array) -> Array:
    """Return (T*B, 1, 1, C) of (T, B, C)."""
    flat = flatten_time(array)
    return flat.reshape((flat.shape[0], 1, 1, flat.shape[1]))
