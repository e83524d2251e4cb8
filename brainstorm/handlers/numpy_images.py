"""Pooling of the NumpyHandler, for whole batches (N, H, W, C) at once.

It iterates over the offsets in a window (few) and processes all windows (many) together.
"""
# ruff: noqa: D102 (operations are documented in base_images)

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.argument_kinds import Margin
from brainstorm.handlers.base_images import Pair
from brainstorm.handlers.numpy_convolution import NumpyConvolutions, Windows, offsets
from brainstorm.utils import Array

#: Larger than any index of an element.
_FAR = 2.0**60

#: Indices into inputs and outputs.
Meetings: TypeAlias = list[tuple[Any, Any]]


class NumpyImages(NumpyConvolutions):
    """The operations on images; `NumpyHandler` adds all others."""

    def maxpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        argmax: Array,
    ) -> None:  # fmt: skip
        if math.prod(inputs.shape[1:]) > 2**24 and self.dtype == np.float32:
            raise HandlerValidationError(
                "maxpool2d_forward_batch: argument 'inputs': expected at most 2**24 elements per "
                f"image, the indices that float32 can hold, got {inputs.shape}. Use float64."
            )
        index, meetings = self._indices(inputs), _meetings(inputs, window, outputs, padding, stride)
        outputs.fill(-np.inf)
        argmax.fill(_FAR)
        for there, here in meetings:
            target = outputs[here]
            np.maximum(target, inputs[there], out=target)
        for there, here in meetings:
            first = argmax[here]
            differs = self._scratch("mask", first.shape, bool)
            np.not_equal(inputs[there], outputs[here], out=differs)
            found = self._scratch("float", first.shape)
            np.copyto(found, differs)  # faster than writing with `where`
            np.multiply(found, _FAR, out=found)
            np.add(found, index[there[1:]], out=found)
            np.minimum(first, found, out=first)
        if (argmax == _FAR).any():  # the first NaN counts as the largest, or only padding
            for there, here in meetings:
                first = argmax[here]
                nans = np.where(np.isnan(inputs[there]), index[there[1:]], _FAR)
                np.minimum(first, nans, out=first)
            nowhere = argmax == _FAR
            argmax[nowhere] = -1
            outputs[nowhere] = 0

    def maxpool2d_backward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        argmax: Array, in_deltas: Array, out_deltas: Array, add_in_deltas: bool = True,
    ) -> None:  # fmt: skip
        if not add_in_deltas:
            in_deltas.fill(0)
        index = self._indices(in_deltas)
        for there, here in _meetings(inputs, window, outputs, padding, stride):
            target, deltas = in_deltas[there], out_deltas[here]
            hit = self._scratch("mask", deltas.shape, bool)
            np.equal(argmax[here], index[there[1:]], out=hit)
            part = self._scratch("float", deltas.shape)
            np.copyto(part, hit)
            np.multiply(part, deltas, out=part)
            np.add(target, part, out=target)

    def avgpool2d_forward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair
    ) -> None:
        meetings = _meetings(inputs, window, outputs, padding, stride)
        outputs.fill(0)
        for there, here in meetings:
            target = outputs[here]
            np.add(target, inputs[there], out=target)
        np.divide(outputs, self._counts(outputs, meetings), out=outputs)

    def avgpool2d_backward_batch(
        self, inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair,
        in_deltas: Array, out_deltas: Array, add_in_deltas: bool = True,
    ) -> None:  # fmt: skip
        if not add_in_deltas:
            in_deltas.fill(0)
        meetings = _meetings(inputs, window, outputs, padding, stride)
        shares = self._scratch("float", out_deltas.shape)
        np.divide(out_deltas, self._counts(outputs, meetings), out=shares)
        for there, here in meetings:
            target = in_deltas[there]
            np.add(target, shares[here], out=target)

    def _indices(self, images: Array) -> np.ndarray:
        """Return (H, W, C): the index of each element in its image."""
        shape = images.shape[1:]
        return self._counting(math.prod(shape)).reshape(shape)

    def _counts(self, outputs: Array, meetings: Meetings) -> np.ndarray:
        """Return (OH, OW, 1): the number of inputs in each window, at least 1."""
        counts = self._scratch("counts", (*outputs.shape[1:3], 1))
        counts.fill(0)
        for _, here in meetings:
            part = counts[here[1:]]
            np.add(part, 1, out=part)
        return np.maximum(counts, 1, out=counts)


def _meetings(
    inputs: Array, window: Pair, outputs: Array, padding: Margin, stride: Pair
) -> Meetings:
    """Return the corresponding inputs and outputs for each offset in the window."""
    windows = Windows.of(window, outputs, padding, stride)
    return [(there, here) for _, there, here in offsets(inputs.shape[1:3], windows)]
