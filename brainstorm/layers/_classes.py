"""Common parts of losses against class indices: SoftmaxCE and HingeLoss."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers._checks import require_class_indices, require_shape
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, StructureTemplate

__all__ = ["ClassLossLayer"]


class ClassLossLayer(Layer):
    """Base of losses of K numbers against one class index; no delta for the targets.

    Attributes:
        classes: The numbers from 0 to K - 1 on the handler: formulas compare them with class
            indices to make one-hot vectors.
    """

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        one_value = (*shape[:-1], 1)
        require_shape(self, "targets", one_value)
        return (
            {
                "predictions": BufferStructure(*shape),
                "loss": BufferStructure(*one_value),
            },
            {},
            {},
        )

    def set_handler(self, handler: Handler) -> None:
        super().set_handler(handler)
        count = self.in_shapes["default"].shape[-1]
        self.classes = handler.create_from_numpy(np.arange(count).astype(handler.dtype))

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are whole numbers in [0, K).

        Raises:
            LayerValidationError: Some are not; the message names the first.
        """
        if input_name == "targets":
            remedy = "Number the classes from 0, or give this layer more inputs."
            classes = self.in_shapes["default"].shape[-1]
            require_class_indices(self, input_name, array, classes, remedy)
