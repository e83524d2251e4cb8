"""Accuracy: how often the largest element is the target class, accumulated over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._statistics import CountingLayer
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper


def Accuracy(name: str | None = None) -> ConstructionWrapper:
    """Add a statistics layer: the fraction of cases with argmax(default) == targets.

    It accumulates over forward passes until ``net.reset_statistics()``;
    ``net.dump_statistics()`` gives the fraction under the layer's name, and the trainer logs and
    resets it in every epoch.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1) class indices,
        mask ('T', 'B', 1), optional: only cases where it is not 0 count
    Outputs: none        Parameters: none
    Internals: total_hits, total_cases (1,)
    """
    return ConstructionWrapper.create(AccuracyLayerImpl, name=name)


def largest(x: Any) -> Any:
    """Return the tree of the index of the largest element."""
    return fn.argmax(x, -1)


class AccuracyLayerImpl(CountingLayer):
    """Implements `Accuracy`."""

    is_traceable = True

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*shape[:-1], 1)

    def predict(self) -> Callable[[Any], Any]:
        return largest
