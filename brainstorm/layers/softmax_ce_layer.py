"""Softmax and cross-entropy: the loss of classification."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.layers._checks import require_class_indices, require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_all_but_last

__all__ = ["SoftmaxCE", "SoftmaxCELayerImpl"]


def SoftmaxCE(name: str | None = None) -> ConstructionWrapper:
    """Add a softmax over the last dimension with the cross-entropy against class indices.

    predictions = softmax(x) and loss = -ln(clip(p[target], 1e-6, 1)). Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1): whole numbers in [0, K)
    Outputs: predictions ('T', 'B', ..., K), loss ('T', 'B', ..., 1)
    Parameters: none                         Internals: t_bin (..., K), one-hot targets
    """
    return ConstructionWrapper.create(SoftmaxCELayerImpl, name=name)


class SoftmaxCELayerImpl(Layer):
    """Implements `SoftmaxCE`; no delta for the targets, none from the predictions."""

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    accepts_null_deltas = True
    needs_in_backward = ("inputs", "outputs")
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["default"].shape
        one_value = (*shape[:-1], 1)
        require_shape(self, "targets", one_value)
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure(*one_value)}
        return outputs, {}, {"t_bin": BufferStructure(*shape, is_backward_only=True)}

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are whole numbers in [0, K).

        Raises:
            LayerValidationError: Some are not; the message names the first.
        """
        if input_name == "targets":
            remedy = "Number the classes from 0, or give this layer more inputs."
            classes = self.in_shapes["default"].shape[-1]
            require_class_indices(self, input_name, array, classes, remedy)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, targets = (flatten_all_but_last(a) for a in buffers.inputs)
        predictions, loss = (flatten_all_but_last(a) for a in buffers.outputs)
        self.handler.softmax_m(x, predictions)
        self.handler.index_m_by_v(predictions, targets, loss)
        self.handler.clip_t(loss, 1e-6, 1.0, loss)
        self.handler.log_t(loss, loss)
        self.handler.mult_st(-1.0, loss, loss)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        _, targets = (flatten_all_but_last(a) for a in buffers.inputs)
        predictions = flatten_all_but_last(buffers.outputs.predictions)
        dloss = flatten_all_but_last(buffers.output_deltas.loss)
        dx = flatten_all_but_last(buffers.input_deltas.default)
        t_bin = flatten_all_but_last(buffers.internals.t_bin)
        overwrite = self.overwrites("input_deltas.default")
        self.handler.binarize_v(targets, t_bin)
        self.handler.subtract_tt(predictions, t_bin, t_bin)
        multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
        multiply(t_bin, dloss, dx)
