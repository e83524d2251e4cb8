"""Common parts of losses against targets: per element, of probabilities, and of class indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers._checks import require, require_class_indices, require_shape
from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, StructureTemplate

Shape = tuple[Any, ...]


def no_class(targets: Any, classes: Any) -> Any:
    """Return the tree that is 0, or NaN where a target is none of the classes."""
    return 0.0 / ((targets >= 0) * (targets < classes.size) * (fn.floor(targets) == targets))


def no_class_deltas(targets: Any, classes: Any, dloss: Any) -> Any:
    """Return the same for deltas: 0 where that of the loss is 0, as behind a mask."""
    return fn.where(dloss, no_class(targets, classes), 0.0)


class TargetLossLayer(FormulaLayer):
    """Base of losses against targets; no delta for the targets, none from the predictions."""

    expected_inputs = dict.fromkeys(("default", "targets"), StructureTemplate("T", "B", "..."))
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from: tuple[str, ...] = ("predictions",)

    def target_shape(self, shape: Shape) -> Shape:
        """Return the shape of the targets, and of the loss, for an input of this shape."""
        return shape

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        targets = self.target_shape(shape)
        require_shape(self, "targets", targets)
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure(*targets)}
        return outputs, {}, {}


class ProbabilityLossLayer(TargetLossLayer):
    """Base of losses whose targets are probabilities."""

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are in [0, 1]."""
        if input_name == "targets":
            with np.errstate(invalid="ignore"):
                right = (array >= 0) & (array <= 1)
            remedy = "Give 0 and 1 for no and yes."
            require(self, "targets", array, right, "probabilities in [0, 1]", remedy)


class ClassLossLayer(TargetLossLayer):
    """Base of losses of K numbers against one class index.

    The first of the ``constants`` are the numbers from 0 to K - 1: formulas compare them with class
    indices to make one-hot vectors.
    """

    def target_shape(self, shape: Shape) -> Shape:
        """Return the shape of one value for each K."""
        return (*shape[:-1], 1)

    def set_handler(self, handler: Handler) -> None:
        """Create the numbers of the classes."""
        super().set_handler(handler)
        count = self.in_shapes["default"].shape[-1]
        self.constants = [handler.create_from_numpy(np.arange(count).astype(handler.dtype))]

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        """Check that targets are whole numbers in [0, K)."""
        if input_name == "targets":
            remedy = (
                "Number the classes from 0, or give this layer more inputs. What has no class gets "
                "any class, and a Mask of the loss."
            )
            classes = self.in_shapes["default"].shape[-1]
            require_class_indices(self, input_name, array, classes, remedy)
