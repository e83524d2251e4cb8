"""Gated linear units: one half of the features opens and closes gates for the other half."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["GLU", "GLULayerImpl", "SwiGLU"]


def GLU(activation: str = "sigmoid", name: str | None = None) -> ConstructionWrapper:
    """Add gated linear units (Dauphin et al. 2017): ``y = a * act(b)``, with the halves a, b of x.

    They halve the last dimension: give the layer in front of them twice the size.

    Args:
        activation: Of the gates; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., 2n)      Outputs: default ('T', 'B', ..., n)
    Parameters: none
    Internals: gate (..., n) = act(b); dgate (..., n) in the backward pass
    """
    return ConstructionWrapper.create(GLULayerImpl, name=name, activation=activation)


def SwiGLU(name: str | None = None) -> ConstructionWrapper:
    """Add gated linear units whose gates are silu (Shazeer 2020): ``GLU('silu')``.

    Args:
        name: Layer name; made unique within the network.
    """
    return GLU("silu", name)


class GLULayerImpl(Layer):
    """Implements `GLU`."""

    expected_kwargs = {"activation": activation_name()}
    accepts_null_deltas = True
    needs_in_backward = ("inputs", "internals")
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.activation = kwargs.get("activation", "sigmoid")
        *leading, features = in_shapes["default"].shape
        if features % 2:
            raise self.misfit("default", "an even last dimension")
        output = BufferStructure(*leading, features // 2)
        dgate = BufferStructure(*output.shape, is_backward_only=True)
        return {"default": output}, {}, {"gate": output, "dgate": dgate}

    def _halves(self, array: Array) -> tuple[Array, Array]:
        rows = flatten_all_but_last(array)
        half = rows.shape[1] // 2
        return rows[:, 0:half], rows[:, half : 2 * half]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        a, b = self._halves(buffers.inputs.default)
        gate = flatten_all_but_last(buffers.internals.gate)
        self.handler.act_func[self.activation](b, gate)
        self.handler.mult_tt(a, gate, flatten_all_but_last(buffers.outputs.default))

    def backward_pass(self, buffers: BufferView) -> None:
        if not self.needs_delta("default"):
            return
        a, b = self._halves(buffers.inputs.default)
        da, db = self._halves(buffers.input_deltas.default)
        gate, dgate = (flatten_all_but_last(array) for array in buffers.internals)
        dy = flatten_all_but_last(buffers.output_deltas.default)
        self.handler.mult_tt(dy, a, dgate)
        self.handler.inplace_act_func_deriv[self.activation](gate, dgate, b)
        write(self, "input_deltas.default", dgate, db)
        self.handler.mult_tt(dy, gate, dy)
        write(self, "input_deltas.default", dy, da)
