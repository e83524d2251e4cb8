"""Cropping of images: a part of fixed size at a fixed position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import on_each_axis, per_axis
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time


def Crop(
    size: int | tuple[int, int],
    offset: int | tuple[int, int] | None = None,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a layer that cuts out a part of each image.

    ``y[p, q] = x[top + p, left + q]``. For random crops as augmentation use `RandomCrop`.

    Args:
        size: Rows and columns of the part; one number for both, as for the offset.
        offset: Its top row and left column; `None`: centred (with an odd remainder, one more row or
            column is cut off at the bottom and on the right).
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', *size, C)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(CropLayerImpl, name=name, size=size, offset=offset)


class CropLayerImpl(CopyingLayer):
    """Implements `Crop`."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {"size": per_axis(2, 1).required(), "offset": per_axis(2, 0).or_none()}
    can_overwrite = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        *image, channels = in_shapes["default"].feature_shape
        size, given = on_each_axis(kwargs["size"], 2), kwargs.get("offset")
        if given is None:
            given = [max(0, cells - kept) // 2 for cells, kept in zip(image, size, strict=True)]
        offset = on_each_axis(given, 2)
        for axis, cells, kept, start in zip("HW", image, size, offset, strict=True):
            if start + kept > cells:
                raise self.misfit(
                    "default",
                    f"(T, B, H, W, C) with {axis} >= {start + kept}",
                    " Use a smaller size or offset.",
                )
        self.part = (
            slice(None),
            *(slice(start, start + kept) for start, kept in zip(offset, size, strict=True)),
        )
        return {"default": BufferStructure("T", "B", *size, channels)}, {}, {}

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        return [(flatten_time(inputs.default)[self.part], flatten_time(outputs.default))]
