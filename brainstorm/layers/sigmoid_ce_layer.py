"""Sigmoid and cross-entropy: the loss of several independent binary decisions."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._losses import ProbabilityLossLayer
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def SigmoidCE(name: str | None = None) -> ConstructionWrapper:
    """Add a sigmoid with the cross-entropy against targets in [0, 1], per element.

    y = sigmoid(x), loss = -(t ln y + (1 - t) ln(1 - y)), computed as softplus(x) - t x: it is exact
    where y is rounded to 0 or 1. Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default and targets, both ('T', 'B', ...) of one shape
    Outputs: predictions, loss, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SigmoidCELayerImpl, name=name)


@formula
def sigmoid_ce(x: Any, t: Any) -> list[Any]:
    """Return predictions and loss."""
    return [fn.sig(x), fn.maximum(x, 0) - t * x + fn.log1p(fn.exp(-fn.absolute(x)))]


@formula
def sigmoid_ce_deltas(y: Any, t: Any, dloss: Any) -> Any:
    """Return the delta."""
    return (y - t) * dloss


class SigmoidCELayerImpl(ProbabilityLossLayer):
    """Implements `SigmoidCE`; no delta for the targets, none from the predictions."""

    is_traceable = True
    formula = sigmoid_ce
    delta = sigmoid_ce_deltas
    needs_in_backward = ("inputs", "outputs")
    delta_operands = ("outputs.predictions", "inputs.targets", "output_deltas.loss")
