"""Accuracy: how often the largest element is the target class, accumulated over batches."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers._formula import in_shape
from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate


def Accuracy(name: str | None = None) -> ConstructionWrapper:
    """Add a statistics layer: the fraction of cases with argmax(default) == targets.

    It accumulates over forward passes until ``net.reset_statistics()``;
    ``net.dump_statistics()`` gives the fraction under the layer's name, and the trainer logs and
    resets it in every epoch.

    Args:
        name: Layer name; made unique within the network.

    If a counted prediction has a NaN, the fraction is NaN.

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1) class indices,
        mask ('T', 'B', 1), optional: only cases where it is not 0 count
    Outputs: none        Parameters: none
    Internals: total_hits, total_cases (2,), each a multiple of 2**20 and the rest, which are exact
    """
    return ConstructionWrapper.create(AccuracyLayerImpl, name=name)


#: From here on, counts are moved from one number of a total to the other: float32 has no odd
#: numbers above 2**24.
UNIT = 2.0**20


@formula
def counted(x: Any, *others: Any, threshold: float | None = None) -> list[Any]:
    """Return the totals of hits and of cases; with a threshold, of binary predictions."""
    *mask, targets, total_hits, total_cases = others
    cases = fn.full(targets.shape, 1, targets.dtype)
    for m in mask:
        counts = in_shape(m, (*m.shape, *(1,) * (targets.ndim - m.ndim))) != 0
        cases = fn.broadcast_to(counts, targets.shape)
    predicted = fn.argmax(x, -1) if threshold is None else x > threshold
    unknown = fn.max(fn.isnan(x), -1) if threshold is None else fn.isnan(x)
    hits = fn.where(unknown, float("nan"), predicted == targets)
    hits = fn.where(cases, hits, 0)
    return [added(total_hits, hits), added(total_cases, cases)]


def added(total: Any, counts: Any) -> Any:
    """Return a total (2,) after the sum of some counts."""
    rest = total[1:] + in_shape(fn.sum(counts), (1,))
    units = fn.floor(rest / UNIT) * UNIT
    return fn.concatenate([total[:1] + units, rest - units], 0)


class AccuracyLayerImpl(MaskedLayer):
    """Implements `Accuracy`, and counts for `BinaryAccuracy`.

    The sums lie in persistent internals, so passes do not read values back.
    """

    is_traceable = True
    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    computes_no_input_deltas_for = ("default", "targets", "mask")
    needs_in_backward = ()
    has_stats = True
    #: From the inputs and the totals so far to the totals.
    formula = counted

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape that the targets must have for an input of this shape."""
        return (*shape[:-1], 1)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        require_shape(self, "targets", self.target_shape(in_shapes["default"].shape))
        total = BufferStructure(2, persistent=True)
        return {}, {}, {"total_hits": total, "total_cases": total}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        totals = list(buffers.internals)
        self.handler.compute(self.formula, [*buffers.inputs, *totals], totals)

    def backward_pass(self, buffers: BufferView) -> None:
        pass

    def dump_statistics(self, buffers: BufferView, storage: MutableMapping[str, float]) -> None:
        totals = [self.handler.get_numpy_copy(total) for total in buffers.internals]
        hits, cases = (float(total.sum(dtype=float)) for total in totals)
        storage[self.name] = hits / cases if cases else float("nan")

    def reset_statistics(self, buffers: BufferView) -> None:
        for total in buffers.internals:
            self.handler.fill(total, 0.0)
