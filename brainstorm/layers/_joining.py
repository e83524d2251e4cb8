"""Common parts of element-wise layers with any number of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import integer
from brainstorm.structure import BufferStructure, StructureTemplate

__all__ = ["JoiningLayer"]


class JoiningLayer(Layer):
    """Base of `Add` and `Multiply`: ``inputs_1`` to ``inputs_<num_inputs>``, of one shape."""

    expected_kwargs = {"num_inputs": integer(minimum=2)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    @classmethod
    def inputs_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, StructureTemplate]:
        """Return as many inputs as the option says."""
        count = kwargs.get("num_inputs", 2)
        return {f"inputs_{i}": StructureTemplate("T", "B", "...") for i in range(1, count + 1)}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["inputs_1"].shape
        for port in in_shapes:
            require_shape(self, port, shape)
        return {"default": BufferStructure(*shape)}, {}, {}
