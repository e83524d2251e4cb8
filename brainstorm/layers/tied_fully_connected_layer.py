"""Tied fully connected layer: the transposed weights of another one."""

from __future__ import annotations

from typing import Any

from brainstorm.errors import NetworkValidationError
from brainstorm.layers._activating import ActivatedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import shape
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.structure.construction import RECTIFIED
from brainstorm.utils import flatten_time_and_features

__all__ = ["TiedFullyConnected", "TiedFullyConnectedLayerImpl"]


def TiedFullyConnected(
    tied_to: ConstructionWrapper,
    activation: str = RECTIFIED,
    name: str | None = None,
    size: int | tuple[int, ...] | None = None,
) -> ConstructionWrapper:
    """Add a fully connected layer with the transposed weights of another one, for autoencoders.

    outputs.default = act(inputs.default @ W + bias), where W belongs to `tied_to` and n, the number
    of flattened input features, is its size. The gradients of both layers add up.

    Args:
        tied_to: The `FullyConnected` layer.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        size: Feature shape of the output; `None`: as many features as the input of `tied_to`, which
            must then come before this layer.

    Inputs: default ('T', 'B', ...)          Outputs: default ('T', 'B', *size)
    Parameters: W (n, out), that of `tied_to`; bias (out,), its own
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu

    Raises:
        NetworkValidationError: `tied_to` is something else, such as the name of a layer.
    """
    if not isinstance(tied_to, ConstructionWrapper):
        raise NetworkValidationError(
            f"TiedFullyConnected: expected tied_to to be the result of FullyConnected(...), got "
            f"{tied_to!r}."
        )
    tied = ConstructionWrapper.create(
        TiedFullyConnectedLayerImpl, name=name, activation=activation, size=size
    )
    tied.layer.shared_parameters = {"W": (tied_to.layer, "W")}
    tied.layer.merge_scopes(tied_to.layer)
    return tied


class TiedFullyConnectedLayerImpl(ActivatedLayer):
    """Implements `TiedFullyConnected`; turns the output deltas into pre-activation deltas."""

    is_traceable = True
    expected_kwargs = {"activation": activation_name(), "size": shape().or_none()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        size = kwargs.get("size")
        if size is None:
            if "W" not in self.shared_structures:
                raise self.fail(
                    "it is that of the input of the layer that this one is tied to, which has no "
                    "parameter W, or does not come before this one. Give the size.",
                    option="size",
                )
            size = self.shared_structures["W"].shape[1:]
        output = BufferStructure("T", "B", *(size if isinstance(size, (tuple, list)) else (size,)))
        parameters = {
            "W": BufferStructure(in_shapes["default"].feature_size, output.feature_size),
            "bias": BufferStructure(output.feature_size),
        }
        internals = self.set_activation(kwargs.get("activation", "rel"), output)
        return {"default": output}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        W, bias = buffers.parameters
        x = flatten_time_and_features(buffers.inputs.default)
        Ha = flatten_time_and_features(self.before_activation(buffers))
        self.handler.dot_mm(x, W, Ha)
        self.handler.add_mv(Ha, bias.reshape((1, bias.shape[0])), Ha)
        self.activate(buffers)

    def backward_pass(self, buffers: BufferView) -> None:
        W, _ = buffers.parameters
        dW, dbias = buffers.gradients
        x = flatten_time_and_features(buffers.inputs.default)
        dy = flatten_time_and_features(buffers.output_deltas.default)
        self.differentiate(buffers)
        if self.needs_delta("default"):
            dx = flatten_time_and_features(buffers.input_deltas.default)
            self.dot_op("input_deltas.default")(dy, W, dx, transb=True)
        self.dot_op("gradients.W")(x, dy, dW, transa=True)
        self.sum_op("gradients.bias")(dy, 0, dbias)
