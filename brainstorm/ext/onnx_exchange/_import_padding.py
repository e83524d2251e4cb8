"""ONNX operators that enlarge tensors: padding and repetition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._import_views import join, pick, slice_axis
from brainstorm.ext.onnx_exchange._import_weights import as_padding
from brainstorm.ext.onnx_exchange._node import LARGEST, Node, reads
from brainstorm.ext.onnx_exchange._values import Value


@reads("Pad")
def _pad(imp: Importer, node: Node) -> Value:
    value, rank = node.value(), len(node.value().axes)
    pads = node.axes(1, "pads") or node.options.get("paddings", [])
    axes = [node.axis(i, rank) for i in node.axes(3, "") or range(rank)]
    if len(pads) != 2 * len(axes):
        raise node.fail(f"expected two pads for each of {len(axes)} axes, got {pads}.")
    ends = zip(axes, pads, pads[len(axes) :], strict=False)
    sides = {axis: (before, after) for axis, before, after in ends if before or after}
    if not set(sides) <= set(value.features):
        raise node.fail("no layer pads time steps or sequences.")
    for axis, (before, after) in sides.items():
        size, left = value.shape[axis] + before + after, min(0, before) + min(0, after)
        if value.shape[axis] + left < 1 or size > LARGEST:
            raise node.fail(f"expected pads that leave an axis 1 to {LARGEST} cells, got {pads}.")
    mode = node.options.get("mode", b"constant").decode()
    if mode == "constant":
        return _padded(imp, node, value, sides)
    if mode not in ("reflect", "edge", "wrap"):
        raise node.fail(f"no layer pads with mode {mode!r}.")
    for axis, side in sides.items():
        indices = np.pad(np.arange(value.shape[axis]), side, mode)
        value = pick(imp, node, value, axis, indices.tolist())
    return value


def _padded(imp: Importer, node: Node, value: Value, sides: Mapping[int, tuple[int, int]]) -> Value:
    """Return a tensor with cells of one value around it; negative numbers remove cells."""
    for axis, side in sides.items():
        before, after = (max(0, -cells) for cells in side)
        value = slice_axis(imp, node, value, axis, before, value.shape[axis] - after)
    order = value.order()
    ends = [sides.get(axis, (0, 0)) for axis in order]
    padding = [(max(0, before), max(0, after)) for before, after in ends]
    if not any(map(any, padding)):
        return value
    path, sizes = imp.arrange(node, value, order)
    if any(padding[-1]):  # a layer pads all axes but the last
        path = imp.reshape(node, path, [*sizes, 1]).path
        sizes, padding = (*sizes, 1), [*padding, (0, 0)]
    size = [cells + sum(side) for cells, side in zip(sizes, padding, strict=True)]
    number = float(np.asarray(node.constant(2, node.options.get("value", 0.0))).item())
    largest = np.finfo(np.float32).max.item()  # stands for infinity
    made = imp.add(node, "Padding", path, size, padding=as_padding(padding[:-1]),
                   value=float(np.clip(number, -largest, largest)))  # fmt: skip
    return imp.like(value, order, made)


@reads("Tile", "Expand")
def _repeat(imp: Importer, node: Node) -> Value:
    value, wanted = node.value(), [int(size) for size in node.constant(1)]
    rank = max(len(wanted), len(value.axes))
    value = replace(value, axes=((),) * (rank - len(value.axes)) + value.axes)
    wanted = [1] * (rank - len(wanted)) + wanted
    if min(wanted) < 1:
        raise node.fail(f"expected numbers >= 1, got {imp.shown(wanted)}.")
    for axis, (size, count) in enumerate(zip(value.shape, wanted, strict=True)):
        if node.kind == "Expand" and size != 1 and count not in (1, size):
            raise node.fail(f"{imp.shown(value.shape)} cannot be expanded to {imp.shown(wanted)}.")
        if count > 1 and (node.kind == "Tile" or size == 1):
            if axis not in value.features:
                raise node.fail("no layer repeats time steps or sequences.")
            value = _repeated(imp, node, value, axis, count)
    return value


def _repeated(imp: Importer, node: Node, value: Value, axis: int, count: int) -> Value:
    """Return repetitions of a tensor along an axis, by doubling."""
    if count == 1:
        return value
    half = _repeated(imp, node, value, axis, count // 2)
    return join(imp, node, [half, half, *[value] * (count % 2)], axis)
