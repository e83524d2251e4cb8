"""Sigmoid and cross-entropy: the loss of several independent binary decisions."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.layers._checks import require_probabilities, require_shape
from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate

__all__ = ["SigmoidCE", "SigmoidCELayerImpl"]


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
    return ConstructionWrapper.create(SigmoidCELayerImpl, **locals())


@formula
def sigmoid_ce(x: Any, t: Any) -> list[Any]:
    """Return predictions and loss."""
    return [fn.sig(x), fn.maximum(x, 0) - t * x + fn.log1p(fn.exp(-fn.absolute(x)))]


@formula
def sigmoid_ce_deltas(y: Any, t: Any, dloss: Any) -> Any:
    """Return the delta."""
    return (y - t) * dloss


class SigmoidCELayerImpl(FormulaLayer):
    """Implements `SigmoidCE`; no delta for the targets, none from the predictions."""

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    needs_in_backward = ("inputs", "outputs")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        require_shape(self, "targets", shape)
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure(*shape)}
        return outputs, {}, {}

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are in [0, 1].

        Raises:
            LayerValidationError: They are not; the message names the first.
        """
        if input_name == "targets":
            require_probabilities(self, "targets", array)

    def formula(self) -> Formula:
        return sigmoid_ce

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            y, targets = buffers.outputs.predictions, buffers.inputs.targets
            outputs = {"input_deltas.default": buffers.input_deltas.default}
            compute_into(self, sigmoid_ce_deltas, [y, targets, buffers.output_deltas.loss], outputs)
