"""Learned positional encoding: a vector for each time step, added to the input."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import flatten_time


def LearnedPositionalEncoding(max_length: int, name: str | None = None) -> ConstructionWrapper:
    """Add a learned vector for each time step: ``y[t, b] = x[t, b] + W[t]``.

    Args:
        max_length: The maximum T.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', n)            Outputs: default ('T', 'B', n)
    Parameters: W (max_length, n)            Internals: none
    """
    return ConstructionWrapper.create(
        LearnedPositionalEncodingLayerImpl, name=name, max_length=max_length
    )


class LearnedPositionalEncodingLayerImpl(CopyingLayer):
    """Implements `LearnedPositionalEncoding`."""

    is_traceable = True
    time_coupled = True
    expected_inputs = {"default": StructureTemplate("T", "B", "F")}
    expected_kwargs = {"max_length": integer(minimum=1).required()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.max_length = kwargs["max_length"]
        outputs, _, _ = super().setup(kwargs, in_shapes)
        features = in_shapes["default"].shape[-1]
        return outputs, {"W": BufferStructure(self.max_length, features)}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = buffers.inputs.default, buffers.outputs.default
        steps, _, size = x.shape
        self._check_length(steps)
        self.handler.broadcast_t(buffers.parameters.W[0:steps].reshape((steps, 1, size)), 1, y)
        self.handler.add_tt(x, y, y)

    def _check_length(self, steps: int) -> None:
        if steps > self.max_length:
            raise self.fail(
                f"expected at most max_length={self.max_length} time steps, got T={steps}. Make "
                f"max_length larger.",
                "default",
            )

    def remembered(self, steps: int) -> Structures:
        self._check_length(steps)
        return {}

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.take_rows_mv(buffers.parameters.W, past.position, y)
        self.handler.add_tt(x, y, y)

    def backward_pass(self, buffers: BufferView) -> None:
        dy, dW = buffers.output_deltas.default, buffers.gradients.W
        steps = dy.shape[0]
        self.sum_op("gradients.W")(dy, 1, dW[0:steps])
        if self.overwrites("gradients.W"):
            self.handler.fill(dW[steps : self.max_length], 0.0)
        if self.needs_delta("default"):
            super().backward_pass(buffers)
