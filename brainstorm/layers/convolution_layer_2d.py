"""Convolution of images with learned filters."""

from __future__ import annotations

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._convolution import ConvolutionLayer, convolution_options
from brainstorm.structure import ConstructionWrapper, StructureTemplate
from brainstorm.structure.construction import RECTIFIED


def Convolution2D(
    num_filters: int,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] = (1, 1),
    padding: Margin = 0,
    activation: str = RECTIFIED,
    name: str | None = None,
    dilation: int | tuple[int, int] = (1, 1),
    groups: int = 1,
) -> ConstructionWrapper:
    """Add a two-dimensional convolution: act(cross-correlation with W (not flipped) + bias).

    Output rows and columns: ``(size + paddings - dilation*(kernel - 1) - 1) // stride + 1``.

    Args:
        num_filters: Number of output channels.
        kernel_size: Rows and columns of a filter; one number for both, as for stride and dilation.
        stride: Rows and columns between successive applications.
        padding: Zeros added on all sides; or for each axis one number, or two as in
            ``((top, bottom), (left, right))``.
        activation: One of `Handler.activations` ('tanh' if missing in an architecture dict).
        name: Layer name; made unique within the network.
        dilation: Rows and columns between neighbouring cells of a filter.
        groups: Number of groups of consecutive channels and filters; a filter sees only the
            channels of its group. It divides both C and num_filters.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, num_filters)
    Parameters: W (num_filters, kernel rows, kernel cols, C // groups), bias (num_filters,)
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu
    """
    return ConstructionWrapper.create(
        Convolution2DLayerImpl,
        name=name,
        num_filters=num_filters,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        activation=activation,
        dilation=dilation,
        groups=groups,
    )


class Convolution2DLayerImpl(ConvolutionLayer):
    """Implements `Convolution2D`."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = convolution_options(2)
    default_activation = "tanh"
