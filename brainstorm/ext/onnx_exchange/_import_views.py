"""ONNX operators that only rearrange: other views of an output, its parts, and joined outputs."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._broadcasting import aligned, combine
from brainstorm.ext.onnx_exchange._fold import shape_of, split_sizes
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._values import LEAD, Value, regroup

#: Maximum number of parts from which an axis is assembled.
MOST_PARTS = 16

# -- other views of the same output ---------------------------------------------------------------


@reads("Identity")
def _identity(imp: Importer, node: Node) -> Value:
    return node.value()


@reads("Shape")
def _shape(imp: Importer, node: Node) -> list[np.ndarray]:
    return shape_of(node)


@reads("Transpose")
def _transpose(imp: Importer, node: Node) -> Value:
    value = node.value()
    perm = node.options.get("perm", range(value.ndim)[::-1])
    return replace(value, axes=tuple(value.axes[i] for i in perm))


@reads("Squeeze")
def _squeeze(imp: Importer, node: Node) -> Value:
    value, axes, rank = node.value(), node.axes(), node.value().ndim
    if axes is None:
        axes = [i for i, size in enumerate(value.shape) if size == 1]
    axes = [node.axis(i, rank) for i in axes]
    if any(value.shape[i] != 1 for i in axes):
        raise node.fail(f"expected axes of size 1, got {[value.shape[i] for i in axes]}.")
    return value.without(axes)


@reads("Unsqueeze")
def _unsqueeze(imp: Importer, node: Node) -> Value:
    value, wanted = node.value(), node.axes() or []
    rank = value.ndim + len(wanted)
    groups, places = iter(value.axes), {node.axis(i, rank) for i in wanted}
    if len(places) < len(wanted):
        raise node.fail(f"expected different axes, got {wanted}.")
    axes = [() if i in places else next(groups) for i in range(rank)]
    if 0 in places and not imp.has_time(value) and 0 not in value.flat:
        axes[0] = (0,)  # add T = 1 in front if there is no T
    return replace(value, axes=tuple(axes))


@reads("Flatten")
def _flatten(imp: Importer, node: Node) -> Value:
    value, axis = node.value(), node.options["axis"]
    merged = [tuple(i for g in part for i in g) for part in (value.axes[:axis], value.axes[axis:])]
    return replace(value, axes=tuple(merged))


@reads("Reshape")
def _reshape(imp: Importer, node: Node) -> Value:
    value, shape = node.value(), [int(size) for size in node.constant(1)]
    if not node.options.get("allowzero"):
        shape = [value.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    if -1 in shape:
        shape[shape.index(-1)] = math.prod(value.shape) // math.prod(x for x in shape if x != -1)
    axes = regroup(value.sizes, value.flat, shape)
    if axes is not None:
        return replace(value, axes=axes)
    return _cut(imp, value, shape)


def _cut(imp: Importer, value: Value, shape: Sequence[int]) -> Value:
    """Return a tensor in a shape that divides axes, which must be features, by a layer."""
    flat = [i for i in value.flat if value.sizes[i] != 1 or i in LEAD]
    ends = itertools.accumulate([1, *(value.sizes[i] for i in flat)], operator.mul)
    points = sorted({*ends, *itertools.accumulate([1, *shape], operator.mul)})
    features: list[int] = []
    parts: list[int] = []  # the axes of the result, in the order of the tensor
    start = 1
    for axis in flat:
        end = start * value.sizes[axis]
        cuts = [point for point in points if start <= point <= end]
        is_cut = len(cuts) > 2 and axis in LEAD
        if is_cut or any(b % a for a, b in itertools.pairwise(cuts)):
            raise imp.fail(f"no layer makes {imp.shown(shape)} of {imp.shown(value.shape)}.")
        sizes = [] if axis in LEAD else [b // a for a, b in itertools.pairwise(cuts)]
        parts += [axis] if axis in LEAD else range(2 + len(features), 2 + len(features + sizes))
        features += sizes
        start = end
    single = replace(value, axes=tuple((i,) for i in flat))
    x = imp.arrange(single, [i for i, axis in enumerate(flat) if axis not in LEAD])
    if list(x.sizes[2:]) != (features or [1]):
        x = imp.reshape(x, features or [1])
    return replace(x, axes=regroup(x.sizes, parts, shape) or ())


# -- parts ----------------------------------------------------------------------------------------


@reads("Concat")
def _concat(imp: Importer, node: Node) -> Value:
    values = list(node.inputs)
    first = next(v for v in values if isinstance(v, Value))
    axis = node.axis(node.options["axis"], first.ndim)
    if axis in first.lead:
        raise node.fail("no layer joins time steps or sequences.")
    if not all(isinstance(value, Value) for value in values):
        values = [_filled(imp, first, axis, value) for value in values]
    return join(imp, aligned(node, values, first.ndim), axis)


def _filled(imp: Importer, like: Value, axis: int, part: Any) -> Value:
    """Return a constant as a tensor with the T and B of another one."""
    if isinstance(part, Value):
        return part
    zeros = slice_axis(imp, like, axis, 0, 1)
    return combine(imp, "minimum(maximum(x, 0), 0) + y", x=zeros, y=part)


def join(imp: Importer, values: Sequence[Value], axis: int) -> Value:
    """Return tensors concatenated along an axis of features."""
    first, *others = values
    order = first.order(axis)
    made = imp.arrange(first, order)
    for value in others:
        other = imp.arrange(value, order)
        if other.sizes[2:-1] != made.sizes[2:-1]:
            raise imp.fail(f"{imp.shown(value.shape)} does not fit {imp.shown(first.shape)}.")
        made = imp.add("Merge", {"inputs_1": made, "inputs_2": other})
    return imp.like(first, order, made)


def pick(imp: Importer, value: Value, axis: int, indices: Sequence[int]) -> Value:
    """Return some indices of an axis, in any order, by as few parts as there are runs."""
    ends = [i for i, (a, b) in enumerate(itertools.pairwise(indices), 1) if b != a + 1]
    runs = [(indices[a], indices[b - 1] + 1) for a, b in
            itertools.pairwise([0, *ends, len(indices)])]  # fmt: skip
    if len(runs) > MOST_PARTS:
        raise imp.fail(
            f"no layer takes indices of an axis in {len(runs)} parts, but in up to {MOST_PARTS}."
        )
    parts = [slice_axis(imp, value, axis, start, stop) for start, stop in runs]
    return parts[0] if len(parts) == 1 else join(imp, parts, axis)


def every(imp: Importer, value: Value, axis: int, indices: range) -> Value:
    """Return indices of an axis with a step: one index of each block."""
    step, count, size = indices.step, len(indices), value.shape[axis]
    start = indices.start - max(0, indices.start + count * step - size)
    if step < 2 or count < 3 or start < 0 or axis not in value.features:
        return pick(imp, value, axis, list(indices))
    part = slice_axis(imp, value, axis, start, start + count * step)
    order = part.order()
    place, first = order.index(axis), indices.start - start
    x = imp.arrange(part, order)
    blocks = [*x.sizes[2 : 2 + place], count, step, *x.sizes[3 + place :]]
    made = imp.add("Slice", imp.reshape(x, blocks), start=first, stop=first + 1, axis=place + 1)
    result = imp.like(part, order[: place + 1], made)
    axes = list(result.axes)
    for behind, i in enumerate(order[place + 1 :], place + 2):
        axes[i] = (2 + behind,)
    return replace(result, axes=tuple(axes))


def slice_axis(imp: Importer, value: Value, axis: int, start: int, stop: int) -> Value:
    """Return the indices ``start <= i < stop`` of an axis of a tensor."""
    if (start, stop) == (0, value.shape[axis]):
        return value
    if value.axes[axis] == (0,) and start == stop - 1 == value.shape[axis] - 1:
        return imp.add_same(value, "TimePooling", type="last")
    if axis not in value.features:
        raise imp.fail("no layer takes some of the time steps or sequences, but the last step.")
    order = value.order()
    x, place = imp.arrange(value, order), order.index(axis)
    return imp.like(value, order, imp.add("Slice", x, start=start, stop=stop, axis=place))


@reads("Slice")
def _slice(imp: Importer, node: Node) -> Value:
    value = node.value()
    starts, ends = node.axes(1) or [], node.axes(2) or []
    axes, steps = node.axes(3) or range(len(starts)), node.axes(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(axis, value.ndim)
        size = value.shape[axis]
        first, last, _ = slice(start, end, step).indices(size)
        if step == -1 and (first, last) == (size - 1, -1) and value.axes[axis] == (0,):
            value = imp.add_same(value, "Reverse")
        elif step != 1 and range(first, last, step):
            value = every(imp, value, axis, range(first, last, step))
        elif last <= first:
            raise node.fail(f"expected that something is left of {size}, got {start}:{end}:{step}.")
        else:
            value = slice_axis(imp, value, axis, first, last)
    return value


@reads("Split")
def _split(imp: Importer, node: Node) -> list[Value]:
    value = node.value()
    axis = node.axis(node.options.get("axis", 0), value.ndim)
    sizes = split_sizes(node, value.shape[axis])
    ends = np.cumsum(sizes).tolist()
    return [
        slice_axis(imp, value, axis, end - size, end) for size, end in zip(sizes, ends, strict=True)
    ]
