"""Gated linear units: one half of the features gates the other half."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import derived
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.optree import formula
from brainstorm.optree.activations import activation
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last


def GLU(activation: str = "sigmoid", name: str | None = None) -> ConstructionWrapper:
    """Add gated linear units (Dauphin et al. 2017): ``y = a * act(b)``, with the halves a, b of x.

    The last dimension is halved, so the layer before needs twice the size.

    Args:
        activation: Activation of the gates; one of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., 2n)      Outputs: default ('T', 'B', ..., n)
    Parameters: none                         Internals: gate ('T', 'B', ..., n) = act(b)
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

    is_traceable = True
    expected_kwargs = {"activation": activation_name()}
    needs_in_backward = ("inputs", "internals")
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.activation = kwargs.get("activation", "sigmoid")
        *leading, features = in_shapes["default"].shape
        if features % 2:
            raise self.misfit("default", "an even last dimension")
        output = BufferStructure(*leading, features // 2)
        return {"default": output}, {}, {"gate": output}

    def _halves(self, array: Array) -> list[Array]:
        rows = flatten_all_but_last(array)
        half = rows.shape[1] // 2
        return [rows[:, 0:half], rows[:, half : 2 * half]]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        results = map(flatten_all_but_last, (buffers.internals.gate, buffers.outputs.default))
        inputs = self._halves(buffers.inputs.default)
        self.handler.compute(gated.given(name=self.activation), inputs, [*results])

    def backward_pass(self, buffers: BufferView) -> None:
        deltas = derived(gated.given(name=self.activation), (1,), (0, 1), (0,))
        gate, dy = buffers.internals.gate, buffers.output_deltas.default
        factors = flatten_all_but_last(gate), flatten_all_but_last(dy)
        inputs = [*self._halves(buffers.inputs.default), *factors]
        outputs = self._halves(buffers.input_deltas.default)
        self.handler.compute(deltas, inputs, outputs, not self.overwrites("input_deltas.default"))


@formula
def gated(a: Any, b: Any, *, name: str) -> tuple[Any, Any]:
    """Return gate and output, given both halves."""
    gate = activation(name)(1 * b)  # a new node even if the activation is the identity
    return gate, a * gate
