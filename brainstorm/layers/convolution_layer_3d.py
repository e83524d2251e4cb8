"""Convolution of volumes, e.g. scans or films, with learned filters."""

from __future__ import annotations

from collections.abc import Callable

from brainstorm.handlers.argument_kinds import Margin
from brainstorm.layers._convolution import ConvolutionLayer, convolution_options
from brainstorm.structure import ConstructionWrapper, StructureTemplate
from brainstorm.structure.construction import RECTIFIED


def Convolution3D(
    num_filters: int,
    kernel_size: int | tuple[int, int, int],
    stride: int | tuple[int, int, int] = (1, 1, 1),
    padding: Margin = 0,
    activation: str = RECTIFIED,
    name: str | None = None,
    dilation: int | tuple[int, int, int] = (1, 1, 1),
    groups: int = 1,
) -> ConstructionWrapper:
    """Add a three-dimensional convolution: act(cross-correlation with W (not flipped) + bias).

    Output sizes: ``(size + paddings - dilation*(kernel - 1) - 1) // stride + 1``.

    Args:
        num_filters: Number of output channels.
        kernel_size: Depth, rows and columns of a filter; one number for all, as for stride and
            dilation.
        stride: Depth, rows and columns between successive applications.
        padding: Zeros added on all sides; or for each axis one number, or two as in
            ``((front, back), (top, bottom), (left, right))``.
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        dilation: Depth, rows and columns between neighbouring cells of a filter.
        groups: Number of groups of consecutive channels and filters; a filter sees only the
            channels of its group. It divides both C and num_filters.

    Inputs: default ('T', 'B', D, H, W, C)
    Outputs: default ('T', 'B', depth, rows, cols, num_filters)
    Parameters: W (num_filters, kernel depth, rows, cols, C // groups), bias (num_filters,)
    Internals: Ha, the input of the activation, if the derivative needs it, as for gelu
    """
    return ConstructionWrapper.create(
        Convolution3DLayerImpl,
        name=name,
        num_filters=num_filters,
        kernel_size=kernel_size,
        stride=stride,
        padding=padding,
        activation=activation,
        dilation=dilation,
        groups=groups,
    )


class Convolution3DLayerImpl(ConvolutionLayer):
    """Implements `Convolution3D`."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "D", "H", "W", "C")}
    expected_kwargs = convolution_options(3)
    axes = "DHW"

    def _operations(self) -> tuple[Callable[..., None], Callable[..., None]]:
        return self.handler.conv3d_forward_batch, self.handler.conv3d_backward_batch
