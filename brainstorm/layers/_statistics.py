"""Common parts of layers that count correct predictions."""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping
from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers._formula import in_shape
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, StructureTemplate


@functools.cache
def counted(predict: Callable[[Any], Any]) -> Formula:
    """Return the formula of the numbers of hits and of cases, given the tree of the predictions."""

    @formula
    def totals(x: Any, *others: Any) -> list[Any]:
        *mask, targets = others
        cases = fn.full(targets.shape, 1, targets.dtype)
        for m in mask:
            counts = in_shape(m, (*m.shape, *(1,) * (targets.ndim - m.ndim))) != 0
            cases = fn.broadcast_to(counts, targets.shape)
        hits = (predict(x) == targets) * cases
        return [in_shape(fn.sum(tree), (1,)) for tree in (hits, cases)]

    return totals


class CountingLayer(Layer):
    """Base of layers that count hits as a fraction of all cases.

    A subclass implements `target_shape` and `predict`. With an input ``mask`` only cases where it
    is not 0 count. The sums lie in persistent internals, so passes do not read values back.
    """

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    optional_inputs = ("mask",)
    computes_no_input_deltas_for = ("default", "targets", "mask")
    needs_in_backward = ()
    has_stats = True

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        require_shape(self, "targets", self.target_shape(in_shapes["default"].shape))
        total = BufferStructure(1, persistent=True)
        return {}, {}, {"total_hits": total, "total_cases": total}

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape that the targets must have for an input of this shape."""
        raise NotImplementedError

    def predict(self) -> Callable[[Any], Any]:
        """Return the function for `counted`, always the same for the same options."""
        raise NotImplementedError

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        inputs, totals = list(buffers.inputs), list(buffers.internals)
        self.handler.compute(counted(self.predict()), inputs, totals, accumulate=True)

    def backward_pass(self, buffers: BufferView) -> None:
        pass

    def dump_statistics(self, buffers: BufferView, storage: MutableMapping[str, float]) -> None:
        hits, cases = (
            float(self.handler.get_numpy_copy(buffers.internals[name]).item())
            for name in ("total_hits", "total_cases")
        )
        storage[self.name] = hits / cases if cases else float("nan")

    def reset_statistics(self, buffers: BufferView) -> None:
        for name in ("total_hits", "total_cases"):
            self.handler.fill(buffers.internals[name], 0.0)
