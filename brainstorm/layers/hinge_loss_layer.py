"""Hinge loss: classification with a margin, as by a support vector machine."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._losses import ClassLossLayer, no_class, no_class_deltas
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def HingeLoss(margin: float = 1.0, name: str | None = None) -> ConstructionWrapper:
    """Add a multi-class hinge loss over the last dimension, against class indices.

    predictions = x and loss = max(0, margin + max over j != target of x[j] - x[target]). Source:
    Crammer and Singer, "On the Algorithmic Implementation of Multiclass Kernel-based Vector
    Machines", JMLR 2001. Wire `loss` to a `Loss`.

    Args:
        margin: By how much the score of the target must exceed all others for a loss of 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1): whole numbers in [0, K)
    Outputs: predictions ('T', 'B', ..., K), loss ('T', 'B', ..., 1)
    Parameters: none
    Internals: winner (..., 1), the class with the largest margin (0 for the target) + x - x[target]
    """
    return ConstructionWrapper.create(HingeLossLayerImpl, name=name, margin=margin)


@formula
def hinge_loss(x: Any, targets: Any, classes: Any, *, margin: float) -> list[Any]:
    """Return predictions, loss and winner."""
    is_target = classes == targets
    x_target = fn.sum(fn.where(is_target, x, 0), -1) + no_class(targets, classes)
    violations = margin * (1 - is_target) + (x - x_target)
    return [x, fn.max(violations, -1), fn.argmax(violations, -1)]


@formula
def hinge_loss_deltas(winner: Any, targets: Any, dloss: Any, classes: Any) -> Any:
    """Return the delta for one winner; the derivative of max would let all equal ones win."""
    deltas = ((classes == winner) - (classes == targets)) * dloss
    return deltas + no_class_deltas(targets, classes, dloss)


class HingeLossLayerImpl(ClassLossLayer):
    """Implements `HingeLoss`; no delta for the targets, none from the predictions."""

    is_traceable = True
    expected_kwargs = {"margin": number(0)}
    needs_in_backward = ("inputs", "internals")
    delta = hinge_loss_deltas
    delta_operands = ("internals.winner", "inputs.targets", "output_deltas.loss")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula = hinge_loss.given(margin=kwargs.get("margin", 1.0))
        outputs, parameters, _ = super().setup(kwargs, in_shapes)
        return outputs, parameters, {"winner": outputs["loss"]}
