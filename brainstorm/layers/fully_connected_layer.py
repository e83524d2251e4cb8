"""Fully connected layer: every output unit depends on every input feature."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._activating import ActivatedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import activation, shape
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.structure.construction import RECTIFIED
from brainstorm.utils import flatten_time_and_features


def FullyConnected(
    size: int | tuple[int, ...] | None = None, activation: str = RECTIFIED, name: str | None = None
) -> ConstructionWrapper:
    """Add a fully connected layer.

    outputs.default = act(inputs.default @ W.T + bias), with the n input features flattened.

    Args:
        size: Feature shape of the output; `None` keeps the input's.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default ('T', 'B', *size)
    Parameters: W (out, n), bias (out,)
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu
    """
    return ConstructionWrapper.create(
        FullyConnectedLayerImpl, name=name, size=size, activation=activation
    )


class FullyConnectedLayerImpl(ActivatedLayer):
    """Implements `FullyConnected`; turns the output deltas into pre-activation deltas."""

    is_traceable = True
    expected_kwargs = {"size": shape().or_none(), "activation": activation()}
    #: Whether W is (n, out), as that of `TiedFullyConnected`.
    is_transposed = False

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        size = kwargs.get("size")
        if size is None:
            size = self.default_size()
        output = BufferStructure("T", "B", *(size if isinstance(size, (tuple, list)) else (size,)))
        n, out = in_shapes["default"].feature_size, output.feature_size
        shape_of_W = (n, out) if self.is_transposed else (out, n)
        parameters = {"W": BufferStructure(*shape_of_W), "bias": BufferStructure(out)}
        internals = self.set_activation(kwargs.get("activation", "rel"), output)
        return {"default": output}, parameters, internals

    def default_size(self) -> tuple[int, ...]:
        """Return the feature shape of the output if the option ``size`` is `None`."""
        return self.in_shapes["default"].feature_shape

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        W, bias = buffers.parameters
        x = flatten_time_and_features(buffers.inputs.default)
        Ha = flatten_time_and_features(self.before_activation(buffers))
        if self.is_transposed:
            self.handler.dot_mm(x, W, Ha)
            self.handler.add_mv(Ha, bias.reshape((1, bias.shape[0])), Ha)
            self.activate(buffers)
        else:
            self.handler.affine_mm(x, W, bias, Ha, self.fused_activation)
            self.activate_kept_input(buffers)

    def backward_pass(self, buffers: BufferView) -> None:
        W, _ = buffers.parameters
        dW, dbias = buffers.gradients
        x = flatten_time_and_features(buffers.inputs.default)
        dy = flatten_time_and_features(buffers.output_deltas.default)
        self.differentiate(buffers)
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            self.dot_op("input_deltas.default")(dy, W, dx, transb=self.is_transposed)
        factors = (x, dy) if self.is_transposed else (dy, x)
        self.dot_op("gradients.W")(*factors, dW, transa=True)
        self.sum_op("gradients.bias")(dy, 0, dbias)
