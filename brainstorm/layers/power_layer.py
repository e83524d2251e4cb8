"""Power layer: scale, shift and power, element by element."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array

__all__ = ["Power", "PowerLayerImpl"]


def Power(
    scale: float = 1.0, shift: float = 0.0, power: float = 1.0, name: str | None = None
) -> ConstructionWrapper:
    """Add a power of every element: ``y = (scale * x + shift) ** power`` (the layer of Mocha).

    Args:
        scale: Factor.
        shift: Summand.
        power: Exponent; a whole number wherever ``scale * x + shift`` can be negative.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: slope (backward pass), of the same shape
    """
    return ConstructionWrapper.create(
        PowerLayerImpl, name=name, scale=scale, shift=shift, power=power
    )


class PowerLayerImpl(Layer):
    """Implements `Power`."""

    expected_kwargs = {"scale": number(), "shift": number(), "power": number()}
    accepts_null_deltas = True
    needs_in_backward = ("inputs",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.scale, self.shift = kwargs.get("scale", 1.0), kwargs.get("shift", 0.0)
        self.power = kwargs.get("power", 1.0)
        shape = in_shapes["default"].shape
        slope = BufferStructure(*shape, is_backward_only=True)
        return {"default": BufferStructure(*shape)}, {}, {"slope": slope}

    def _raise(self, x: Array, power: float, out: Array) -> None:
        self.handler.mult_st(self.scale, x, out)
        self.handler.add_st(self.shift, out, out)
        self.handler.power_t(out, power, out)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self._raise(buffers.inputs.default, self.power, buffers.outputs.default)

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        slope = buffers.internals.slope
        # To the power 0, everything is a constant, also 0: its slope must not become 0 * infinity.
        self._raise(buffers.inputs.default, self.power - 1.0 if self.power else 1.0, slope)
        self.handler.mult_st(self.power * self.scale, slope, slope)
        overwrite = self.overwrites("input_deltas.default")
        multiply = self.handler.mult_tt if overwrite else self.handler.mult_add_tt
        multiply(slope, buffers.output_deltas.default, buffers.input_deltas.default)
