"""BinaryAccuracy: how often a number is on the right side of a threshold."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._statistics import CountingLayer
from brainstorm.layers.base_layer import Structures
from brainstorm.layers.constraints import number
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array

__all__ = ["BinaryAccuracy", "BinaryAccuracyLayerImpl"]


def BinaryAccuracy(threshold: float = 0.5, name: str | None = None) -> ConstructionWrapper:
    """Add a statistics layer: the fraction of elements with (default > threshold) == targets.

    Accumulates and reports as `Accuracy` does.

    Args:
        threshold: What an element must exceed to count as 1.
        name: Layer name; made unique within the network.

    Inputs: default and targets ('T', 'B', ...) of equal shape, targets 0 or 1,
        mask ('T', 'B', 1), optional: only cases count where it is not 0
    Outputs: none        Parameters: none
    Internals: predicted, hits, cases of the targets' shape; sum, total_hits, total_cases (1,)
    """
    return ConstructionWrapper.create(BinaryAccuracyLayerImpl, name=name, threshold=threshold)


class BinaryAccuracyLayerImpl(CountingLayer):
    """Implements `BinaryAccuracy`."""

    expected_kwargs = {"threshold": number()}

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.threshold = kwargs.get("threshold", 0.5)
        return super().setup(kwargs, in_shapes)

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return shape

    def predict(self, inputs: Array, predicted: Array) -> None:
        self.handler.add_st(-self.threshold, inputs, predicted)
        self.handler.sign_t(predicted, predicted)
        self.handler.clip_t(predicted, 0.0, 1.0, predicted)
