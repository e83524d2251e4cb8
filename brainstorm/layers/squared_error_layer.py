"""Squared error: the loss of regression."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["SquaredError", "SquaredErrorLayerImpl"]


def SquaredError(name: str | None = None) -> ConstructionWrapper:
    """Add a squared error against targets.

    predictions = x and loss = 0.5 * (x - targets)**2, per element. Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default and targets, both ('T', 'B', ...) of one shape
    Outputs: predictions, loss, of that shape
    Parameters: none                         Internals: diff = x - targets, of that shape
    """
    return ConstructionWrapper.create(SquaredErrorLayerImpl, name=name)


class SquaredErrorLayerImpl(Layer):
    """Implements `SquaredError`; no delta for the targets, none from the predictions."""

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    accepts_null_deltas = True
    needs_in_backward = ("internals",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["default"].shape
        require_shape(self, "targets", shape)
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure(*shape)}
        return outputs, {}, {"diff": BufferStructure(*shape)}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, targets = buffers.inputs
        predictions, loss = buffers.outputs
        diff = buffers.internals.diff
        self.handler.copy_to(x, predictions)
        self.handler.subtract_tt(x, targets, diff)
        self.handler.mult_tt(diff, diff, loss)
        self.handler.mult_st(0.5, loss, loss)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        overwrite = self.overwrites("input_deltas.default")
        multiply = self.handler.mult_tt if overwrite else self.handler.mult_add_tt
        multiply(buffers.internals.diff, buffers.output_deltas.loss, buffers.input_deltas.default)
