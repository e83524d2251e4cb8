"""Transposed convolution: learned filters that enlarge images."""

from __future__ import annotations

from typing import Any

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._activating import ActivatedLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import (
    activation,
    integer,
    margin,
    on_each_axis,
    padded_sides,
    per_axis,
)
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.structure.construction import RECTIFIED
from brainstorm.utils import flatten_all_but_last, flatten_time


def ConvolutionTranspose2D(
    num_filters: int,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] = (1, 1),
    padding: Margin = 0,
    output_padding: int = 0,
    activation: str = RECTIFIED,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a transposed convolution ("deconvolution"; Zeiler et al. 2010) with an activation.

    It is the transpose of the linear map that `Convolution2D` computes with the same options and
    the same W, plus the bias: ``y[p*s + i - top, q*s + j - left, f] += x[p, q, c] * W[c, i, j, f]``
    for all p, q, i, j, c, with the padding at the top and on the left.
    Output rows and columns: ``(size - 1) * stride - paddings + kernel + output_padding``.

    Args:
        num_filters: Number of output channels.
        kernel_size: Rows and columns of a filter.
        stride: Rows and columns of the output between two cells of the input.
        padding: Rows and columns cut off on all sides; or for each axis one number, or two as in
            ``((top, bottom), (left, right))``.
        output_padding: Rows and columns added at the bottom and on the right, less than the stride:
            several output sizes have the input's size after a convolution with this stride; this is
            added to the smallest.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, num_filters)
    Parameters: W (C, kernel rows, kernel cols, num_filters), the shape of that of a `Convolution2D`
        in the other direction; bias (num_filters,)
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu
    """
    return ConstructionWrapper.create(
        ConvolutionTranspose2DLayerImpl,
        name=name,
        num_filters=num_filters,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        activation=activation,
    )


class ConvolutionTranspose2DLayerImpl(ActivatedLayer):
    """Implements `ConvolutionTranspose2D` as a convolution with forward and backward swapped."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {
        "num_filters": integer(minimum=1).required(),
        "kernel_size": per_axis(2, 1).required(),
        "stride": per_axis(2, 1),
        "padding": margin(2),
        "output_padding": integer(minimum=0),
        "activation": activation(),
    }

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        rows, columns = on_each_axis(kwargs.get("stride", 1), 2)
        self.stride, kernel_size = (rows, columns), on_each_axis(kwargs["kernel_size"], 2)
        self.padding = padded_sides(kwargs.get("padding", 0), 2)
        filters = kwargs["num_filters"]
        extra = self.output_padding = kwargs.get("output_padding", 0)
        if extra >= min(self.stride):
            raise self.fail(
                f"expected less than stride={self.stride}, got {extra}.", option="output_padding"
            )
        *image, channels = in_shapes["default"].feature_shape
        size = [
            (cells - 1) * step - sum(cut) + kernel + extra
            for cells, step, cut, kernel in zip(
                image, self.stride, self.padding, kernel_size, strict=True
            )
        ]
        if min(size) < 1:
            raise self.fail(
                f"the output would have {size[0]} rows and {size[1]} columns. Use a smaller "
                f"padding or a larger kernel_size."
            )
        parameters = {
            "W": BufferStructure(channels, *kernel_size, filters),
            "bias": BufferStructure(filters),
        }
        output = BufferStructure("T", "B", *size, filters)
        internals = self.set_activation(kwargs.get("activation", "rel"), output)
        return {"default": output}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, Ha = flatten_time(buffers.inputs.default), flatten_time(self.before_activation(buffers))
        W, bias = buffers.parameters
        self.handler.conv2d_backward_batch(
            None, W, self.padding, self.stride, Ha, x, None, None, add_in_deltas=False
        )
        cells = flatten_all_but_last(Ha)
        self.handler.add_mv(cells, bias.reshape((1, bias.shape[0])), cells)
        self.activate(buffers)

    def backward_pass(self, buffers: BufferView) -> None:
        x, dy = flatten_time(buffers.inputs.default), flatten_time(buffers.output_deltas.default)
        W, (dW, dbias) = buffers.parameters.W, buffers.gradients
        self.differentiate(buffers)
        self.sum_op("gradients.bias")(flatten_all_but_last(dy), 0, dbias)
        add = not self.overwrites("gradients.W")
        self.handler.conv2d_backward_batch(
            dy, W, self.padding, self.stride, None, x, dW, None, add_gradients=add
        )
        if self.needs_delta("default"):
            dx = flatten_time(buffers.input_deltas.default)
            add = not self.overwrites("input_deltas.default")
            self.handler.conv2d_forward_batch(
                dy, W, None, dx, self.padding, self.stride, add_outputs=add
            )
