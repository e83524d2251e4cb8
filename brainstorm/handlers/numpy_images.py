"""Convolution and pooling of the NumpyHandler, for whole batches (N, H, W, C) at once.

A convolution is one matrix product: each window of the images is laid out as a row. Pooling
visits the offsets inside a window (few) and treats all windows (many) together.
"""
# ruff: noqa: D102 (operations are documented in base_images)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.numpy_memory import Scratch
from brainstorm.utils import Array

__all__ = ["NumpyImages"]

Pair = tuple[int, int]
Span = tuple[slice, slice]


class NumpyImages(Handler):
    """The operations on images; `NumpyHandler` adds all others."""

    _scratch: Scratch

    # -- convolution -------------------------------------------------------------------------

    def conv2d_forward_batch(
        self,
        inputs: Array,
        weights: Array,
        bias: Array,
        outputs: Array,
        padding: int,
        stride: Pair,
    ) -> None:
        out = _matrix("conv2d_forward_batch", "outputs", outputs, outputs.shape[3])
        rows = self._windows(inputs, weights.shape[1:3], outputs.shape[1:3], padding, stride)
        np.matmul(rows, weights.reshape(len(weights), -1).T, out=out)
        np.add(out, bias, out=out)

    def conv2d_backward_batch(
        self,
        inputs: Array,
        weights: Array,
        padding: int,
        stride: Pair,
        in_deltas: Array,
        out_deltas: Array,
        weight_deltas: Array,
        bias_deltas: Array,
        add_gradients: bool = False,
        add_in_deltas: bool = True,
    ) -> None:
        kernel, sizes = weights.shape[1:3], out_deltas.shape[1:3]
        flat = out_deltas.reshape(-1, out_deltas.shape[3])
        rows = self._windows(inputs, kernel, sizes, padding, stride)
        product = self.dot_add_mm if add_gradients else self.dot_mm
        gradients = _matrix("conv2d_backward_batch", "weight_deltas", weight_deltas, rows.shape[1])
        product(flat, rows, gradients, transa=True)
        (self.sum_add_t if add_gradients else self.sum_t)(flat, 0, bias_deltas)
        if in_deltas is None or in_deltas.size == 0:
            return
        if not add_in_deltas:
            in_deltas.fill(0)
        deltas = self._scratch("windows", (len(flat), weights[0].size))
        np.matmul(flat, weights.reshape(len(weights), -1), out=deltas)
        parts = deltas.reshape(*out_deltas.shape[:3], *weights.shape[1:])
        for row, column, there, here in _offsets(inputs, kernel, sizes, padding, stride):
            target = in_deltas[there]
            np.add(target, parts[(*here, row, column)], out=target)

    def _windows(
        self, inputs: Array, kernel: Pair, sizes: Pair, padding: int, stride: Pair
    ) -> np.ndarray:
        """Return the matrix with one window of the padded images per row (im2col)."""
        n, height, width, channels = inputs.shape
        if padding:
            shape = (n, height + 2 * padding, width + 2 * padding, channels)
            padded = self._scratch("padded", shape)
            padded.fill(0)
            padded[:, padding : padding + height, padding : padding + width] = inputs
            inputs = padded
        image, row, column, channel = inputs.strides
        # A row of a window is contiguous in the image: kernel width times channels.
        windows = as_strided(
            inputs,
            (n, *sizes, kernel[0], kernel[1] * channels),
            (image, row * stride[0], column * stride[1], row, channel),
        )
        copied = self._scratch("windows", windows.shape)
        np.copyto(copied, windows)
        return copied.reshape(-1, kernel[0] * kernel[1] * channels)

    # -- pooling -----------------------------------------------------------------------------

    def maxpool2d_forward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        argmax: Array,
    ) -> None:
        _, height, width, channels = inputs.shape
        sizes = outputs.shape[1:3]
        if height * width * channels > 2**24 and self.dtype == np.float32:
            raise HandlerValidationError(
                "maxpool2d_forward_batch: argument 'inputs': expected at most 2**24 elements per "
                f"image, the indices that float32 can hold, got {inputs.shape}. Use float64."
            )
        outputs.fill(-np.inf)
        for _, _, there, here in _offsets(inputs, window, sizes, padding, stride):
            target = outputs[here]
            np.maximum(target, inputs[there], out=target)
        # argmax = index of the window's upper left input + (row * W + column) * C
        code, row = self._first_maximum(inputs, window, outputs, padding, stride)
        np.floor_divide(code, window[1], out=row)
        part = self._scratch("float", outputs.shape)
        np.copyto(argmax, row)
        np.multiply(argmax, (width - window[1]) * channels, out=argmax)
        np.copyto(part, code)
        np.multiply(part, channels, out=part)
        np.add(argmax, part, out=argmax)
        np.add(argmax, self._corners(inputs, sizes, padding, stride), out=argmax)
        for empty in _empty_windows(inputs, window, sizes, padding, stride):
            outputs[empty] = 0
            argmax[empty] = -1

    def _first_maximum(
        self, inputs: Array, window: Pair, outputs: Array, padding: int, stride: Pair
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each maximum's first offset, as row * width of the window + column.

        Integers as short as possible; the second array is free for use.
        """
        count = window[0] * window[1]
        short = np.dtype("uint8" if count < 256 else "uint32")
        code = self._scratch(f"code {short}", outputs.shape, short)
        other = self._scratch(f"other {short}", outputs.shape, short)
        none = 2 ** (8 * short.itemsize) - 1
        code.fill(none)
        offsets = _offsets(inputs, window, outputs.shape[1:3], padding, stride)
        for i, j, there, here in offsets:
            target, candidate = code[here], other[here]
            differs = self._scratch("mask", target.shape, bool)
            np.copyto(candidate, np.not_equal(outputs[here], inputs[there], out=differs))
            np.multiply(candidate, none, out=candidate)
            np.bitwise_or(candidate, i * window[1] + j, out=candidate)
            np.minimum(target, candidate, out=target)
        np.minimum(code, count - 1, out=code)
        return code, other

    def maxpool2d_backward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        argmax: Array,
        in_deltas: Array,
        out_deltas: Array,
    ) -> None:
        _, _, width, channels = inputs.shape
        sizes = outputs.shape[1:3]
        inside = self._scratch("inside", outputs.shape)
        np.subtract(argmax, self._corners(inputs, sizes, padding, stride), out=inside)
        for i, j, there, here in _offsets(inputs, window, sizes, padding, stride):
            target, deltas = in_deltas[there], out_deltas[here]
            hit = self._scratch("mask", deltas.shape, bool)
            np.equal(inside[here], (i * width + j) * channels, out=hit)
            part = self._scratch("float", deltas.shape)
            np.copyto(part, hit)
            np.multiply(part, deltas, out=part)
            np.add(target, part, out=target)

    def avgpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: int, stride: Pair
    ) -> None:
        sizes = outputs.shape[1:3]
        outputs.fill(0)
        for _, _, there, here in _offsets(inputs, window, sizes, padding, stride):
            target = outputs[here]
            np.add(target, inputs[there], out=target)
        np.divide(outputs, self._counts(inputs, window, sizes, padding, stride), out=outputs)

    def avgpool2d_backward_batch(
        self,
        inputs: Array,
        window: Pair,
        outputs: Array,
        padding: int,
        stride: Pair,
        in_deltas: Array,
        out_deltas: Array,
    ) -> None:
        sizes = outputs.shape[1:3]
        shares = self._scratch("float", out_deltas.shape)
        np.divide(out_deltas, self._counts(inputs, window, sizes, padding, stride), out=shares)
        for _, _, there, here in _offsets(inputs, window, sizes, padding, stride):
            target = in_deltas[there]
            np.add(target, shares[here], out=target)

    def _corners(self, inputs: Array, sizes: Pair, padding: int, stride: Pair) -> np.ndarray:
        """Return (OH, OW, C): the index in the image of each window's upper left element."""
        _, _, width, channels = inputs.shape
        counting = self._scratch.counting(max(*sizes, channels))
        corners = self._scratch("corners", (*sizes, channels))
        rows = (counting[: sizes[0]] * stride[0] - padding) * (width * channels)
        columns = (counting[: sizes[1]] * stride[1] - padding) * channels
        np.add(rows[:, None, None], columns[:, None], out=corners)
        return np.add(corners, counting[:channels], out=corners)

    def _counts(
        self, inputs: Array, window: Pair, sizes: Pair, padding: int, stride: Pair
    ) -> np.ndarray:
        """Return (OH, OW, 1): the number of inputs in each window, at least 1."""
        counts = self._scratch("corners", (*sizes, 1))
        counts.fill(0)
        for _, _, _, here in _offsets(inputs, window, sizes, padding, stride):
            part = counts[here[1:]]
            np.add(part, 1, out=part)
        return np.maximum(counts, 1, out=counts)


def _matrix(operation: str, name: str, array: Array, columns: int) -> np.ndarray:
    """Return an array that is to be written as a matrix; it must not become a copy."""
    if not array.flags.c_contiguous:
        raise HandlerValidationError(
            f"{operation}: argument {name!r}: expected contiguous memory, got shape {array.shape} "
            f"with strides {array.strides}"
        )
    return array.reshape(-1, columns)


def _empty_windows(
    inputs: Array, window: Pair, sizes: Pair, padding: int, stride: Pair
) -> Iterator[tuple[slice, ...]]:
    """Yield indices into the outputs which cover all windows that lie within the padding."""
    for axis in (0, 1):
        first = max(0, -((window[axis] - padding - 1) // stride[axis]))
        last = (inputs.shape[1 + axis] - 1 + padding) // stride[axis] + 1
        before = (slice(None),) * (1 + axis)
        yield (*before, slice(0, first))
        yield (*before, slice(min(last, sizes[axis]), None))


def _offsets(
    inputs: Array, window: Pair, sizes: Pair, padding: int, stride: Pair
) -> Iterator[tuple[int, int, Any, Any]]:
    """Yield, for each offset in the window, where the inputs and the outputs are that meet there.

    Yields:
        row and column of the offset, index into the images, index into the outputs (whose
        windows have an input at that offset).
    """
    heights = [_meet(i, inputs.shape[1], sizes[0], padding, stride[0]) for i in range(window[0])]
    widths = [_meet(j, inputs.shape[2], sizes[1], padding, stride[1]) for j in range(window[1])]
    every = slice(None)
    for i, (there_row, here_row) in enumerate(heights):
        for j, (there_column, here_column) in enumerate(widths):
            yield i, j, (every, there_row, there_column), (every, here_row, here_column)


def _meet(offset: int, inputs: int, outputs: int, padding: int, stride: int) -> Span:
    """Return the inputs at `offset` of the windows on one axis, and these windows, as slices."""
    shift = offset - padding
    first = max(0, -(shift // stride))
    last = min(outputs, (inputs - 1 - shift) // stride + 1)
    count = max(0, last - first)
    start = first * stride + shift
    return slice(start, start + (count - 1) * stride + 1 if count else start, stride), slice(
        first, first + count
    )
