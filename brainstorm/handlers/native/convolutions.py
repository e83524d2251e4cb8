"""Convolutions over any number of spatial axes, on images (N, ..., C) in place.

The library chooses the layout of the weights, so these are copied into it, and their gradients out
of it. Factors in bfloat16 are copies too: if the library rounds within the convolution, that takes
several times as long.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.lane import MANY_SUMMANDS, Lane
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.primitives import (
    ANY,
    BIAS,
    DIFF_BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DIFF_WEIGHTS_LAYOUT,
    DST,
    SRC,
    WEIGHTS,
    WEIGHTS_LAYOUT,
    Placed,
    Primitive,
    Primitives,
    check_arrays,
)
from brainstorm.handlers.native.products import ACTIVATIONS
from brainstorm.handlers.numpy_convolution import Windows
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.utils import Array

_TRAINING, _DIRECT = 64, 1

#: The maximum number of parts of a batch whose gradients are computed one after the other.
MOST_PARTS = 64

#: The minimum number of multiplications and additions per number in images and results for which
#: factors in bfloat16 are faster (measured), and names of the implementations that are faster.
HALF_WORK, FAST_IN_HALF = 100, "amx"

ShapeAndStrides = tuple[tuple[int, ...], tuple[int, ...]]


class _Convolution:
    """The primitives of one convolution, independent of the arrays.

    Args:
        is_half: Whether factors, i.e. images, weights and the deltas of results, are rounded to
            bfloat16 first.
    """

    def __init__(self, primitives: Primitives, images: Array, weights: Array, results: Array,
                 windows: Windows, is_half: bool) -> None:  # fmt: skip
        self.primitives, self.windows, self.is_half = primitives, windows, is_half
        flop, numbers = 2 * results.size * weights[0].size, images.size + results.size
        if is_half and flop < HALF_WORK * numbers:
            raise UnsupportedError("to round the factors would take longer than it gains")
        if is_half and any(map(operator.lt, images.shape[1:-1], _reach(windows))):
            raise UnsupportedError("oneDNN 3.2 reads beyond images that are this small")
        primitives.choose_threads(flop, numbers)
        layout = primitives.layout
        self.images, self.results = layout(*_images(images)), layout(*_images(results))
        self.image_factor = layout(*_images(images), is_half)
        self.delta_factor = layout(*_images(results), is_half)
        shape, strides = _weights(weights, windows.groups)
        self.weights, self.any_gradients = layout(shape, strides), layout(shape, ANY)
        self.any_weights = layout(shape, ANY, is_half)
        self.bias = layout((results.shape[-1],), (1,))

    def forward(
        self, with_bias: bool = False, add: bool = False, activation: str = "linear"
    ) -> Primitive:
        """Return the convolution."""
        return self._primitive(
            "forward", _TRAINING, _DIRECT, self.image_factor, self.any_weights,
            self.bias if with_bias else None, self.results, *_terms(self.windows),
            add=add, activation=ACTIVATIONS[activation],
        )  # fmt: skip

    def backward_data(self) -> Primitive:
        """Return the primitive for the derivatives of the images."""
        return self._primitive(
            "backward_data", _DIRECT, self.images, self.any_weights, self.delta_factor,
            *_terms(self.windows), self.forward().description,
        )  # fmt: skip

    def backward_weights(self, with_bias: bool) -> Primitive:
        """Return the primitive for the derivatives of the weights and of the bias."""
        return self._primitive(
            "backward_weights", _DIRECT, self.image_factor, self.any_gradients,
            self.bias if with_bias else None, self.delta_factor, *_terms(self.windows),
            self.forward().description,
        )  # fmt: skip

    def _primitive(self, kind: str, *terms: Any, **attributes: Any) -> Primitive:
        engine = self.primitives.library.engine
        primitive = self.primitives.primitive(f"convolution_{kind}", engine, *terms, **attributes)
        if self.is_half and FAST_IN_HALF not in primitive.implementation:
            raise UnsupportedError(f"oneDNN's {primitive.implementation} gains nothing")
        return primitive

    def factor(self, calls: list[Call], array: Array, what: str) -> Placed:
        """Return the place of images or deltas; if rounded, this is done by a further call."""
        is_images = what == "images"
        plain = self.images if is_images else self.results, address_of(array)
        if not self.is_half:
            return plain
        rounded = self.image_factor if is_images else self.delta_factor
        return self.primitives.copied(calls, f"rounded {what}", plain, rounded)

    def rearranged(self, calls: list[Call], weights: Array, primitive: Primitive) -> Placed:
        """Add the call that copies the weights as a primitive wants them; return the copy."""
        given, wanted = (self.weights, address_of(weights)), primitive.layout(WEIGHTS_LAYOUT)
        return self.primitives.copied(calls, "convolution", given, wanted)


def build_forward(
    primitives: Primitives, inputs: Array, weights: Array, bias: Array | None, outputs: Array,
    activation: str, add_outputs: bool = False, **windows_of: Any,
) -> list[Call]:  # fmt: skip
    """Return the calls of `ImageOperations.conv2d_forward_batch`."""
    bias = _present(bias)
    _check([outputs], [inputs, weights, bias], outputs, bias)
    windows = Windows.of(weights.shape[1:-1], outputs, **windows_of)
    options = windows, add_outputs, activation
    return _fastest(primitives, _forward, options, inputs, weights, bias, outputs)


def build_backward(
    primitives: Lane, inputs: Array | None, weights: Array, in_deltas: Array | None,
    out_deltas: Array, weight_deltas: Array | None, bias_deltas: Array | None,
    add_gradients: bool, add_in_deltas: bool, **windows_of: Any,
) -> list[Call]:  # fmt: skip
    """Return the calls of `ImageOperations.conv2d_backward_batch`."""
    inputs, in_deltas = _present(inputs), _present(in_deltas)
    weight_deltas, bias_deltas = _present(weight_deltas), _present(bias_deltas)
    given = inputs, weights, out_deltas
    _check([in_deltas, weight_deltas, bias_deltas], given, out_deltas, bias_deltas)
    windows = Windows.of(weights.shape[1:-1], out_deltas, **windows_of)
    calls = []
    if weight_deltas is not None:
        for part in _few_pixels(inputs, out_deltas):
            arrays = *part, weight_deltas, bias_deltas
            calls += _fastest(primitives, _gradients, (windows, add_gradients), *arrays)
            add_gradients = True
    elif bias_deltas is not None:
        calls += _bias_gradient(primitives, out_deltas, bias_deltas, add_gradients)
    if in_deltas is not None:
        options = windows, add_in_deltas
        calls += _fastest(primitives, _data, options, weights, out_deltas, in_deltas)
    return calls


def _few_pixels(images: Any, deltas: Array) -> Iterator[tuple[Array, Array]]:
    """Yield parts of a batch with not too many summands for a gradient, see `MANY_SUMMANDS`."""
    pixels = max(1, math.prod(deltas.shape[1:-1]))
    most = max(1, MANY_SUMMANDS // pixels, -(-len(deltas) // MOST_PARTS))
    for first in range(0, max(1, len(deltas)), most):
        yield images[first : first + most], deltas[first : first + most]


def _fastest(primitives: Primitives, build: Callable[..., list[Call]], options: tuple[Any, ...],
             *arrays: Array | None) -> list[Call]:  # fmt: skip
    """Return the calls with factors in bfloat16, if these are wanted, faster and correct.

    For some windows they are wrong in oneDNN 3.2, e.g. 4x4 pixels with 16 channels and stride 4.
    """
    if primitives.is_half:
        key = "right", build, options, *(a if a is None else a.shape[1:] for a in arrays)
        with contextlib.suppress(UnsupportedError):
            if primitives.kept(key, lambda: _is_right(primitives, build, options, arrays)):
                return build(primitives, True, *options, *arrays)
    return build(primitives, False, *options, *arrays)


def _is_right(primitives: Primitives, build: Callable[..., list[Call]], options: tuple[Any, ...],
              arrays: Sequence[Array | None]) -> bool:  # fmt: skip
    """Return whether bfloat16 gives exact results for whole numbers, which it can represent."""
    found = []
    for is_half in (True, False):
        random = np.random.default_rng(0)
        own = [a if a is None else random.integers(-2, 3, a.shape).astype(a.dtype) for a in arrays]
        for call in build(primitives, is_half, *options, *own):
            call()
        found.append([array for array in own if array is not None])
    return all(np.allclose(a, b, 1e-4, 1e-4) for a, b in zip(*found, strict=True))


def _forward(primitives: Primitives, is_half: bool, windows: Windows, add: bool, activation: str,
             inputs: Array, weights: Array, bias: Array | None,
             outputs: Array) -> list[Call]:  # fmt: skip
    conv = _Convolution(primitives, inputs, weights, outputs, windows, is_half)
    forward = conv.forward(bias is not None, add, activation)
    calls: list[Call] = []
    given = {
        SRC: conv.factor(calls, inputs, "images"),
        WEIGHTS: conv.rearranged(calls, weights, forward),
        DST: (conv.results, address_of(outputs)),
    }
    if bias is not None:
        given[BIAS] = conv.bias, address_of(bias)
    return [*calls, primitives.call(forward, given)]


def _gradients(primitives: Primitives, is_half: bool, windows: Windows, add: bool, inputs: Array,
               out_deltas: Array, weight_deltas: Array,
               bias_deltas: Array | None) -> list[Call]:  # fmt: skip
    conv = _Convolution(primitives, inputs, weight_deltas, out_deltas, windows, is_half)
    backward = conv.backward_weights(bias_deltas is not None)
    found = primitives.temporary("convolution", backward.layout(DIFF_WEIGHTS_LAYOUT))
    calls: list[Call] = []
    given = {
        SRC: conv.factor(calls, inputs, "images"),
        DIFF_DST: conv.factor(calls, out_deltas, "deltas"),
        DIFF_WEIGHTS: found,
    }
    copies = [primitives.copy(found, (conv.weights, address_of(weight_deltas)), add)]
    if bias_deltas is not None:
        target = given[DIFF_BIAS] = conv.bias, address_of(bias_deltas)
        if add:
            given[DIFF_BIAS] = primitives.temporary("bias", conv.bias)
            copies.append(primitives.copy(given[DIFF_BIAS], target, add))
    return [*calls, primitives.call(backward, given), *copies]


def _data(primitives: Primitives, is_half: bool, windows: Windows, add: bool, weights: Array,
          out_deltas: Array, in_deltas: Array) -> list[Call]:  # fmt: skip
    conv = _Convolution(primitives, in_deltas, weights, out_deltas, windows, is_half)
    backward = conv.backward_data()
    calls: list[Call] = []
    target = found = conv.images, address_of(in_deltas)
    if add:
        found = primitives.temporary("deltas", conv.images)
    given = {
        DIFF_SRC: found,
        DIFF_DST: conv.factor(calls, out_deltas, "deltas"),
        WEIGHTS: conv.rearranged(calls, weights, backward),
    }
    calls.append(primitives.call(backward, given))
    return [*calls, primitives.copy(found, target, add)] if add else calls


def _bias_gradient(lane: Lane, out_deltas: Array, bias_deltas: Array, add: bool) -> list[Call]:
    """Sum the rows by a product with ones."""
    rows = out_deltas.reshape(-1, out_deltas.shape[-1])
    ones = lane.kept(("ones", len(rows)), lambda: np.ones((1, len(rows)), np.float32))
    calls = lane.product(ones, rows, bias_deltas.reshape(1, -1), add)
    calls[-1].keep = (*calls[-1].keep, ones)
    return calls


def _terms(windows: Windows) -> tuple[Any, ...]:
    """Return strides, dilations and paddings in the conventions of the library."""
    gaps = tuple([d - 1 for d in windows.dilation])
    return windows.stride, gaps, *zip(*windows.padding, strict=True)


def _reach(windows: Windows) -> list[int]:
    """Return, for each axis, the extent of a window or the stride, whichever is larger."""
    axes = zip(windows.kernel, windows.dilation, windows.stride, strict=True)
    return [max((size - 1) * gap + 1, step) for size, gap, step in axes]


def _present(array: Array | None) -> Array | None:
    return None if array is None or array.size == 0 else array


def _check(outputs: Sequence[Array | None], inputs: Sequence[Array | None], results: Array,
           bias: Array | None) -> None:  # fmt: skip
    present = [[a for a in arrays if a is not None] for arrays in (outputs, inputs)]
    check_arrays((np.float32,), *present)
    if not all(a.flags.c_contiguous for arrays in present for a in arrays):
        raise UnsupportedError("images are not contiguous")
    if bias is not None and bias.shape != results.shape[-1:]:
        raise UnsupportedError("the bias does not fit")  # NumPy raises the error


def _images(array: Array) -> ShapeAndStrides:
    """Return shape and strides with the channels in front, as the library counts axes."""
    n, *space, channels = array.shape
    steps = _steps(array.shape)
    return (n, channels, *space), (steps[0], 1, *steps[1:-1])


def _weights(array: Array, groups: int) -> ShapeAndStrides:
    """Return the same for weights, with an axis for the groups if there are several."""
    filters, *kernel, channels = array.shape
    steps = _steps(array.shape)
    shape, strides = (channels, *kernel), (1, *steps[1:-1])
    if groups == 1:
        return (filters, *shape), (steps[0], *strides)
    size = filters // groups
    return (groups, size, *shape), (size * steps[0], steps[0], *strides)


def _steps(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
