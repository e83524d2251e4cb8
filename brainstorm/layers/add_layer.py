"""Add layer: the sum of any number of inputs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers._writing import compute_into
from brainstorm.layers.constraints import integer
from brainstorm.optree import formula
from brainstorm.structure import BufferView, ConstructionWrapper, StructureTemplate

#: Maximum number of inputs: each has a name before any is connected.
MOST_INPUTS = 10_000


def Add(num_inputs: int = 2, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that adds its inputs element by element, e.g. for a residual connection.

    Args:
        num_inputs: Number of inputs, at least 2.
        name: Layer name; made unique within the network.

    Inputs: inputs_1, ..., inputs_<num_inputs> ('T', 'B', ...), all of the same shape
    Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(AddLayerImpl, name=name, num_inputs=num_inputs)


@formula
def total(*terms: Any) -> Any:
    """Return the output."""
    return functools.reduce(operator.add, terms)


@formula
def passed_on(dy: Any, *, count: int) -> list[Any]:
    """Return the deltas of `count` inputs."""
    return [dy] * count


class JoiningLayer(FormulaLayer):
    """Base of `Add` and `Multiply`: ``inputs_1`` to ``inputs_<num_inputs>``, of one shape."""

    expected_kwargs = {"num_inputs": integer(2, MOST_INPUTS)}

    @classmethod
    def inputs_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, StructureTemplate]:
        count = kwargs.get("num_inputs", 2)
        return {f"inputs_{i}": StructureTemplate("T", "B", "...") for i in range(1, count + 1)}


class AddLayerImpl(JoiningLayer):
    """Implements `Add`."""

    is_traceable = True
    formula = total
    needs_in_backward = ()

    def backward_pass(self, buffers: BufferView) -> None:
        ports = list(filter(self.needs_delta, self.in_shapes))
        deltas = {f"input_deltas.{port}": buffers.input_deltas[port] for port in ports}
        if deltas:
            same = passed_on.given(count=len(ports))
            compute_into(self, same, [buffers.output_deltas.default], deltas)
