"""Binomial cross-entropy: the loss of several binary decisions, given their probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.layers._checks import require_probabilities, require_shape
from brainstorm.layers._formula import FormulaLayer, in_shape, summed_features
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate

__all__ = ["BinomialCrossEntropy", "BinomialCrossEntropyLayerImpl"]


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
    return ConstructionWrapper.create(BinomialCrossEntropyLayerImpl, **locals())


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


class BinomialCrossEntropyLayerImpl(FormulaLayer):
    """Implements `BinomialCrossEntropy`; no delta for the targets."""

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        require_shape(self, "targets", shape)
        return {"default": BufferStructure("T", "B", 1)}, {}, {}

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are in [0, 1].

        Raises:
            LayerValidationError: They are not; the message names the first.
        """
        if input_name == "targets":
            require_probabilities(self, "targets", array)

    def formula(self) -> Formula:
        return binomial_ce

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            inputs = [*buffers.inputs, buffers.output_deltas.default]
            outputs = {"input_deltas.default": buffers.input_deltas.default}
            compute_into(self, binomial_ce_deltas, inputs, outputs)
