"""Convolution of sequences of vectors that are the features of one time step, e.g. audio frames."""

from __future__ import annotations

from brainstorm.layers._convolution import ConvolutionLayer, convolution_options
from brainstorm.structure import ConstructionWrapper, StructureTemplate
from brainstorm.structure.construction import RECTIFIED


def Convolution1D(
    num_filters: int,
    kernel_size: int,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    activation: str = RECTIFIED,
    name: str | None = None,
    dilation: int = 1,
    groups: int = 1,
) -> ConstructionWrapper:
    """Add a one-dimensional convolution: act(cross-correlation with W (not flipped) + bias).

    It moves along L, the first of two feature dimensions, not along time.
    Output length: ``(L + paddings - dilation*(kernel_size - 1) - 1) // stride + 1``.

    Args:
        num_filters: Number of output channels.
        kernel_size: Length of a filter.
        stride: Positions between successive applications.
        padding: Zeros added on both ends, or two numbers: before and after.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        dilation: Positions between neighbouring cells of a filter.
        groups: Number of groups of consecutive channels and filters; a filter sees only the
            channels of its group. It divides both C and num_filters.

    Inputs: default ('T', 'B', L, C)         Outputs: default ('T', 'B', length, num_filters)
    Parameters: W (num_filters, kernel_size, C // groups), bias (num_filters,)
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu
    """
    return ConstructionWrapper.create(
        Convolution1DLayerImpl,
        name=name,
        num_filters=num_filters,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        activation=activation,
        dilation=dilation,
        groups=groups,
    )


class Convolution1DLayerImpl(ConvolutionLayer):
    """Implements `Convolution1D`: a convolution of images with a single row."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "L", "C")}
    expected_kwargs = convolution_options(1)
    axes = "L"
