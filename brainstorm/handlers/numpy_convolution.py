"""Convolution of the NumpyHandler, over any number of spatial axes, for whole batches at once.

A convolution is one matrix product (one per group of channels): each window of the images is
copied to a row.
"""
# ruff: noqa: D102 (operations are documented in base_images)

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.argument_kinds import Margin, sides
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.base_images import Pair, Triple
from brainstorm.handlers.numpy_memory import Scratch
from brainstorm.utils import Array


class Windows(NamedTuple):
    """How windows slide over images; all but `groups` have one entry per spatial axis.

    Attributes:
        kernel: The size of a window.
        counts: Number of windows.
        padding: Zeros before and after.
        stride: Step between windows.
        dilation: Step between cells of a window.
        groups: Groups of channels.
    """

    kernel: tuple[int, ...]
    counts: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(
        cls, kernel: Sequence[int], outputs: Array, padding: Margin, stride: Sequence[int],
        dilation: Sequence[int] | None = None, groups: int = 1,
    ) -> Windows:  # fmt: skip
        """Return the windows of a convolution or pooling, with the arguments of the operation."""
        margins, dilation = sides(padding, len(stride)), dilation or (1,) * len(stride)
        counts = outputs.shape[1:-1]
        return cls(tuple(kernel), counts, margins, tuple(stride), tuple(dilation), groups)


class NumpyConvolutions(Handler):
    """The convolutions; `NumpyHandler` adds all other operations."""

    _scratch: Scratch

    def conv2d_forward_batch(
        self, inputs: Array, weights: Array, bias: Array, outputs: Array, padding: Margin,
        stride: Pair, dilation: Pair = (1, 1), groups: int = 1, add_outputs: bool = False,
        activation: str = "linear",
    ) -> None:  # fmt: skip
        windows = Windows.of(weights.shape[1:-1], outputs, padding, stride, dilation, groups)
        self._convolve(inputs, weights, bias, outputs, windows, add_outputs, activation)

    def conv2d_backward_batch(
        self, inputs: Array, weights: Array, padding: Margin, stride: Pair, in_deltas: Array,
        out_deltas: Array, weight_deltas: Array, bias_deltas: Array, add_gradients: bool = False,
        add_in_deltas: bool = True, dilation: Pair = (1, 1), groups: int = 1,
    ) -> None:  # fmt: skip
        windows = Windows.of(weights.shape[1:-1], out_deltas, padding, stride, dilation, groups)
        self._add_gradients(inputs, out_deltas, weight_deltas, bias_deltas, windows, add_gradients)
        self._scatter(weights, in_deltas, out_deltas, windows, add_in_deltas)

    def conv3d_forward_batch(
        self, inputs: Array, weights: Array, bias: Array, outputs: Array, padding: Margin,
        stride: Triple, dilation: Triple = (1, 1, 1), groups: int = 1, activation: str = "linear",
    ) -> None:  # fmt: skip
        windows = Windows.of(weights.shape[1:-1], outputs, padding, stride, dilation, groups)
        self._convolve(inputs, weights, bias, outputs, windows, False, activation)

    def conv3d_backward_batch(
        self, inputs: Array, weights: Array, padding: Margin, stride: Triple, in_deltas: Array,
        out_deltas: Array, weight_deltas: Array, bias_deltas: Array, add_gradients: bool = False,
        add_in_deltas: bool = True, dilation: Triple = (1, 1, 1), groups: int = 1,
    ) -> None:  # fmt: skip
        windows = Windows.of(weights.shape[1:-1], out_deltas, padding, stride, dilation, groups)
        self._add_gradients(inputs, out_deltas, weight_deltas, bias_deltas, windows, add_gradients)
        self._scatter(weights, in_deltas, out_deltas, windows, add_in_deltas)

    # -- for any number of axes --------------------------------------------------------------

    def _convolve(
        self, inputs: Array, weights: Array, bias: Array, outputs: Array, windows: Windows,
        add: bool, activation: str,
    ) -> None:  # fmt: skip
        out = _writable(f"conv{len(windows.stride)}d_forward_batch", "outputs", outputs)
        rows = self._rows(inputs, windows)
        kernels = weights.reshape(windows.groups, -1, rows.shape[2])
        self._product(rows, kernels.transpose(0, 2, 1), _by_group(out, windows.groups), add)
        if _is_there(bias):
            np.add(out, bias, out=out)
        self.inplace_act_func[activation](out)

    def _add_gradients(
        self, inputs: Array, out_deltas: Array, weight_deltas: Array, bias_deltas: Array,
        windows: Windows, add: bool,
    ) -> None:  # fmt: skip
        if _is_there(weight_deltas):
            name = f"conv{len(windows.stride)}d_backward_batch"
            target = _writable(name, "weight_deltas", weight_deltas)
            rows = self._rows(inputs, windows)
            deltas = _by_group(out_deltas, windows.groups).transpose(0, 2, 1)
            self._product(deltas, rows, target.reshape(windows.groups, -1, rows.shape[2]), add)
        if _is_there(bias_deltas):
            flat = out_deltas.reshape(-1, out_deltas.shape[-1])
            (self.sum_add_t if add else self.sum_t)(flat, 0, bias_deltas)

    def _scatter(
        self, weights: Array, in_deltas: Array, out_deltas: Array, windows: Windows, add: bool
    ) -> None:
        """Write the input deltas: the contribution of each window, offset by offset."""
        if not _is_there(in_deltas):
            return
        n, *image, channels = in_deltas.shape
        groups, size = windows.groups, channels // windows.groups
        deltas = _by_group(out_deltas, groups)
        kernels = weights.reshape(groups, deltas.shape[2], *windows.kernel, size)
        part = self._scratch("windows", (n, *windows.counts, channels))
        if not add:
            in_deltas.fill(0)
        for offset, there, here in offsets(image, windows):
            np.matmul(deltas, kernels[(..., *offset, slice(None))], out=_by_group(part, groups))
            target = in_deltas[there]
            np.add(target, part[here], out=target)

    def _rows(self, inputs: Array, windows: Windows) -> np.ndarray:
        """Return (groups, rows, size): one window of the padded images per row (im2col)."""
        n, *image, channels = inputs.shape
        if any(map(any, windows.padding)):
            margins = list(zip(image, windows.padding, strict=True))
            padded = self._scratch("padded", (n, *(i + sum(p) for i, p in margins), channels))
            padded.fill(0)
            padded[(slice(None), *(slice(p[0], p[0] + i) for i, p in margins))] = inputs
            inputs = padded
        axes, size = len(image), channels // windows.groups
        reach = [(k - 1) * d + 1 for k, d in zip(windows.kernel, windows.dilation, strict=True)]
        # (n, places, channels, cells): it holds nothing beyond the images, whatever the outputs.
        view = sliding_window_view(inputs, reach, tuple(range(1, 1 + axes)))
        steps = (1, *windows.stride, 1, *windows.dilation)
        view = view[tuple(slice(None, None, step) for step in steps)]
        view = view.reshape(*view.shape[: 1 + axes], windows.groups, size, *windows.kernel)
        view = np.moveaxis(view, (1 + axes, 2 + axes), (0, -1))
        length = math.prod(windows.kernel) * size
        if size > 1:
            copied = self._scratch("windows", view.shape)
            np.copyto(copied, view)
            return copied.reshape(windows.groups, -1, length)
        # With one channel, runs along a row of windows are longer than those within a window.
        view = view.transpose(0, *range(2 + axes, 3 + 2 * axes), *range(1, 2 + axes))
        copied = self._scratch("windows", view.shape)
        np.copyto(copied, view)
        return copied.reshape(windows.groups, length, -1).transpose(0, 2, 1)

    def _product(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, add: bool) -> None:
        if add:
            product = self._scratch("float", out.shape)
            np.add(out, np.matmul(a, b, out=product), out=out)
        else:
            np.matmul(a, b, out=out)


def _by_group(array: Array, groups: int) -> np.ndarray:
    """Return (groups, rows, channels of a group), a view."""
    channels = array.shape[-1]
    return array.reshape(-1, groups, channels // groups).transpose(1, 0, 2)


def _is_there(array: Array) -> bool:
    return array is not None and array.size > 0


def _writable(operation: str, name: str, array: Array) -> Array:
    """Return an array to be written through reshapes, which must not become copies."""
    if not array.flags.c_contiguous:
        raise HandlerValidationError(
            f"{operation}: argument {name!r}: expected contiguous memory, got shape {array.shape} "
            f"with strides {array.strides}"
        )
    return array


def offsets(image: Sequence[int], windows: Windows) -> Iterator[tuple[tuple[int, ...], Any, Any]]:
    """Yield, for each offset in the window, the corresponding inputs and windows.

    Yields:
        The offset, index into the images, index into the windows (those with an input there).
    """
    axes = []
    for size, kernel, *rest, dilation, count in zip(
        image, windows.kernel, windows.padding, windows.stride, windows.dilation, windows.counts,
        strict=True,
    ):  # fmt: skip
        axes.append([(i, _meet(i * dilation, size, count, *rest)) for i in range(kernel)])
    every = slice(None)
    for found in itertools.product(*axes):
        offset, spans = zip(*found, strict=True)
        there, here = zip(*spans, strict=True)
        yield offset, (every, *there), (every, *here)


def _meet(
    offset: int, inputs: int, outputs: int, padding: tuple[int, int], stride: int
) -> tuple[slice, slice]:
    """Return the inputs at `offset` of the windows on one axis, and these windows, as slices."""
    shift = offset - padding[0]
    first = max(0, -(shift // stride))
    last = min(outputs, (inputs - 1 - shift) // stride + 1)
    count = max(0, last - first)
    start = first * stride + shift
    return slice(start, start + (count - 1) * stride + 1 if count else start, stride), slice(
        first, first + count
    )
