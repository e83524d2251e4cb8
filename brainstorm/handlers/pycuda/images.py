"""Convolution and pooling: from arguments to launches.

A convolution is a product of the filters with a matrix that has a row for each output (im2col).
It is created for as many images at a time as fit into `COLUMNS`. Images with two axes are treated
as volumes of depth 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.argument_kinds import Margin
from brainstorm.handlers.base_activations import activation_formula
from brainstorm.handlers.numpy_convolution import Windows
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.cudnn import DATA, FILTERS, FORWARD
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn

#: Approximate number of elements of the matrix for several images.
COLUMNS = 1 << 25

_summed = formula(lambda x: fn.sum(x, 0, False))


@functools.cache
def biased(activation: str) -> Formula:
    """Return the formula of an activation function of the sum of two arrays."""
    function = activation_formula(activation)
    return formula(lambda x, bias: function(x + bias))


def _axes(images: DeviceArray, windows: Windows) -> list[int]:
    """Return the numbers of the structure ``Axes``, for depth, rows and columns."""
    rows = [*zip(images.shape[1:-1], *windows[:-1], strict=True)]
    whole = [(1, 1, 1, (0, 0), 1, 1)] * (3 - len(rows)) + rows
    return [n for row in whole for n in (*row[:3], row[3][0], *row[4:])]


class _Convolution:
    """The sizes of a convolution, and the division of images into pieces."""

    def __init__(
        self, images: DeviceArray, filters: DeviceArray, outputs: DeviceArray, **windows_of: Any
    ) -> None:
        self.windows = windows = Windows.of(filters.shape[1:-1], outputs, **windows_of)
        self.axes = _axes(images, windows)
        self.groups, self.channels = windows.groups, images.shape[-1]
        self.count, self.filters = outputs.shape[0], filters.shape[0]
        self.rows, self.width = math.prod(windows.counts), math.prod(filters.shape[1:])
        cells = zip(windows.kernel, windows.padding, windows.stride, strict=True)
        self.is_plain = self.groups == 1 and all(cell == (1, (0, 0), 1) for cell in cells)

    def is_done_by_cudnn(self, build: Building, which: Any, *arrays: Any, add: bool) -> bool:
        """Do one of the passes by cuDNN if possible; return whether it was."""
        cudnn = build.handler._cudnn
        is_even = all(before == after for before, after in self.windows.padding)
        if cudnn is None or self.is_plain or not is_even or len(self.windows.stride) != 2:
            return False
        return bool(cudnn.convolve(build, which, arrays, self.windows, add))

    def pieces(
        self, build: Building, images: DeviceArray, outputs: DeviceArray
    ) -> Iterator[tuple[DeviceArray, DeviceArray, DeviceArray]]:
        """Yield some images, their matrix (groups, rows, width), and the outputs for them.

        Plain images are the matrix, others have memory for it. The outputs are (groups, rows,
        filters of a group).
        """
        size = self.rows * self.width * self.groups
        most = max(1, COLUMNS // max(1, size))
        count = 0 if self.is_plain else min(most, self.count)
        memory = build.temporary((max(1, count * size),))
        for start in range(0, self.count, most):
            part, out = (array[start : start + most] for array in (images, outputs))
            shape = (self.groups, len(part) * self.rows, self.width)
            place = part if self.is_plain else memory[: math.prod(shape)]
            stacks = out.reshape((shape[1], self.groups, self.filters // self.groups))
            yield part, place.reshape(shape), stacks.transpose((1, 0, 2))

    def kernels(self, filters: DeviceArray) -> DeviceArray:
        """Return filters as matrices (groups, filters of a group, width)."""
        return filters.reshape((self.groups, self.filters // self.groups, self.width))

    def fill(self, build: Building, matrix: DeviceArray, images: DeviceArray) -> None:
        """Add the creation of the matrix of some images."""
        if not self.is_plain:
            rows, sizes = matrix.shape[1:2], (self.channels, self.groups)
            build.elements("image_to_columns", [images], matrix, rows, sizes, self.axes)


def conv2d_forward_batch(
    build: Building, inputs: Any, weights: Any, bias: Any, outputs: Any, activation: str,
    add_outputs: bool = False, **windows_of: Any,
) -> None:  # fmt: skip
    """Build the forward pass, for any number of axes."""
    images, filters = build.dense(inputs), build.dense(weights)
    target = build.target(outputs, keeps=add_outputs)
    conv = _Convolution(images, filters, target, **windows_of)
    if not conv.is_done_by_cudnn(build, FORWARD, images, filters, target, add=add_outputs):
        for part, matrix, out in conv.pieces(build, images, target):
            conv.fill(build, matrix, part)
            build.product(matrix, conv.kernels(filters), out, transb=True, add=add_outputs)
    rows = target.reshape((-1, conv.filters))
    if bias is not None and bias.size:
        build.program(biased(activation), [rows, bias.reshape((1, conv.filters))], [rows])
    elif activation != "linear":
        build.program(activation_formula(activation), [rows], [rows])


def conv2d_backward_batch(
    build: Building, inputs: Any, weights: Any, in_deltas: Any, out_deltas: Any,
    weight_deltas: Any, bias_deltas: Any, add_gradients: bool, add_in_deltas: bool,
    **windows_of: Any,
) -> None:  # fmt: skip
    """Build the backward pass, for any number of axes."""
    deltas, filters = build.dense(out_deltas), build.dense(weights)
    wanted = [a is not None and a.size > 0 for a in (in_deltas, weight_deltas, bias_deltas)]
    if wanted[0] or wanted[1]:
        shaped = in_deltas if wanted[0] else inputs
        conv = _Convolution(shaped, filters, deltas, **windows_of)
    if wanted[1]:
        target = build.target(weight_deltas, keeps=add_gradients)
        _gradients(build, conv, build.dense(inputs), deltas, target, add_gradients)
    if wanted[0]:
        target = build.target(in_deltas, keeps=add_in_deltas)
        _deltas_of_images(build, conv, deltas, filters, target, add_in_deltas)
    if wanted[2]:
        matrix = deltas.reshape((-1, deltas.shape[-1]))
        build.program(_summed, [matrix], [bias_deltas], add_gradients)


def _gradients(
    build: Building, conv: _Convolution, images: Any, deltas: Any, target: Any, add: bool
) -> None:
    if conv.is_done_by_cudnn(build, FILTERS, images, target, deltas, add=add):
        return
    if not (conv.count or add):
        build.clear(target)
    for part, matrix, rows in conv.pieces(build, images, deltas):
        conv.fill(build, matrix, part)
        build.product(rows, matrix, conv.kernels(target), transa=True, add=add)
        add = True


def _deltas_of_images(
    build: Building, conv: _Convolution, deltas: Any, filters: Any, target: Any, add: bool
) -> None:
    if conv.is_done_by_cudnn(build, DATA, target, filters, deltas, add=add):
        return
    for part, matrix, rows in conv.pieces(build, target, deltas):
        build.product(rows, conv.kernels(filters), matrix, add=add and conv.is_plain)
        if not conv.is_plain:
            numbers, sizes = (rows.shape[1],), (conv.channels, conv.groups)
            build.elements("columns_to_image", [matrix], part, numbers, sizes, conv.axes, add)


conv3d_forward_batch, conv3d_backward_batch = conv2d_forward_batch, conv2d_backward_batch


# -- pooling --------------------------------------------------------------------------------------


def maxpool2d_forward_batch(
    build: Building, inputs: Any, window: Any, outputs: Any, padding: Margin, stride: Any,
    argmax: Any,
) -> None:  # fmt: skip
    """Build the maxima of windows, and where they lie."""
    if np.prod(inputs.shape[1:]) > 2**24:
        raise HandlerValidationError(
            "maxpool2d_forward_batch: argument 'inputs': expected at most 2**24 elements per "
            f"image, the indices that float32 can hold, got {inputs.shape}. Use smaller images."
        )
    target, where = build.target(outputs), build.target(argmax)
    axes = _axes(inputs, Windows.of(window, outputs, padding, stride))
    build.kernel(
        "maximum_pool", target.size, build.dense(inputs), target, where, target.size,
        inputs.shape[-1], *axes,
    )  # fmt: skip


def avgpool2d_forward_batch(
    build: Building, inputs: Any, window: Any, outputs: Any, padding: Margin, stride: Any
) -> None:
    """Build the means of windows."""
    source, target = build.dense(inputs), build.target(outputs)
    axes = _axes(inputs, Windows.of(window, outputs, padding, stride))
    build.elements("average_pool", [source], target, (), inputs.shape[-1:], axes)


def maxpool2d_backward_batch(
    build: Building, inputs: Any, window: Any, outputs: Any, padding: Margin, stride: Any,
    in_deltas: Any, out_deltas: Any, argmax: Any = None, add_in_deltas: bool = True,
) -> None:  # fmt: skip
    """Build the addition of deltas to where the maxima lie; without argmax, to whole windows."""
    target = build.target(in_deltas, keeps=add_in_deltas)
    axes = _axes(in_deltas, Windows.of(window, out_deltas, padding, stride))
    where = None if argmax is None else build.dense(argmax)
    sources = [build.dense(out_deltas), where]
    build.elements("pool_deltas", sources, target, (), in_deltas.shape[-1:], axes, add_in_deltas)


avgpool2d_backward_batch = maxpool2d_backward_batch
