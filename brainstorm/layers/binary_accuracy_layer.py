"""BinaryAccuracy: the fraction of numbers on the correct side of a threshold."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from brainstorm.layers._statistics import CountingLayer
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
    Internals: total_hits, total_cases (1,)
    """
    return ConstructionWrapper.create(BinaryAccuracyLayerImpl, name=name, threshold=threshold)


@functools.cache
def exceeding(threshold: float) -> Callable[[Any], Any]:
    """Return a function that builds a tree of ones above the threshold, else zeros."""
    return lambda x: x > threshold


class BinaryAccuracyLayerImpl(CountingLayer):
    """Implements `BinaryAccuracy`."""

    is_traceable = True
    expected_kwargs = {"threshold": number()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.threshold = kwargs.get("threshold", 0.5)
        return super().setup(kwargs, in_shapes)

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return shape

    def predict(self) -> Callable[[Any], Any]:
        return exceeding(self.threshold)
