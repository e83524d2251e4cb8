"""Pooling of the NumpyHandler, for whole batches (N, H, W, C) at once.

It visits the offsets inside a window (few) and treats all windows (many) together.
"""
# ruff: noqa: D102 (operations are documented in base_images)

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.base_images import Pair
from brainstorm.handlers.numpy_convolution import NumpyConvolutions, meet
from brainstorm.utils import Array

__all__ = ["NumpyImages"]


class NumpyImages(NumpyConvolutions):
    """The operations on images; `NumpyHandler` adds all others."""

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
        add_in_deltas: bool = True,
    ) -> None:
        if not add_in_deltas:
            in_deltas.fill(0)
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
        add_in_deltas: bool = True,
    ) -> None:
        if not add_in_deltas:
            in_deltas.fill(0)
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
    heights = [meet(i, inputs.shape[1], sizes[0], padding, stride[0]) for i in range(window[0])]
    widths = [meet(j, inputs.shape[2], sizes[1], padding, stride[1]) for j in range(window[1])]
    every = slice(None)
    for i, (there_row, here_row) in enumerate(heights):
        for j, (there_column, here_column) in enumerate(widths):
            yield i, j, (every, there_row, there_column), (every, here_row, here_column)
