"""Recurrent layer: fully connected to its input and to its own previous output."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._recurrence import RecurrentLayer
from brainstorm.layers.base_layer import Structures
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

    Inputs: default ('T', 'B', ...); optional mask ('T', 'B', 1), where 0 holds y_(t-1)
    Outputs: default ('T', 'B', size), context 1
    Parameters: W (size, n), R (size, size), bias (size,)
    Internals: Ha and, in the backward pass, dHa and dHb: deltas before and after the activation;
        with a mask, hold and idle
    """
    return ConstructionWrapper.create(
        RecurrentLayerImpl, name=name, size=size, activation=activation
    )


class RecurrentLayerImpl(RecurrentLayer):
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
        internals = {"Ha": states, "dHa": deltas, "dHb": deltas, **self.hold_structures(size)}
        return {"default": states}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y, Ha = buffers.inputs.default, buffers.outputs.default, buffers.internals.Ha
        W, R, bias = buffers.parameters[:3]
        steps = x.shape[0]
        if self.holds:
            self.prepare_hold(buffers)
        flat_Ha = flatten_time(Ha[0:steps])
        self.handler.dot_mm(flatten_time_and_features(x), W, flat_Ha, transb=True)
        self.handler.add_mv(flat_Ha, bias.reshape((1, bias.shape[0])), flat_Ha)
        for t in range(steps):
            self.handler.dot_add_mm(y[t - 1], R, Ha[t], transb=True)
            self.handler.act_func[self.activation](Ha[t], y[t])
            if self.holds:
                self.handler.copy_to_if(y[t - 1], y[t], buffers.internals.hold[t])

    def backward_pass(self, buffers: BufferView) -> None:
        y, dy = buffers.outputs.default, buffers.output_deltas.default
        Ha, dHa, dHb = buffers.internals[:3]
        R = buffers.parameters.R
        steps = buffers.inputs.default.shape[0]
        self.handler.copy_to(dy[0:steps], dHb[0:steps])
        for t in range(steps - 1, -1, -1):
            if t + 1 < steps:
                self.handler.dot_add_mm(dHa[t + 1], R, dHb[t])
            if self.holds:
                self.pass_on(dHb, buffers.internals.hold, t)
            self.handler.act_func_deriv[self.activation](Ha[t], y[t], dHb[t], dHa[t])
        deltas = dHa[0:steps]
        self.write_gradients(buffers, (deltas, ("W",)), (deltas, ("R",)))
        self.sum_op("gradients.bias")(flatten_time(deltas), 0, buffers.gradients.bias)
