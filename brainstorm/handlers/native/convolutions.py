"""Convolutions over any number of spatial axes, on images (N, ..., C) as they lie in memory.

The library chooses the layout of the weights, which are copied into it before, and their gradients
out of it afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.library import UnsupportedError, sizes
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
    Primitive,
    Primitives,
    address,
    check_arrays,
)
from brainstorm.handlers.native.products import activation_number, build_dot
from brainstorm.utils import Array

__all__ = ["build_backward", "build_forward"]

_TRAINING, _DIRECT = 64, 1

Layout = tuple[tuple[int, ...], tuple[int, ...]]


class Geometry(NamedTuple):
    """How windows slide over images: one number per spatial axis, and the groups of channels."""

    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, weights: Array, padding: Any, stride: Any, dilation: Any, groups: int) -> Geometry:
        """Return it from the arguments of an operation."""
        axes = weights.ndim - 2
        margins = (padding,) * axes if np.isscalar(padding) else tuple(padding)
        return cls(tuple(stride), tuple(dilation), margins, groups)

    def arguments(self) -> tuple[Any, ...]:
        """Return strides, dilations and paddings as the library counts them."""
        gaps = sizes(d - 1 for d in self.dilation)
        return sizes(self.stride), gaps, sizes(self.padding), sizes(self.padding)


class _Convolution:
    """The primitives of one convolution, whatever arrays it is for."""

    def __init__(self, primitives: Primitives, images: Array, weights: Array, results: Array,
                 geometry: Geometry) -> None:  # fmt: skip
        self.primitives, self.geometry = primitives, geometry
        primitives.choose_team(2 * results.size * weights[0].size, images.size + results.size)
        self.key = images.shape, weights.shape, results.shape, geometry
        layout = primitives.layout
        self.images, self.results = layout(*_images(images)), layout(*_images(results))
        shape, strides = _weights(weights, geometry.groups)
        self.weights, self.any_weights = layout(shape, strides), layout(shape, ANY)
        self.bias = layout((results.shape[-1],), (1,))

    def forward(
        self, with_bias: bool = False, add: bool = False, activation: str = "linear"
    ) -> Primitive:
        """Return the convolution."""

        def make() -> Primitive:
            return self.primitives.make(
                "convolution_forward", _TRAINING, _DIRECT, self.images, self.any_weights,
                self.bias if with_bias else None, self.results, *self.geometry.arguments(),
                self.primitives.attributes(add, activation_number(activation)),
            )  # fmt: skip

        return self.primitives.kept(("forward", self.key, with_bias, add, activation), make)

    def backward_data(self) -> Primitive:
        """Return what computes the derivatives of the images."""

        def make() -> Primitive:
            return self.primitives.make(
                "convolution_backward_data", _DIRECT, self.images, self.any_weights, self.results,
                *self.geometry.arguments(), self.forward().description,
                self.primitives.attributes(),
            )  # fmt: skip

        return self.primitives.kept(("backward data", self.key), make)

    def backward_weights(self, with_bias: bool) -> Primitive:
        """Return what computes the derivatives of the weights and of the bias."""

        def make() -> Primitive:
            return self.primitives.make(
                "convolution_backward_weights", _DIRECT, self.images, self.any_weights,
                self.bias if with_bias else None, self.results, *self.geometry.arguments(),
                self.forward().description, self.primitives.attributes(),
            )  # fmt: skip

        return self.primitives.kept(("backward weights", self.key, with_bias), make)

    def copy(self, name: str, source: Any, target: Any, what: str, add: bool = False) -> Call:
        """Return a call that copies, or adds, from one (layout, address) to another."""
        reorder = self.primitives.reorder((what, self.key), source[0], target[0], add)
        return self.primitives.call(name, reorder, {SRC: source, DST: target})

    def temporary(self, layout: Any) -> tuple[Any, int]:
        """Return (layout, address) of memory that the next operation may overwrite."""
        return layout, self.primitives.temporary("convolution", layout)


def build_forward(
    primitives: Primitives,
    inputs: Array,
    weights: Array,
    bias: Array | None,
    outputs: Array,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    activation: str,
    add: bool = False,
) -> list[Call]:
    """Return the calls of `ImageOperations.conv2d_forward_batch`."""
    bias = _present(bias)
    _check([outputs], [inputs, weights, bias])
    _check_bias(outputs, bias)
    geometry = Geometry.of(weights, padding, stride, dilation, groups)
    conv = _Convolution(primitives, inputs, weights, outputs, geometry)
    forward, name = conv.forward(bias is not None, add, activation), "convolution"
    rearranged = conv.temporary(forward.layout(WEIGHTS_LAYOUT))
    given = {
        SRC: (conv.images, address(inputs)),
        WEIGHTS: rearranged,
        DST: (conv.results, address(outputs)),
    }
    if bias is not None:
        given[BIAS] = conv.bias, address(bias)
    first = conv.copy(name, (conv.weights, address(weights)), rearranged, "forward weights")
    return [first, primitives.call(name, forward, given)]


def build_backward(
    primitives: Primitives,
    inputs: Array | None,
    weights: Array,
    in_deltas: Array | None,
    out_deltas: Array,
    weight_deltas: Array | None,
    bias_deltas: Array | None,
    padding: Any,
    stride: Any,
    add_gradients: bool,
    add_in_deltas: bool,
    dilation: Any,
    groups: int,
) -> list[Call]:
    """Return the calls of `ImageOperations.conv2d_backward_batch`."""
    inputs, in_deltas = _present(inputs), _present(in_deltas)
    weight_deltas, bias_deltas = _present(weight_deltas), _present(bias_deltas)
    _check([in_deltas, weight_deltas, bias_deltas], [inputs, weights, out_deltas])
    _check_bias(out_deltas, bias_deltas)
    geometry = Geometry.of(weights, padding, stride, dilation, groups)
    images = inputs if in_deltas is None else in_deltas
    calls = []
    if images is not None:
        conv = _Convolution(primitives, images, weights, out_deltas, geometry)
        deltas = conv.results, address(out_deltas)
    if weight_deltas is not None:
        given = {SRC: (conv.images, address(inputs)), DIFF_DST: deltas}
        calls += _gradients(conv, given, weight_deltas, bias_deltas, add_gradients)
    elif bias_deltas is not None:
        calls += _bias_gradient(primitives, out_deltas, bias_deltas, add_gradients)
    if in_deltas is not None:
        calls += _data(conv, weights, deltas, in_deltas, add_in_deltas)
    return calls


def _gradients(conv: _Convolution, given: dict[int, Any], weight_deltas: Array,
               bias_deltas: Array | None, add: bool) -> list[Call]:  # fmt: skip
    name = "convolution, gradients"
    backward = conv.backward_weights(bias_deltas is not None)
    found = conv.temporary(backward.layout(DIFF_WEIGHTS_LAYOUT))
    given[DIFF_WEIGHTS] = found
    target = conv.weights, address(weight_deltas)
    calls = [conv.copy(name, found, target, "gradients", add)]
    if bias_deltas is not None:
        target = given[DIFF_BIAS] = conv.bias, address(bias_deltas)
        if add:
            given[DIFF_BIAS] = conv.bias, conv.primitives.temporary("bias", conv.bias)
            calls.append(conv.copy(name, given[DIFF_BIAS], target, "bias", add))
    return [conv.primitives.call(name, backward, given), *calls]


def _bias_gradient(
    primitives: Primitives, out_deltas: Array, bias_deltas: Array, add: bool
) -> list[Call]:
    """Sum the rows by a product with ones."""
    rows = out_deltas.reshape(-1, out_deltas.shape[-1])
    ones = primitives.kept(("ones", len(rows)), lambda: np.ones((1, len(rows)), np.float32))
    calls = build_dot(primitives, ones, rows, bias_deltas.reshape(1, -1), False, False, add)
    calls[-1].keep = (*calls[-1].keep, ones)
    return calls


def _data(
    conv: _Convolution, weights: Array, deltas: Any, in_deltas: Array, add: bool
) -> list[Call]:
    name = "convolution, deltas"
    backward = conv.backward_data()
    rearranged = conv.temporary(backward.layout(WEIGHTS_LAYOUT))
    target = found = conv.images, address(in_deltas)
    if add:
        found = conv.images, conv.primitives.temporary("deltas", conv.images)
    given = {DIFF_SRC: found, WEIGHTS: rearranged, DIFF_DST: deltas}
    calls = [
        conv.copy(name, (conv.weights, address(weights)), rearranged, "backward weights"),
        conv.primitives.call(name, backward, given),
    ]
    return [*calls, conv.copy(name, found, target, "deltas", add)] if add else calls


def _present(array: Array | None) -> Array | None:
    return None if array is None or array.size == 0 else array


def _check(outputs: Sequence[Array | None], inputs: Sequence[Array | None]) -> None:
    present = [[a for a in arrays if a is not None] for arrays in (outputs, inputs)]
    check_arrays((np.float32,), *present)
    if not all(a.flags.c_contiguous for arrays in present for a in arrays):
        raise UnsupportedError("images are not contiguous")


def _check_bias(results: Array, bias: Array | None) -> None:
    if bias is not None and bias.shape != results.shape[-1:]:
        raise UnsupportedError("the bias does not fit")  # NumPy says so


def _images(array: Array) -> Layout:
    """Return shape and strides with the channels in front, as the library counts axes."""
    n, *space, channels = array.shape
    steps = _steps(array.shape)
    return (n, channels, *space), (steps[0], 1, *steps[1:-1])


def _weights(array: Array, groups: int) -> Layout:
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
