"""Padding of images, volumes and sequences of features with cells of one value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import any_value, margin, number, padded_sides
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time


def Padding(padding: Margin, value: float = 0.0, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that adds cells around images; `Crop` removes them.

    It applies to all feature dimensions but the last, the channels: L, (H, W) or (D, H, W).

    Args:
        padding: Cells added on all sides; or for each axis one number, or two, as in
            ``((top, bottom), (left, right))``. A pair for a single axis is (before, after).
        value: The value of the cells.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default ('T', 'B', ..., C), larger
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(PaddingLayerImpl, name=name, padding=padding, value=value)


class PaddingLayerImpl(CopyingLayer):
    """Implements `Padding`."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "...")}
    expected_kwargs = {"padding": any_value().required(), "value": number()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        *image, channels = in_shapes["default"].feature_shape
        if not image:
            raise self.misfit("default", "(T, B, ..., C) with at least one axis before C")
        constraint = margin(len(image))
        if not constraint.accepts(kwargs["padding"]):
            raise self.fail(
                f"expected {constraint.expected}, got {kwargs['padding']!r}.", option="padding"
            )
        self.sides = padded_sides(kwargs["padding"], len(image))
        self.value = float(kwargs.get("value", 0.0))
        size = [cells + sum(side) for cells, side in zip(image, self.sides, strict=True)]
        return {"default": BufferStructure("T", "B", *size, channels)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.fill(buffers.outputs.default, self.value)
        super().forward_pass(buffers, training_pass)

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        x, y = flatten_time(inputs.default), flatten_time(outputs.default)
        sizes = zip(self.sides, y.shape[1:-1], strict=True)
        inner = (slice(before, size - after) for (before, after), size in sizes)
        return [(x, y[(slice(None), *inner)])]
