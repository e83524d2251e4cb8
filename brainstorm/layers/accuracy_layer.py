"""Accuracy: how often the largest element is the target class, accumulated over batches."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._statistics import CountingLayer
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["Accuracy", "AccuracyLayerImpl"]


def Accuracy(name: str | None = None) -> ConstructionWrapper:
    """Add a statistics layer: the fraction of cases with argmax(default) == targets.

    It accumulates over forward passes until ``net.reset_statistics()``;
    ``net.dump_statistics()`` gives the fraction under the layer's name, and the trainer logs and
    resets it in every epoch.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1) class indices,
        mask ('T', 'B', 1), optional: only cases count where it is not 0
    Outputs: none        Parameters: none
    Internals: predicted, hits, cases of the targets' shape; sum, total_hits, total_cases (1,)
    """
    return ConstructionWrapper.create(AccuracyLayerImpl, name=name)


class AccuracyLayerImpl(CountingLayer):
    """Implements `Accuracy`."""

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*shape[:-1], 1)

    def predict(self, inputs: Array, predicted: Array) -> None:
        self.handler.argmax_m(flatten_all_but_last(inputs), flatten_all_but_last(predicted))
