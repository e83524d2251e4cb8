"""Slice layer: some consecutive features, rows or channels of its input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array, flatten_time_and_features, product


def Slice(start: int, stop: int, axis: int = -1, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that keeps the indices ``start <= i < stop`` of one feature dimension.

    Args:
        start: First index to keep, >= 0.
        stop: First index after those to keep.
        axis: The feature dimension, without T and B; negative: counted from the end.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)
    Outputs: default, of the same shape except for `axis`, where it is ``stop - start``
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SliceLayerImpl, name=name, start=start, stop=stop, axis=axis)


class SliceLayerImpl(CopyingLayer):
    """Implements `Slice`: columns of a matrix whose rows consist of the axis and all after it."""

    is_traceable = True
    expected_kwargs = {
        "start": integer(minimum=0).required(),
        "stop": integer(minimum=1).required(),
        "axis": integer(),
    }
    can_overwrite = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        start, stop, axis = kwargs["start"], kwargs["stop"], kwargs.get("axis", -1)
        features = list(in_shapes["default"].feature_shape)
        if not -len(features) <= axis < len(features):
            raise self.misfit("default", f"a feature dimension {axis}")
        if start >= stop:
            raise self.fail(f"expected less than stop={stop}, got {start}.", option="start")
        if stop > features[axis]:
            raise self.misfit("default", f"at least {stop} on feature dimension {axis}")
        behind = product(features[axis % len(features) + 1 :])
        self.width = features[axis] * behind
        self.columns = slice(start * behind, stop * behind)
        features[axis] = stop - start
        return {"default": BufferStructure("T", "B", *features)}, {}, {}

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        rows = flatten_time_and_features(inputs.default)
        part = rows.reshape((rows.size // self.width, self.width))[:, self.columns]
        return [(part, outputs.default.reshape(part.shape))]
