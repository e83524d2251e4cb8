"""Sigmoid and cross-entropy: the loss of several independent yes-or-no decisions."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["SigmoidCE", "SigmoidCELayerImpl"]


def SigmoidCE(name: str | None = None) -> ConstructionWrapper:
    """Add a sigmoid with the cross-entropy against targets in [0, 1], per element.

    y = sigmoid(x), loss = -(t ln clip(y) + (1 - t) ln clip(1 - y)), clipped to [1e-6, 1].
    Wire `loss` to a `Loss`.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default and targets, both ('T', 'B', ...) of one shape
    Outputs: predictions, loss, of that shape
    Parameters: none                         Internals: dcee, of that shape
    """
    return ConstructionWrapper.create(SigmoidCELayerImpl, name=name)


class SigmoidCELayerImpl(Layer):
    """Implements `SigmoidCE`; no delta for the targets, none from the predictions.

    The internal `dcee` is t ln clip(1 - y) after the forward pass, y - t after the backward.
    """

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "targets": StructureTemplate("T", "B", "..."),
    }
    computes_no_input_deltas_for = ("targets",)
    takes_no_output_deltas_from = ("predictions",)
    accepts_null_deltas = True
    needs_in_backward = ("inputs", "outputs")
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["default"].shape
        require_shape(self, "targets", shape)
        outputs = {"predictions": BufferStructure(*shape), "loss": BufferStructure(*shape)}
        return outputs, {}, {"dcee": BufferStructure(*shape)}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, targets = buffers.inputs
        y, loss = buffers.outputs
        other = buffers.internals.dcee
        self.handler.sigmoid(x, y)
        # loss = t ln clip(y)
        self.handler.clip_t(y, 1e-6, 1.0, loss)
        self.handler.log_t(loss, loss)
        self.handler.mult_tt(targets, loss, loss)
        # loss += other - t other, with other = ln clip(1 - y)
        self.handler.mult_st(-1.0, y, other)
        self.handler.add_st(1.0, other, other)
        self.handler.clip_t(other, 1e-6, 1.0, other)
        self.handler.log_t(other, other)
        self.handler.add_tt(loss, other, loss)
        self.handler.mult_tt(targets, other, other)
        self.handler.subtract_tt(other, loss, loss)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        dcee = buffers.internals.dcee
        overwrite = self.overwrites("input_deltas.default")
        self.handler.subtract_tt(buffers.outputs.predictions, buffers.inputs.targets, dcee)
        multiply = self.handler.mult_tt if overwrite else self.handler.mult_add_tt
        multiply(dcee, buffers.output_deltas.loss, buffers.input_deltas.default)
