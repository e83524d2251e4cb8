"""Softmax and cross-entropy: the loss of classification."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._classes import ClassLossLayer
from brainstorm.layers._writing import compute_into
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["SoftmaxCE", "SoftmaxCELayerImpl"]


def SoftmaxCE(name: str | None = None) -> ConstructionWrapper:
    """Add a softmax over the last dimension with the cross-entropy against class indices.

    predictions = softmax(x) and loss = -ln(clip(p[target], 1e-6, 1)). Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1): whole numbers in [0, K)
    Outputs: predictions ('T', 'B', ..., K), loss ('T', 'B', ..., 1)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SoftmaxCELayerImpl, name=name)


@formula
def softmax_ce(x: Any, targets: Any, classes: Any) -> list[Any]:
    """Predictions and loss."""
    p = fn.softmax(x)
    p_target = fn.sum(p * (classes == targets), -1)
    return [p, -fn.log(fn.clip(p_target, 1e-6, 1.0))]


@formula
def softmax_ce_deltas(p: Any, targets: Any, classes: Any, dloss: Any) -> Any:
    """The delta without the clip, so that hopeless predictions are learned from too."""
    return (p - (classes == targets)) * dloss


class SoftmaxCELayerImpl(ClassLossLayer):
    """Implements `SoftmaxCE`; no delta for the targets, none from the predictions."""

    is_traceable = True
    needs_in_backward = ("inputs", "outputs")

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.compute(softmax_ce, [*buffers.inputs, self.classes], list(buffers.outputs))

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            p, targets = buffers.outputs.predictions, buffers.inputs.targets
            inputs = [p, targets, self.classes, buffers.output_deltas.loss]
            outputs = {"input_deltas.default": buffers.input_deltas.default}
            compute_into(self, softmax_ce_deltas, inputs, outputs)
