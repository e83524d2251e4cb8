"""Common parts of element-wise layers with any number of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.constraints import integer
from brainstorm.structure import StructureTemplate


class JoiningLayer(FormulaLayer):
    """Base of `Add` and `Multiply`: ``inputs_1`` to ``inputs_<num_inputs>``, of one shape."""

    expected_kwargs = {"num_inputs": integer(minimum=2)}

    @classmethod
    def inputs_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, StructureTemplate]:
        count = kwargs.get("num_inputs", 2)
        return {f"inputs_{i}": StructureTemplate("T", "B", "...") for i in range(1, count + 1)}
