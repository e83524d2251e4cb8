"""L2 decay: a penalty that keeps numbers, such as activations or weights, small."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._penalties import PenaltyLayer
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def L2Decay(name: str | None = None) -> ConstructionWrapper:
    """Add a penalty: loss = 0.5 * sum(x**2) over the features. Wire `loss` to a `Loss`.

    For weights: ``layer - '..parameters.W' >> L2Decay() - 'loss' >> Loss(importance=1e-4)``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), ('B', ...) or of constant size
    Outputs: loss ('T', 'B', 1), ('B', 1) or (1,)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(L2DecayLayerImpl, name=name)


class L2DecayLayerImpl(PenaltyLayer):
    """Implements `L2Decay`."""

    is_traceable = True

    @staticmethod
    def penalty(x: Any) -> Any:
        return 0.5 * fn.square(x)
