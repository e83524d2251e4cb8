"""Global pooling of images: each channel becomes its maximum or its average."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._pooling import PoolingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import one_of
from brainstorm.structure import BufferStructure, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time


def GlobalPooling2D(type: str = "max", name: str | None = None) -> ConstructionWrapper:
    """Add pooling over whole images (Lin et al. 2014): y[c] = maximum or mean of x[:, :, c].

    Args:
        type: 'max' or 'avg'.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', C)
    Parameters: none
    Internals: argmax ('T', 'B', 1, 1, C), only for 'max', as in `Pooling2D`
    """
    return ConstructionWrapper.create(GlobalPooling2DLayerImpl, name=name, type=type)


class GlobalPooling2DLayerImpl(PoolingLayer):
    """Implements `GlobalPooling2D`: pooling with one window as large as the image."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {"type": one_of("max", "avg")}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        *window, channels = in_shapes["default"].feature_shape
        kwargs = {**kwargs, "kernel_size": tuple(window)}
        _, parameters, internals = super().setup(kwargs, in_shapes)
        return {"default": BufferStructure("T", "B", channels)}, parameters, internals

    def results(self, array: Array) -> Array:
        """Return (images, 1, 1, C)."""
        flat = flatten_time(array)
        return flat.reshape((flat.shape[0], 1, 1, flat.shape[-1]))
