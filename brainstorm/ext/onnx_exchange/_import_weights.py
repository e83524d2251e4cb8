"""ONNX operators with weights, and pooling of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._broadcasting import aligned, arranged
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._import_views import pick
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._values import Value
from brainstorm.layers._windows import up_to_last_cell

#: (before, after) for each axis of an image.
Sides = list[tuple[int, int]]

# -- matrices -------------------------------------------------------------------------------------


def _linear(imp: Importer, value: Value, W: np.ndarray, bias: np.ndarray) -> Value:
    """Add a layer whose input is the last axis of a tensor; W is (in, out)."""
    axis, out = value.ndim - 1, W.shape[1]
    if value.shape[-1] != len(W) or value.is_mixed(axis):
        raise imp.fail(f"no layer multiplies {imp.shown(value.shape)} and {W.shape}.")
    order = value.memory_order(value.features[:-1])
    if all(value.shape[i] == 1 for i in order):
        weights = np.empty_like(W.T)
        weights[:, value.permutation(axis)] = W.T
        arrays = {"W": weights, "bias": bias}
        made = imp.add("FullyConnected", value, arrays, size=out, activation="linear")
        return imp.like(value, [axis], made)
    if len(order) > 3:
        raise imp.fail("no layer multiplies a matrix with the last of more than four features.")
    ones, order = [1] * len(order), [*order, axis]
    arrays = {"W": W.T.reshape(out, *ones, len(W)), "bias": bias}
    made = imp.add(f"Convolution{len(ones)}D", imp.arrange(value, order, mixed=True), arrays,
                   num_filters=out, kernel_size=_number(ones), activation="linear")  # fmt: skip
    return imp.like(value, order, made)


@reads("MatMul")
def _matmul(imp: Importer, node: Node) -> Value:
    first, second = node.inputs
    if isinstance(first, Value) and not isinstance(second, Value) and second.ndim == 2:
        return _linear(imp, first, node.bounded(second), np.zeros(second.shape[1]))
    return _product(imp, first, second)


def _product(imp: Importer, *factors: Any) -> Value:
    """Multiply two matrices, of which at least one is computed."""
    rank = max(x.ndim for x in factors)
    if min(x.ndim for x in factors) < 2:
        raise imp.fail("no layer multiplies a computed matrix and a vector. Unsqueeze this.")
    computed = [x for x in factors if isinstance(x, Value)]
    if any(x.is_mixed(x.ndim - i) for x in computed for i in (1, 2)):
        raise imp.fail(
            "no layer multiplies two matrices whose rows or columns are time steps or sequences. "
            "Give the axis a size and another letter than T or B, by sizes and axes."
        )
    values = aligned(imp.node, computed, rank, rank - 2)
    held = iter(values)
    order = [i for i in range(rank - 2) if i not in values[0].lead] + [rank - 2, rank - 1]
    operands = [
        imp.arrange(next(held), order, mixed=True)
        if isinstance(factor, Value)
        else arranged(imp.node, factor, values[0], order)
        for factor in factors
    ]
    x, y = (o.sizes[2:] if isinstance(o, Value) else o.shape for o in operands)
    if x[-1] != y[-2]:
        raise imp.fail(f"no layer multiplies {imp.shown(x)} and {imp.shown(y)}.")
    made = imp.formula("x @ y", **dict(zip("xy", operands, strict=True)))
    return imp.like(values[0], order, made)


@reads("Gemm")
def _gemm(imp: Importer, node: Node) -> Value:
    options = node.options
    if options["transA"]:
        raise node.fail("no layer multiplies with the transpose of its input.")
    W = node.constant(1) * options["alpha"]
    W = W.T if options["transB"] else W
    bias = np.atleast_1d(node.constant(2, 0.0)) * options["beta"]
    if bias.size not in (1, bias.shape[-1]):
        raise node.fail("no layer has a bias for each row of a batch.")
    bias = np.broadcast_to(bias.ravel(), W.shape[1])
    return _linear(imp, node.value(), W, bias)


@reads("Gather")
def _gather(imp: Importer, node: Node) -> Value:
    if isinstance(node.get(0), Value):
        return _pick(imp, node)
    table, value, axis = node.constant(0), node.value(1), node.options["axis"]
    if table.ndim != 2 or axis != 0:
        raise node.fail("expected a table with one row per class, and axis 0.")
    x = imp.arrange(value)
    if len(x.sizes) > 3:
        raise node.fail("no layer looks up classes with several feature dimensions.")
    rows, size = table.shape
    made = imp.add("Embedding", x, {"W": table}, vocabulary_size=rows, size=size)
    group = () if x.sizes[2] == 1 else (2,)
    axes = [group if i in value.features else axis for i, axis in enumerate(value.axes)]
    return replace(made, axes=(*axes, (len(made.sizes) - 1,)))


def _pick(imp: Importer, node: Node) -> Value:
    """Select indices of an axis, which is removed for a single index."""
    value, indices = node.value(), node.constant(1)
    axis = node.axis(node.options["axis"], value.ndim)
    size = value.shape[axis]
    for index in indices.ravel().tolist():
        if not -size <= index < size:
            raise node.fail(f"expected an index from {-size} to {size - 1}, got {index}.")
    if indices.ndim > 1:
        raise node.fail(f"expected one index or a list, got an array of {indices.shape}.")
    part = pick(imp, value, axis, [int(i) % size for i in indices.ravel()])
    return part if indices.ndim else part.without([axis])


# -- images ---------------------------------------------------------------------------------------


def _padding(node: Node, image: Sequence[int], kernel: Sequence[int]) -> Sides:
    """Return the padding (before, after) on each axis of an image."""
    axes, auto = len(kernel), node.options["auto_pad"]
    pads = list(node.options.get("pads", [0] * 2 * axes))
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        steps, gaps = (_per_axis(node, name, axes) for name in ("strides", "dilations"))
        wanted = [
            max(0, ((size - 1) // step) * step + gap * (cells - 1) + 1 - size)
            for size, cells, step, gap in zip(image, kernel, steps, gaps, strict=True)
        ]
        less, more = [w // 2 for w in wanted], [w - w // 2 for w in wanted]
        pads = [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]
    if len(pads) != 2 * axes or min(pads) < 0:
        raise node.fail(f"expected two pads >= 0 for each of {axes} axes, got {pads}.")
    return [(int(a), int(b)) for a, b in zip(pads[:axes], pads[axes:], strict=True)]


def _per_axis(node: Node, name: str, axes: int) -> list[int]:
    return list(node.options.get(name, [1] * axes))


def as_padding(sides: Sides) -> Any:
    """Return a padding as the option of a layer, in the shortest form."""
    if len({cells for side in sides for cells in side}) == 1:
        return sides[0][0]
    return list(sides[0]) if len(sides) == 1 else [list(side) for side in sides]


def images(imp: Importer, axes: int) -> tuple[Value, list[int]]:
    """Return an input (N, C, ...), and the order of its features here."""
    value = imp.node.value()
    if value.ndim != axes + 2 or value.lead != (0,):
        raise imp.fail(f"expected (N, C, {axes} more), got {imp.shown(value.shape)}.")
    return value, [*range(2, axes + 2), 1]


def _number(values: Sequence[int]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _filtered(
    imp: Importer, kind: str, kernel: Sequence[int], filters: int, **options: Any
) -> Value:
    """Add a convolution of either direction, whose weights are (filters or channels, ...)."""
    node, axes = imp.node, len(kernel)
    value, order = images(imp, axes)
    made = imp.add(
        kind,
        imp.arrange(value, order),
        {
            "W": np.moveaxis(node.constant(1), 1, -1),
            "bias": node.constant(2, np.zeros(filters)),
        },
        num_filters=filters,
        kernel_size=_number(kernel),
        stride=_number(_per_axis(node, "strides", axes)),
        padding=as_padding(_padding(node, value.shape[2:], kernel)),
        activation="linear",
        **options,
    )
    return imp.like(value, order, made)


@reads("Conv")
def _convolution(imp: Importer, node: Node) -> Value:
    filters, _, *kernel = node.constant(1).shape
    axes = len(kernel)
    if not 1 <= axes <= 3:
        raise node.fail(f"no layer convolves over {axes} axes.")
    dilation = _number(_per_axis(node, "dilations", axes))
    options = {"dilation": dilation, "groups": node.options["group"]}
    return _filtered(imp, f"Convolution{axes}D", kernel, filters, **options)


@reads("ConvTranspose")
def _convolution_transpose(imp: Importer, node: Node) -> Value:
    (_, filters, *kernel), options = node.constant(1).shape, node.options
    plain = {"group": 1, "dilations": [1, 1], "auto_pad": b"NOTSET", "output_shape": None}
    if len(kernel) != 2 or any(options.get(name, x) != x for name, x in plain.items()):
        raise node.fail("expected two axes, no groups, no dilation, and pads.")
    extra = options.get("output_padding", [0, 0])
    if len(set(extra)) > 1:
        raise node.fail(f"expected the same output_padding for both axes, got {extra}.")
    return _filtered(imp, "ConvolutionTranspose2D", kernel, filters, output_padding=extra[0])


@reads("MaxPool", "AveragePool")
def _pooling(imp: Importer, node: Node) -> Value:
    options, kernel = node.options, list(node.options["kernel_shape"])
    axes = len(kernel)
    if not 1 <= axes <= 3:
        raise node.fail(f"no layer pools over {axes} axes.")
    if set(options.get("dilations", [1])) != {1}:
        raise node.fail("no layer pools with dilations.")
    if any(node.used[1:]):
        raise node.fail("no layer gives the indices of the maxima.")
    strides = _per_axis(node, "strides", axes)
    value, order = images(imp, axes)
    padding = _padding(node, value.shape[2:], kernel)
    x, is_up = imp.arrange(value, order), bool(options.get("ceil_mode"))
    if node.kind == "AveragePool" and options.get("count_include_pad") and any(map(any, padding)):
        # Padding that no window needs would be cells in which further windows begin.
        most = padding
        if is_up:
            most = list(map(up_to_last_cell, value.shape[2:], kernel, strides, padding))
        padding = [(a, min(b, end)) for (a, b), (_, end) in zip(padding, most, strict=True)]
        x, padding = imp.add("Padding", x, padding=as_padding(padding)), [(0, 0)] * axes
    made = imp.add(
        f"Pooling{axes}D",
        x,
        kernel_size=_number(kernel),
        type="max" if node.kind == "MaxPool" else "avg",
        stride=_number(strides),
        padding=as_padding(padding),
        ceil_mode=is_up,
    )
    return imp.like(value, order, made)
