"""Highway layer: a learned gate between a transformation and what came in."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array

__all__ = ["Highway", "HighwayLayerImpl"]


def Highway(name: str | None = None) -> ConstructionWrapper:
    """Add the gate of a highway network (Srivastava et al. 2015): ``y = T * H + (1 - T) * x``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: H (the transformation), T (the gate, in [0, 1]) and x, all ('T', 'B', ...) of one shape
    Outputs: default, of that shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(HighwayLayerImpl, name=name)


class HighwayLayerImpl(Layer):
    """Implements `Highway`."""

    expected_inputs = {
        "H": StructureTemplate("T", "B", "..."),
        "T": StructureTemplate("T", "B", "..."),
        "x": StructureTemplate("T", "B", "..."),
    }
    accepts_null_deltas = True
    needs_in_backward = ("inputs",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        shape = in_shapes["x"].shape
        require_shape(self, "H", shape)
        require_shape(self, "T", shape)
        return {"default": BufferStructure(*shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        H, T, x = buffers.inputs
        y = buffers.outputs.default
        self.handler.subtract_tt(H, x, y)
        self.handler.mult_tt(T, y, y)
        self.handler.add_tt(x, y, y)

    def backward_pass(self, buffers: BufferView) -> None:
        _h, dy = self.handler, buffers.output_deltas.default
        H, T, x = buffers.inputs
        dH, dT, dx = buffers.input_deltas
        # dH = T dy, dT = (H - x) dy, dx = (1 - T) dy; what is subtracted goes by the negated dy.
        if self.needs_delta("H"):
            self._product("H", T, dy, dH)
        if self.needs_delta("T"):
            self._product("T", H, dy, dT)
        _h.mult_st(-1.0, dy, dy)
        if self.needs_delta("T"):
            _h.mult_add_tt(x, dy, dT)
        if self.needs_delta("x"):
            self._product("x", T, dy, dx)
            _h.subtract_tt(dx, dy, dx)

    def _product(self, port: str, factor: Array, deltas: Array, out: Array) -> None:
        overwrite = self.overwrites(f"input_deltas.{port}")
        multiply = self.handler.mult_tt if overwrite else self.handler.mult_add_tt
        multiply(factor, deltas, out)
