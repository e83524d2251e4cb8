"""Multiply layer: the product of any number of inputs."""

from __future__ import annotations

import functools
import operator
from typing import Any

from brainstorm.layers.add_layer import JoiningLayer
from brainstorm.optree import formula
from brainstorm.structure import ConstructionWrapper


def Multiply(num_inputs: int = 2, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that multiplies its inputs element by element, e.g. for a gate.

    Args:
        num_inputs: Number of inputs, at least 2.
        name: Layer name; made unique within the network.

    Inputs: inputs_1, ..., inputs_<num_inputs> ('T', 'B', ...), all of the same shape
    Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(MultiplyLayerImpl, name=name, num_inputs=num_inputs)


@formula
def product(*factors: Any) -> Any:
    """Return the output."""
    return functools.reduce(operator.mul, factors)


class MultiplyLayerImpl(JoiningLayer):
    """Implements `Multiply`."""

    is_traceable = True
    formula = product
