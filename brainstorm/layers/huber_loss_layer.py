"""Huber loss: squared for small errors, absolute for large ones."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._losses import TargetLossLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def HuberLoss(delta: float = 1.0, name: str | None = None) -> ConstructionWrapper:
    """Add a Huber loss against targets: a regression loss that is robust to outliers.

    With e = |x - targets|: predictions = x and loss = 0.5 * e**2 where e <= delta, else
    delta * (e - 0.5 * delta), per element. Wire `loss` to a `Loss`. Source: Huber, "Robust
    Estimation of a Location Parameter", Annals of Mathematical Statistics 35, 1964.

    Args:
        delta: The error above which the loss is linear.
        name: Layer name; made unique within the network.

    Inputs: default and targets, both ('T', 'B', ...) of one shape
    Outputs: predictions, loss, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(HuberLossLayerImpl, name=name, delta=delta)


@formula
def huber_loss(x: Any, targets: Any, *, delta: float) -> list[Any]:
    """Return predictions and loss."""
    error = fn.absolute(x - targets)
    inner = fn.minimum(error, delta)
    return [x, inner * (error - 0.5 * inner)]


class HuberLossLayerImpl(TargetLossLayer):
    """Implements `HuberLoss`; no delta for the targets, none from the predictions."""

    is_traceable = True
    expected_kwargs = {"delta": number(0, low_open=True)}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula = huber_loss.given(delta=kwargs.get("delta", 1.0))
        return super().setup(kwargs, in_shapes)
