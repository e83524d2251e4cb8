"""L1 decay: a penalty that drives numbers, such as activations or weights, to zero."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.l2_decay_layer import L2DecayLayerImpl
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def L1Decay(name: str | None = None) -> ConstructionWrapper:
    """Add a penalty: loss = sum(abs(x)) over the features. Wire `loss` to a `Loss`.

    For weights: ``layer - '..parameters.W' >> L1Decay() - 'loss' >> Loss(importance=1e-4)``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), ('B', ...) or of constant size
    Outputs: loss ('T', 'B', 1), ('B', 1) or (1,)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(L1DecayLayerImpl, name=name)


class L1DecayLayerImpl(L2DecayLayerImpl):
    """Implements `L1Decay`; at 0 the derivative is 0."""

    is_traceable = True

    @staticmethod
    def penalty(x: Any) -> Any:
        return fn.absolute(x)
