"""Hinge loss: classification with a margin, as by a support vector machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.layers._checks import require_class_indices, require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_all_but_last

__all__ = ["HingeLoss", "HingeLossLayerImpl"]


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
    Internals: violations (..., K) = margin (0 for the target) + x - x[target]; winner (..., 1), the
        class with the largest
    """
    return ConstructionWrapper.create(HingeLossLayerImpl, name=name, margin=margin)


class HingeLossLayerImpl(Layer):
    """Implements `HingeLoss`; no delta for the targets, none from the predictions."""

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    expected_kwargs = {"margin": number(0)}
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    accepts_null_deltas = True
    needs_in_backward = ("inputs", "internals")
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.margin = kwargs.get("margin", 1.0)
        shape = in_shapes["default"].shape
        scores, one_value = BufferStructure(*shape), BufferStructure(*shape[:-1], 1)
        require_shape(self, "targets", one_value.shape)
        outputs = {"predictions": scores, "loss": one_value}
        return outputs, {}, {"violations": scores, "winner": one_value}

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
        _h = self.handler
        x, targets = (flatten_all_but_last(a) for a in buffers.inputs)
        predictions, loss = (flatten_all_but_last(a) for a in buffers.outputs)
        violations, winner = (flatten_all_but_last(a) for a in buffers.internals)
        _h.copy_to(x, predictions)
        _h.index_m_by_v(x, targets, loss)
        _h.binarize_v(targets, violations)
        _h.mult_st(-self.margin, violations, violations)
        _h.add_st(self.margin, violations, violations)
        _h.add_tt(x, violations, violations)
        _h.subtract_mv(violations, loss, violations)
        _h.argmax_m(violations, winner)
        _h.index_m_by_v(violations, winner, loss)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        _h, targets = self.handler, flatten_all_but_last(buffers.inputs.targets)
        dloss = flatten_all_but_last(buffers.output_deltas.loss)
        dx = flatten_all_but_last(buffers.input_deltas.default)
        one_hot, winner = (flatten_all_but_last(a) for a in buffers.internals)
        _h.binarize_v(winner, one_hot)
        multiply = _h.mult_mv if self.overwrites("input_deltas.default") else _h.mult_add_mv
        multiply(one_hot, dloss, dx)
        _h.binarize_v(targets, one_hot)
        _h.mult_st(-1.0, dloss, dloss)
        _h.mult_add_mv(one_hot, dloss, dx)
