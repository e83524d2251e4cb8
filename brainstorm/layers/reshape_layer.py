"""Reshape layer: the same features in another shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import shape as feature_shape
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array, flatten_time_and_features, product


def Reshape(shape: int | tuple[int, ...], name: str | None = None) -> ConstructionWrapper:
    """Add a layer that gives the features of each time step another shape, in the same order.

    Args:
        shape: The new feature shape, without T and B; as many features as before.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default ('T', 'B', *shape)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(ReshapeLayerImpl, name=name, shape=shape)


class ReshapeLayerImpl(CopyingLayer):
    """Implements `Reshape`."""

    is_traceable = True
    expected_kwargs = {"shape": feature_shape().required()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = kwargs["shape"]
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        if product(shape) != in_shapes["default"].feature_size:
            raise self.misfit("default", f"{product(shape)} features, for shape={shape}")
        return {"default": BufferStructure("T", "B", *shape)}, {}, {}

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        x, y = map(flatten_time_and_features, (inputs.default, outputs.default))
        return [(x, y)]
