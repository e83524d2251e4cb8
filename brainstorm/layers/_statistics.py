"""What layers share that count how many predictions are right."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array, flatten_time_and_features

__all__ = ["CountingLayer"]


class CountingLayer(Layer):
    """Base of layers that count hits and compare them with the number of all cases.

    A subclass implements `target_shape` and `predict`. With an input ``mask`` only the cases count
    where it is not 0. The sums lie in persistent internals, so no pass reads anything back.
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

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = self.target_shape(in_shapes["default"].shape)
        require_shape(self, "targets", shape)
        per_case = BufferStructure(*shape)
        internals = {
            "predicted": per_case,
            "hits": per_case,
            "cases": per_case,
            "sum": BufferStructure(1),
            "total_hits": BufferStructure(1, persistent=True),
            "total_cases": BufferStructure(1, persistent=True),
        }
        return {}, {}, internals

    def target_shape(self, shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the shape that the targets must have for an input of this shape."""
        raise NotImplementedError

    def predict(self, inputs: Array, predicted: Array) -> None:
        """Write the predictions, comparable with the targets."""
        raise NotImplementedError

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, inputs = self.handler, buffers.inputs
        predicted, hits, cases, total, total_hits, total_cases = buffers.internals
        self.predict(inputs.default, predicted)
        _h.subtract_tt(predicted, inputs.targets, predicted)
        _h.fill(hits, 1.0)
        _h.fill_if(hits, 0.0, predicted)
        _h.fill(cases, 1.0)
        if "mask" in inputs:
            mask = flatten_time_and_features(inputs.mask)
            for counted in (hits, cases):
                rows = flatten_time_and_features(counted)
                _h.mult_mv(rows, mask, rows)
        for counted, sum_so_far in ((hits, total_hits), (cases, total_cases)):
            _h.sum_t(counted, None, total)
            _h.add_tt(sum_so_far, total, sum_so_far)

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
