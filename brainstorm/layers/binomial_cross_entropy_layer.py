"""Binomial cross-entropy: the loss of several binary decisions, given their probabilities."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import in_shape, summed_features
from brainstorm.layers._losses import ProbabilityLossLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper


def BinomialCrossEntropy(name: str | None = None) -> ConstructionWrapper:
    """Add a cross-entropy of probabilities against targets in [0, 1], summed over the features.

    outputs.default = -sum(t ln clip(y) + (1 - t) ln clip(1 - y)) for inputs y and t, clipped to
    [1e-6, 1]; the deltas are dy * (y - t) / clip(y - y**2, 1e-6, 1). Wire the output to a `Loss`.
    A feature costs at most 13.8. If the probabilities come from a sigmoid, `SigmoidCE` is the same
    without this limit, and exact.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default (probabilities) and targets, both ('T', 'B', ...) of one shape
    Outputs: default ('T', 'B', 1)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(BinomialCrossEntropyLayerImpl, name=name)


@formula
def binomial_ce(y: Any, t: Any) -> Any:
    """Return the loss."""
    of_one, of_zero = (fn.log(fn.clip(p, 1e-6, 1.0)) for p in (y, 1 - y))
    return summed_features(-(t * of_one + (1 - t) * of_zero))


@formula
def binomial_ce_deltas(y: Any, t: Any, dloss: Any) -> Any:
    """Return the delta, without the clipping, which would make it 0 for very wrong predictions."""
    dloss = in_shape(dloss, (*y.shape[:2], *(1 for _ in y.shape[2:])))
    return dloss * (y - t) / fn.clip(y - fn.square(y), 1e-6, 1.0)


class BinomialCrossEntropyLayerImpl(ProbabilityLossLayer):
    """Implements `BinomialCrossEntropy`; no delta for the targets."""

    is_traceable = True
    formula = binomial_ce
    delta = binomial_ce_deltas
    takes_no_output_deltas_from = ()
    delta_operands = ("inputs.default", "inputs.targets", "output_deltas.default")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        super().setup(kwargs, in_shapes)
        return {"default": BufferStructure("T", "B", 1)}, {}, {}
