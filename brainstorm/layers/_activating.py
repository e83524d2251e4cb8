"""Layers that end in an activation function, in place where possible."""

from __future__ import annotations

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array


class ActivatedLayer(Layer):
    """Base of layers whose output ``default`` is an activation of a linear function of the inputs.

    The linear part is computed into `before_activation`. That is the output itself, unless the
    derivative of the activation needs its input: then it is the internal ``Ha``. If an operation
    applies `fused_activation`, `activate_kept_input` does the rest.
    """

    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def set_activation(self, name: str, output: BufferStructure) -> Structures:
        """Set the activation, and return the internals that it needs for an output."""
        self.activation = name
        self.keeps_input = name in Handler.activations_needing_inputs
        self.fused_activation = "linear" if self.keeps_input else name
        of_activation = () if name == "linear" else ("outputs", "internals")[: 1 + self.keeps_input]
        self.needs_in_backward = ("inputs", *of_activation)
        return {"Ha": BufferStructure(*output.shape)} if self.keeps_input else {}

    def before_activation(self, buffers: BufferView) -> Array:
        """Return the array that the activation is applied to."""
        return buffers.internals.Ha if self.keeps_input else buffers.outputs.default

    def activate(self, buffers: BufferView) -> None:
        """Compute the output from `before_activation`."""
        if self.keeps_input:
            self.activate_kept_input(buffers)
        else:
            self.handler.inplace_act_func[self.activation](buffers.outputs.default)

    def activate_kept_input(self, buffers: BufferView) -> None:
        """Compute the output if the activation was not fused."""
        if self.keeps_input:
            self.handler.act_func[self.activation](buffers.internals.Ha, buffers.outputs.default)

    def differentiate(self, buffers: BufferView) -> None:
        """Turn the output deltas into deltas before the activation."""
        y, dy = buffers.outputs.default, buffers.output_deltas.default
        Ha = buffers.internals.Ha if self.keeps_input else None
        self.handler.inplace_act_func_deriv[self.activation](y, dy, Ha)
