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
    axis, out = len(value.axes) - 1, W.shape[1]
    if value.shape[-1] != len(W) or value.is_mixed(axis):
        raise imp.fail(f"no layer multiplies {imp.shown(value.shape)} and {W.shape}.")
    order = value.memory_order(value.features[:-1])
    if all(value.shape[i] == 1 for i in order):
        weights = np.empty_like(W.T)
        weights[:, value.permutation(axis)] = W.T
        made = imp.add("FullyConnected", value.path, [out],
                       {"W": weights, "bias": bias}, size=out, activation="linear")  # fmt: skip
        return imp.like(value, [axis], made)
    if len(order) > 3:
        raise imp.fail("no layer multiplies a matrix with the last of more than four features.")
    order = [*order, axis]
    path, sizes = imp.arrange(value, order, mixed=True)
    ones = [1] * (len(order) - 1)
    arrays = {"W": W.T.reshape(out, *ones, len(W)), "bias": bias}
    kind = f"Convolution{len(ones)}D"
    window = ones if len(ones) > 1 else 1
    made = imp.add(kind, path, [*sizes[:-1], out], arrays, num_filters=out,
                   kernel_size=window, activation="linear")  # fmt: skip
    return imp.like(value, order, made)


@reads("MatMul")
def _matmul(imp: Importer, node: Node) -> Value:
    first, second = node.inputs
    if isinstance(first, Value) and not isinstance(second, Value) and second.ndim == 2:
        return _linear(imp, first, node.bounded(second), np.zeros(second.shape[1]))
    return _product(imp, first, second)


def _product(imp: Importer, *factors: Any) -> Value:
    """Multiply two matrices, of which at least one is computed."""
    ranks = [len(x.axes) if isinstance(x, Value) else x.ndim for x in factors]
    rank = max(ranks)
    if min(ranks) < 2:
        raise imp.fail("no layer multiplies a computed matrix and a vector. Unsqueeze this.")
    computed = [x for x in factors if isinstance(x, Value)]
    if any(x.is_mixed(len(x.axes) - i) for x in computed for i in (1, 2)):
        raise imp.fail(
            "no layer multiplies two matrices whose rows or columns are time steps or sequences. "
            "Give the axis a size and another letter than T or B, by sizes and axes."
        )
    values = aligned(imp.node, computed, rank, rank - 2)
    held = iter(values)
    order = [i for i in range(rank - 2) if i not in values[0].lead] + [rank - 2, rank - 1]
    operands: dict[str, Any] = {}
    shapes = []
    for name, factor in zip("xy", factors, strict=True):
        if isinstance(factor, Value):
            operands[name], shape = imp.arrange(next(held), order, mixed=True)
        else:
            operands[name] = arranged(imp.node, factor, values[0], order)
            shape = operands[name].shape
        shapes.append(tuple(shape))
    (*lead, rows, inner), (*others, same, columns) = shapes
    if inner != same:
        raise imp.fail(f"no layer multiplies {imp.shown(shapes[0])} and {imp.shown(shapes[1])}.")
    sizes = [*np.broadcast_shapes(lead, others), rows, columns]
    return imp.like(values[0], order, imp.formula("x @ y", sizes, **operands))


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
    path, sizes = imp.arrange(value)
    one = sizes == (1,)
    features = [table.shape[1]] if one else [*sizes, table.shape[1]]
    if len(sizes) > 1:
        raise node.fail("no layer looks up classes with several feature dimensions.")
    made = imp.add("Embedding", path, features, {"W": table},
                   vocabulary_size=table.shape[0], size=table.shape[1])  # fmt: skip
    axes = [() if one and i in value.features else group for i, group in enumerate(value.axes)]
    if not one:
        axes[value.features[0]] = (2,)
    return replace(made, axes=(*axes, (len(features) + 1,)))


def _pick(imp: Importer, node: Node) -> Value:
    """Select indices of an axis, which is removed for a single index."""
    value, indices = node.value(), node.constant(1)
    axis = node.axis(node.options["axis"], len(value.axes))
    size = value.shape[axis]
    for index in indices.ravel().tolist():
        if not -size <= index < size:
            raise node.fail(f"expected an index from {-size} to {size - 1}, got {index}.")
    if indices.ndim > 1:
        raise node.fail(f"expected one index or a list, got an array of {indices.shape}.")
    part = pick(imp, value, axis, [int(i) % size for i in indices.ravel()])
    return part if indices.ndim else part.without([axis])


# -- images ---------------------------------------------------------------------------------------


def _padding(
    node: Node, image: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> Sides:  # fmt: skip
    """Return the padding (before, after) on each axis of an image."""
    axes, auto = len(kernel), node.options["auto_pad"]
    pads = list(node.options.get("pads", [0] * 2 * axes))
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        wanted = [
            max(0, ((size - 1) // step) * step + gap * (cells - 1) + 1 - size)
            for size, cells, step, gap in zip(image, kernel, strides, dilations, strict=True)
        ]
        less, more = [w // 2 for w in wanted], [w - w // 2 for w in wanted]
        pads = [*less, *more] if auto == b"SAME_UPPER" else [*more, *less]
    if len(pads) != 2 * axes or min(pads) < 0:
        raise node.fail(f"expected two pads >= 0 for each of {axes} axes, got {pads}.")
    return [(int(a), int(b)) for a, b in zip(pads[:axes], pads[axes:], strict=True)]


def as_padding(sides: Sides) -> Any:
    """Return a padding as the option of a layer, in the shortest form."""
    if len({cells for side in sides for cells in side}) == 1:
        return sides[0][0]
    return list(sides[0]) if len(sides) == 1 else [list(side) for side in sides]


def images(imp: Importer, axes: int) -> tuple[Value, list[int], str, tuple[int, ...]]:
    """Return an input (N, C, ...), the order of its features here, and an output in this order."""
    value = imp.node.value()
    if len(value.axes) != axes + 2 or value.lead != (0,):
        raise imp.fail(f"expected (N, C, {axes} more), got {imp.shown(value.shape)}.")
    order = [*range(2, axes + 2), 1]
    path, sizes = imp.arrange(value, order)
    return value, order, path, sizes


def _number(values: Sequence[int]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def _window_sizes(
    node: Node, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], padding: Sides,
) -> list[int]:  # fmt: skip
    found = [
        (size + sum(side) - d * (k - 1) - 1) // s + 1
        for size, k, s, d, side in zip(sizes, kernel, strides, dilations, padding, strict=False)
    ]
    if min(found) < 1:
        raise node.fail(f"its window {list(kernel)} is larger than {list(sizes[: len(kernel)])}.")
    return found


@reads("Conv")
def _convolution(imp: Importer, node: Node) -> Value:
    W = node.constant(1)
    filters, axes, kernel = W.shape[0], W.ndim - 2, list(W.shape[2:])
    if not 1 <= axes <= 3:
        raise node.fail(f"no layer convolves over {axes} axes.")
    strides = node.options.get("strides", [1] * axes)
    dilations = node.options.get("dilations", [1] * axes)
    value, order, path, sizes = images(imp, axes)
    padding = _padding(node, sizes[:-1], kernel, strides, dilations)
    made = imp.add(
        f"Convolution{axes}D",
        path,
        [*_window_sizes(node, sizes, kernel, strides, dilations, padding), filters],
        {"W": np.moveaxis(W, 1, -1), "bias": node.constant(2, np.zeros(filters))},
        num_filters=filters,
        kernel_size=_number(kernel),
        stride=_number(strides),
        padding=as_padding(padding),
        dilation=_number(dilations),
        groups=node.options["group"],
        activation="linear",
    )
    return imp.like(value, order, made)


@reads("ConvTranspose")
def _convolution_transpose(imp: Importer, node: Node) -> Value:
    W, options = node.constant(1), node.options
    strides, extra = options.get("strides", [1, 1]), options.get("output_padding", [0, 0])
    plain = {"group": 1, "dilations": [1, 1], "auto_pad": b"NOTSET"}
    for name, wanted in plain.items():
        if options.get(name, wanted) != wanted or "output_shape" in options or W.ndim != 4:
            raise node.fail("expected two axes, no groups, no dilation, and pads.")
    if len(set(extra)) > 1:
        raise node.fail(f"expected the same output_padding for both axes, got {extra}.")
    kernel = list(W.shape[2:])
    value, order, path, sizes = images(imp, 2)
    padding = _padding(node, sizes[:-1], kernel, strides, [1, 1])
    rows = [(size - 1) * s - sum(side) + k + extra[0]
            for size, s, side, k in zip(sizes, strides, padding, kernel, strict=False)]  # fmt: skip
    made = imp.add(
        "ConvolutionTranspose2D",
        path,
        [*rows, W.shape[1]],
        {"W": np.moveaxis(W, 1, -1), "bias": node.constant(2, np.zeros(W.shape[1]))},
        num_filters=W.shape[1],
        kernel_size=kernel,
        stride=list(strides),
        padding=as_padding(padding),
        output_padding=extra[0],
        activation="linear",
    )
    return imp.like(value, order, made)


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
    strides = list(options.get("strides", [1] * axes))
    value, order, path, (*sizes, channels) = images(imp, axes)
    padding = _padding(node, sizes, kernel, strides, [1] * axes)
    is_up = bool(options.get("ceil_mode"))
    whole = list(up_to_last_cell(sizes, kernel, strides, padding)) if is_up else padding
    if node.kind == "AveragePool" and options.get("count_include_pad") and any(map(any, padding)):
        # Padding that no window needs would be cells in which further windows begin.
        padding = [(a, min(b, most)) for (a, b), (_, most) in zip(padding, whole, strict=True)]
        sizes = [size + sum(side) for size, side in zip(sizes, padding, strict=True)]
        path = imp.add("Padding", path, [*sizes, channels],
                       padding=as_padding(padding)).path  # fmt: skip
        padding = [(0, 0)] * axes
        whole = list(up_to_last_cell(sizes, kernel, strides, padding)) if is_up else padding
    features = [*_window_sizes(node, sizes, kernel, strides, [1] * axes, whole), channels]
    made = imp.add(f"Pooling{axes}D", path, features,
                   kernel_size=_number(kernel), type="max" if node.kind == "MaxPool" else "avg",
                   stride=_number(strides), padding=as_padding(padding),
                   ceil_mode=is_up)  # fmt: skip
    return imp.like(value, order, made)


@reads("GlobalMaxPool", "GlobalAveragePool")
def _global_pooling(imp: Importer, node: Node) -> Value:
    kind = "max" if node.kind == "GlobalMaxPool" else "avg"
    axes = len(node.value().axes) - 2
    value, order, path, sizes = images(imp, axes)
    if axes == 2:
        made = imp.add("GlobalPooling2D", path, sizes[2:], type=kind)
        return replace(made, axes=(value.axes[0], (2,), (), ()))
    shape = [*[1] * axes, sizes[-1]]
    if axes in (1, 3):
        window = _number(sizes[:-1])
        made = imp.add(f"Pooling{axes}D", path, shape, kernel_size=window, type=kind)
    else:
        function, along = {"max": "max", "avg": "mean"}[kind], tuple(range(2, 2 + axes))
        made = imp.formula(f"{function}(x, axis={along}, keepdims=True)", shape, x=path)
    return imp.like(value, order, made)
