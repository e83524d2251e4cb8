"""Binomial cross-entropy: the loss of several yes-or-no decisions, given their probabilities."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_time_and_features

__all__ = ["BinomialCrossEntropy", "BinomialCrossEntropyLayerImpl"]


def BinomialCrossEntropy(name: str | None = None) -> ConstructionWrapper:
    """Add a cross-entropy of probabilities against targets in [0, 1], summed over the features.

    outputs.default = -sum(t ln clip(y) + (1 - t) ln clip(1 - y)) for inputs y and t, clipped to
    [1e-6, 1]; the deltas are dy * (y - t) / clip(y - y**2, 1e-6, 1). Wire the output to a `Loss`.
    `SigmoidCE` is the same and more precise where the probabilities come from a sigmoid.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default (probabilities) and targets, both ('T', 'B', ...) of one shape
    Outputs: default ('T', 'B', 1)
    Parameters: none                         Internals: cee, ceed, of the inputs' shape
    """
    return ConstructionWrapper.create(BinomialCrossEntropyLayerImpl, name=name)


class BinomialCrossEntropyLayerImpl(Layer):
    """Implements `BinomialCrossEntropy`; no delta for the targets.

    The internal `cee` has the loss of each feature after the forward pass; after the backward pass
    `ceed` has its derivative.
    """

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    accepts_null_deltas = True
    needs_in_backward = ("inputs",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["default"].shape
        require_shape(self, "targets", shape)
        internals = {"cee": BufferStructure(*shape), "ceed": BufferStructure(*shape)}
        return {"default": BufferStructure("T", "B", 1)}, {}, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        _h, (y, targets), (cee, other) = self.handler, buffers.inputs, buffers.internals
        # -cee = t (ln clip(y) - other) + other, with other = ln clip(1 - y)
        _h.mult_st(-1.0, y, other)
        _h.add_st(1.0, other, other)
        _h.clip_t(other, 1e-6, 1.0, other)
        _h.log_t(other, other)
        _h.clip_t(y, 1e-6, 1.0, cee)
        _h.log_t(cee, cee)
        _h.subtract_tt(other, cee, cee)
        _h.mult_tt(targets, cee, cee)
        _h.subtract_tt(cee, other, cee)
        sums = flatten_time_and_features(buffers.outputs.default)
        _h.sum_t(flatten_time_and_features(cee), 1, sums)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        _h, (y, targets), (scratch, ceed) = self.handler, buffers.inputs, buffers.internals
        _h.mult_tt(y, y, scratch)
        _h.subtract_tt(y, scratch, scratch)
        _h.clip_t(scratch, 1e-6, 1.0, scratch)
        _h.subtract_tt(y, targets, ceed)
        _h.divide_tt(ceed, scratch, ceed)
        overwrite = self.overwrites("input_deltas.default")
        multiply = _h.mult_mv if overwrite else _h.mult_add_mv
        multiply(
            flatten_time_and_features(ceed),
            flatten_time_and_features(buffers.output_deltas.default),
            flatten_time_and_features(buffers.input_deltas.default),
        )
