"""Rectifier whose slope below zero is learned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.layers.constraints import one_of
from brainstorm.layers.expression_layer import ExpressionLayer, ParameterShape
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def PReLU(shared: bool = False, name: str | None = None) -> ConstructionWrapper:
    """Add a rectifier with learned slopes (He et al. 2015): y = max(x, 0) + slope * min(x, 0).

    `slope` is usually initialized with 0.25; weight decay would make it a plain rectifier.

    Args:
        shared: Whether there is one slope for all channels, and not one for each channel (each
            element of the last dimension).
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: slope (C,), or (1,) if it is shared
    Internals: none
    """
    return ConstructionWrapper.create(PReLULayerImpl, name=name, shared=shared)


class PReLULayerImpl(ExpressionLayer):
    """Implements `PReLU`."""

    expected_kwargs = {"shared": one_of(False, True)}

    @classmethod
    def parameters_for(cls, kwargs: Mapping[str, Any]) -> Mapping[str, ParameterShape]:
        return {"slope": 1 if kwargs.get("shared") else "F"}

    def formula(self, x: Any, slope: Any, **_: Any) -> Any:
        return fn.relu(x) + slope * fn.minimum(x, 0)
