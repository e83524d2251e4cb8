"""Recurrent layer: fully connected to its input and to its own previous output."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import integer
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_time, flatten_time_and_features

__all__ = ["Recurrent", "RecurrentLayerImpl"]


def Recurrent(size: int, activation: str = "tanh", name: str | None = None) -> ConstructionWrapper:
    """Add a simple recurrent layer.

    Ha_t = W x_t + R y_(t-1) + bias and y_t = act(Ha_t), with the n input features flattened.

    Args:
        size: Number of units.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default ('T', 'B', size), context 1
    Parameters: W (size, n), R (size, size), bias (size,)
    Internals: Ha and, in the backward pass, dHa and dHb: deltas before and after the activation
    """
    return ConstructionWrapper.create(
        RecurrentLayerImpl, name=name, size=size, activation=activation
    )


class RecurrentLayerImpl(Layer):
    """Implements `Recurrent`; row -1 of the output is the state before the first step."""

    expected_kwargs = {"size": integer(minimum=1).required(), "activation": activation_name()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients", "internals")

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.activation = kwargs.get("activation", "tanh")
        size = kwargs["size"]
        parameters = {
            "W": BufferStructure(size, in_shapes["default"].feature_size),
            "R": BufferStructure(size, size),
            "bias": BufferStructure(size),
        }
        states = BufferStructure("T", "B", size, context_size=1)
        deltas = BufferStructure("T", "B", size, context_size=1, is_backward_only=True)
        return {"default": states}, parameters, {"Ha": states, "dHa": deltas, "dHb": deltas}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y, Ha = buffers.inputs.default, buffers.outputs.default, buffers.internals.Ha
        W, R, bias = buffers.parameters
        steps = x.shape[0]
        flat_Ha = flatten_time(Ha[0:steps])
        self.handler.dot_mm(flatten_time_and_features(x), W, flat_Ha, transb=True)
        self.handler.add_mv(flat_Ha, bias.reshape((1, bias.shape[0])), flat_Ha)
        for t in range(steps):
            self.handler.dot_add_mm(y[t - 1], R, Ha[t], transb=True)
            self.handler.act_func[self.activation](Ha[t], y[t])

    def backward_pass(self, buffers: BufferView) -> None:
        y, dy = buffers.outputs.default, buffers.output_deltas.default
        Ha, dHa, dHb = buffers.internals
        R = buffers.parameters.R
        steps = buffers.inputs.default.shape[0]
        self.handler.copy_to(dy[0:steps], dHb[0:steps])
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                self.handler.dot_add_mm(dHa[t + 1], R, dHb[t])
            self.handler.act_func_deriv[self.activation](Ha[t], y[t], dHb[t], dHa[t])
        self._inputs_and_parameters(buffers, steps)

    def _inputs_and_parameters(self, buffers: BufferView, steps: int) -> None:
        y, dHa = buffers.outputs.default, buffers.internals.dHa
        dW, dR, dbias = buffers.gradients
        x = flatten_time_and_features(buffers.inputs.default)
        flat_dHa = flatten_time(dHa[0:steps])
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            self.dot_op("input_deltas.default")(flat_dHa, buffers.parameters.W, dx)
        self.dot_op("gradients.W")(flat_dHa, x, dW, transa=True)
        self.sum_op("gradients.bias")(flat_dHa, 0, dbias)
        # The state before step 0 is row -1; those before the other steps are rows 0 to T - 2.
        self.dot_op("gradients.R")(dHa[0], y[-1], dR, transa=True)
        if steps > 1:
            before, after = flatten_time(y[0 : steps - 1]), flatten_time(dHa[1:steps])
            self.handler.dot_add_mm(after, before, dR, transa=True)
