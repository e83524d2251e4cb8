"""Squared error: the loss of regression."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._losses import TargetLossLayer
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def SquaredError(name: str | None = None) -> ConstructionWrapper:
    """Add a squared error against targets.

    predictions = x and loss = 0.5 * (x - targets)**2, per element. Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default and targets, both ('T', 'B', ...) of one shape
    Outputs: predictions, loss, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SquaredErrorLayerImpl, name=name)


@formula
def squared_error(x: Any, t: Any) -> list[Any]:
    """Return predictions and loss."""
    return [x, 0.5 * fn.square(x - t)]


class SquaredErrorLayerImpl(TargetLossLayer):
    """Implements `SquaredError`; no delta for the targets, none from the predictions."""

    is_traceable = True
    formula = squared_error
