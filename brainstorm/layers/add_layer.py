"""Add layer: the sum of any number of inputs."""

from __future__ import annotations

import functools
import operator
from typing import Any

from brainstorm.layers._joining import JoiningLayer
from brainstorm.layers._writing import compute_into
from brainstorm.optree import Formula, formula
from brainstorm.structure import BufferView, ConstructionWrapper


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


@functools.cache
def passed_on(count: int) -> Formula:
    """Return the formula of the deltas of `count` inputs."""
    return formula(lambda dy: [dy] * count)


class AddLayerImpl(JoiningLayer):
    """Implements `Add`."""

    is_traceable = True
    needs_in_backward = ()

    def formula(self) -> Formula:
        return total

    def backward_pass(self, buffers: BufferView) -> None:
        ports = list(filter(self.needs_delta, self.in_shapes))
        deltas = {f"input_deltas.{port}": buffers.input_deltas[port] for port in ports}
        if deltas:
            compute_into(self, passed_on(len(ports)), [buffers.output_deltas.default], deltas)
