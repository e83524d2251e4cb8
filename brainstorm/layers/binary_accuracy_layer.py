"""BinaryAccuracy: the fraction of numbers on the correct side of a threshold."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.accuracy_layer import AccuracyLayerImpl, counted
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure import ConstructionWrapper


def BinaryAccuracy(threshold: float = 0.5, name: str | None = None) -> ConstructionWrapper:
    """Add a statistics layer: the fraction of elements with (default > threshold) == targets.

    Accumulates and reports like `Accuracy`.

    Args:
        threshold: Elements above it count as 1.
        name: Layer name; made unique within the network.

    Inputs: default and targets ('T', 'B', ...) of equal shape, targets 0 or 1,
        mask ('T', 'B', 1), optional: only cases where it is not 0 count
    Outputs: none        Parameters: none
    Internals: total_hits, total_cases (2,) as of `Accuracy`
    """
    return ConstructionWrapper.create(BinaryAccuracyLayerImpl, name=name, threshold=threshold)


class BinaryAccuracyLayerImpl(AccuracyLayerImpl):
    """Implements `BinaryAccuracy`."""

    is_traceable = True
    expected_kwargs = {"threshold": number()}

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return shape

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.formula = counted.given(threshold=kwargs.get("threshold", 0.5))
        return super().setup(kwargs, in_shapes)
