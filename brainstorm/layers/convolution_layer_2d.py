"""Convolution of images with learned filters."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import window_output_size
from brainstorm.layers._writing import overwrites_all
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import integer, pair
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import flatten_time

__all__ = ["Convolution2D", "Convolution2DLayerImpl"]


def Convolution2D(
    num_filters: int,
    kernel_size: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    padding: int = 0,
    activation: str = "rel",
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a two-dimensional convolution: act(cross-correlation with W (no flip) + bias).

    Output rows and columns: ``(size + 2 * padding - kernel) // stride + 1``.

    Args:
        num_filters: Number of output channels.
        kernel_size: Rows and columns of a filter.
        stride: Rows and columns between two applications.
        padding: Zeros added on all four sides.
        activation: One of `Handler.activations` (missing in an architecture dict: 'tanh').
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, num_filters)
    Parameters: W (num_filters, kernel rows, kernel cols, C), bias (num_filters,)
    Internals: none
    """
    return ConstructionWrapper.create(
        Convolution2DLayerImpl,
        name=name,
        num_filters=num_filters,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        activation=activation,
    )


class Convolution2DLayerImpl(Layer):
    """Implements `Convolution2D`; turns the output deltas into pre-activation deltas."""

    expected_inputs = {"default": StructureTemplate("T", "B", "F", "F", "F")}
    expected_kwargs = {
        "num_filters": integer(minimum=1).required(),
        "kernel_size": pair(1).required(),
        "stride": pair(1),
        "padding": integer(minimum=0),
        "activation": activation_name(),
    }
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.activation = kwargs.get("activation", "tanh")
        self.kernel_size = tuple(kwargs["kernel_size"])
        self.stride = tuple(kwargs.get("stride", (1, 1)))
        self.padding = kwargs.get("padding", 0)
        filters = kwargs["num_filters"]
        channels = in_shapes["default"].shape[-1]
        size = window_output_size(self, self.kernel_size, self.stride, self.padding)
        parameters = {
            "W": BufferStructure(filters, *self.kernel_size, channels),
            "bias": BufferStructure(filters),
        }
        return {"default": BufferStructure("T", "B", *size, filters)}, parameters, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        W, bias = buffers.parameters
        self.handler.conv2d_forward_batch(x, W, bias, y, self.padding, self.stride)
        self.handler.inplace_act_func[self.activation](y)

    def backward_pass(self, buffers: BufferView) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        dy = flatten_time(buffers.output_deltas.default)
        needed = self.needs_delta("default")
        dx = flatten_time(buffers.input_deltas.default) if needed else None
        dW, dbias = buffers.gradients
        self.handler.inplace_act_func_deriv[self.activation](y, dy)
        self.handler.conv2d_backward_batch(
            x,
            buffers.parameters.W,
            self.padding,
            self.stride,
            dx,
            dy,
            dW,
            dbias,
            add_gradients=not overwrites_all(self, buffers.gradients, "W", "bias"),
            add_in_deltas=not self.overwrites("input_deltas.default"),
        )
