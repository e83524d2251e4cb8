"""ONNX operators without weights that give tensors another size: resizing, padding, repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from brainstorm.ext.onnx_exchange._body import BATCH, TIME
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._import_views import join, pick, slice_axis
from brainstorm.ext.onnx_exchange._import_weights import as_padding, images
from brainstorm.ext.onnx_exchange._node import LARGEST, Node, reads
from brainstorm.ext.onnx_exchange._values import Value

# -- resizing -------------------------------------------------------------------------------------

#: Types of `Upsampling2D` for the modes of Resize.
_TYPES = {"nearest": "nearest", "linear": "bilinear"}

#: Function from positions on an axis to the nearest index.
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@reads("Resize", "Upsample")
def _resize(imp: Importer, node: Node) -> Value:
    value, mode = node.value(), node.options["mode"].decode()
    if mode not in _TYPES or node.options.get("antialias"):
        raise node.fail(f"no layer interpolates by {mode!r}, but by 'nearest' and 'linear', "
                        "without antialias.")  # fmt: skip
    places = {
        axis: _places(node, value.shape[axis], size, scale, mode)
        for axis, (size, scale) in _wanted(node, value).items()
    }
    order = value.order()
    if len(order) == 3 and order[2] not in places and all(
        _is_usual(at, value.shape[axis], mode) for axis, at in places.items()
    ):  # fmt: skip
        size = [len(places.get(i, range(value.shape[i]))) for i in order[:2]]
        made = imp.add("Upsampling2D", imp.arrange(value, order), size=size, type=_TYPES[mode])
        return imp.like(value, order, made)
    for axis, at in places.items():
        along = _upsampled if _is_usual(at, value.shape[axis], mode) else _interpolated
        value = along(imp, value, axis, at, mode)
    return value


def _wanted(node: Node, value: Value) -> dict[int, tuple[int, float]]:
    """Return the new sizes of the axes to resize, and the scales."""
    rank = value.ndim
    axes = [node.axis(i, rank) for i in node.options.get("axes", range(rank))]
    shape = [value.shape[i] for i in axes]
    if node.options.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise node.fail("no layer keeps the aspect ratio. Give the sizes without a policy.")
    place = 1 if node.kind == "Upsample" or len(node.inputs) < 3 else 2
    scales = np.ravel(node.constant(place, [])).tolist()
    sizes = [] if scales else np.ravel(node.constant(3, [])).tolist()
    scales = scales or [size / n for size, n in zip(sizes, shape, strict=False)]
    if len(scales) != len(axes) or not all(map(math.isfinite, scales)):
        raise node.fail(f"expected a scale or size for each of {len(axes)} axes, got {scales}.")
    with np.errstate(over="ignore"):  # as ONNX Runtime rounds: 5 * 1.4 is 7
        sizes = sizes or [math.floor(x) for x in np.multiply(shape, scales, dtype=np.float32)]
    zipped = zip(axes, shape, sizes, scales, strict=True)
    wanted = {i: (n, size, scale) for i, n, size, scale in zipped if size != n or scale != 1}
    if not set(wanted) <= set(value.features):
        raise node.fail("no layer interpolates time steps or sequences.")
    if any(not 0 < size * n <= LARGEST for n, size, _ in wanted.values()):
        raise node.fail(f"expected sizes >= 1 that can be computed, got {sizes}.")
    return {axis: (int(size), scale) for axis, (_, size, scale) in wanted.items()}


def _places(node: Node, size: int, result: int, scale: float, mode: str) -> np.ndarray:
    """Return the position on an axis that each index of the result corresponds to."""
    transformation = node.options.get("coordinate_transformation_mode", b"asymmetric").decode()
    i, factor = np.arange(result, dtype=np.float32), np.float32(scale)  # as ONNX Runtime rounds
    half = (i + np.float32(0.5)) / factor - np.float32(0.5)
    modes = {
        "asymmetric": i / factor,
        "align_corners": i * np.float32(size - 1) / np.float32(max(1, result - 1)),
        "half_pixel": half,
        "pytorch_half_pixel": half if result > 1 else i * 0,
    }
    if transformation not in modes:
        raise node.fail(
            f"no layer takes its places by {transformation!r}, but by {', '.join(modes)}."
        )
    places = modes[transformation]
    if mode == "nearest":
        usual = b"floor" if scale >= 1 else b"ceil"  # before opset 11
        places = _ROUNDINGS[node.options.get("nearest_mode", usual).decode()](places)
    return np.clip(places, 0, size - 1)


def _is_usual(places: np.ndarray, size: int, mode: str) -> bool:
    """Return whether the positions are those of `Upsampling2D`."""
    i, result = np.arange(len(places)), len(places)
    if mode == "nearest":
        return np.array_equal(places, i * size // result)
    return np.allclose(places, np.clip((i + 0.5) * size / result - 0.5, 0, size - 1), 1e-6, 1e-6)


def _upsampled(imp: Importer, value: Value, axis: int, places: np.ndarray, mode: str) -> Value:
    """Return a tensor with one axis resized, as images with so many rows."""
    order = value.order()
    x, place = imp.arrange(value, order), 2 + order.index(axis)
    before, after = x.sizes[2:place], x.sizes[place + 1 :]
    rows = math.prod(before)
    image = imp.reshape(x, [rows, x.sizes[place], math.prod(after)])
    made = imp.add("Upsampling2D", image, size=[rows, len(places)], type=_TYPES[mode])
    return imp.like(value, order, imp.reshape(made, [*before, len(places), *after]))


def _interpolated(imp: Importer, value: Value, axis: int, places: np.ndarray, mode: str) -> Value:
    """Return a tensor with one axis resized by a table."""
    size, columns = value.shape[axis], np.arange(len(places))
    low = np.floor(places).astype(int)
    matrix = np.zeros((size, len(places)))
    matrix[low, columns] += 1 - (places - low)
    matrix[np.minimum(low + 1, size - 1), columns] += places - low
    order = value.order(axis)
    x = imp.arrange(value, order)
    rows = imp.reshape(x, [math.prod(x.sizes[2:-1]), size])
    made = imp.reshape(imp.formula("x @ y", x=rows, y=matrix), [*x.sizes[2:-1], len(places)])
    return imp.like(value, order, made)


@reads("DepthToSpace", "SpaceToDepth")
def _blocks(imp: Importer, node: Node) -> Value:
    value, order = images(imp, 2)
    mode = node.options.get("mode", b"DCR").decode()
    x, block = imp.arrange(value, order), node.options["blocksize"]
    return imp.like(value, order, imp.add(node.kind, x, block=block, order=mode))


# -- padding and repetition -----------------------------------------------------------------------


@reads("Pad")
def _pad(imp: Importer, node: Node) -> Value:
    value, rank = node.value(), node.value().ndim
    pads = node.axes() or node.options.get("paddings", [])
    axes = [node.axis(i, rank) for i in node.axes(3) or range(rank)]
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
    mode = node.options["mode"].decode()
    if mode == "constant":
        return _padded(imp, value, sides)
    if mode not in ("reflect", "edge", "wrap"):
        raise node.fail(f"no layer pads with mode {mode!r}.")
    for axis, side in sides.items():
        indices = np.pad(np.arange(value.shape[axis]), side, mode)
        value = pick(imp, value, axis, indices.tolist())
    return value


def _padded(imp: Importer, value: Value, sides: Mapping[int, tuple[int, int]]) -> Value:
    """Return a tensor with cells of one value around it; negative numbers remove cells."""
    for axis, side in sides.items():
        before, after = (max(0, -cells) for cells in side)
        value = slice_axis(imp, value, axis, before, value.shape[axis] - after)
    order = value.order()
    ends = [sides.get(axis, (0, 0)) for axis in order]
    padding = [(max(0, before), max(0, after)) for before, after in ends]
    if not any(map(any, padding)):
        return value
    x = imp.arrange(value, order)
    if any(padding[-1]):  # a layer pads all axes but the last
        x, padding = imp.reshape(x, [*x.sizes[2:], 1]), [*padding, (0, 0)]
    number = float(np.asarray(imp.node.constant(2, imp.node.options.get("value", 0.0))).item())
    largest = np.finfo(np.float32).max.item()  # stands for infinity
    number = float(np.clip(number, -largest, largest))
    made = imp.add("Padding", x, padding=as_padding(padding[:-1]), value=number)
    return imp.like(value, order, made)


@reads("Tile", "Expand")
def _repeat(imp: Importer, node: Node) -> Value:
    value, wanted = node.value(), [int(size) for size in node.constant(1)]
    rank = max(len(wanted), value.ndim)
    value = replace(value, axes=((),) * (rank - value.ndim) + value.axes)
    wanted = [1] * (rank - len(wanted)) + wanted
    if min(wanted) < 1:
        raise node.fail(f"expected numbers >= 1, got {imp.shown(wanted)}.")
    for axis, (size, count) in enumerate(zip(value.shape, wanted, strict=True)):
        if node.kind == "Expand" and size != 1 and count not in (1, size):
            raise node.fail(f"{imp.shown(value.shape)} cannot be expanded to {imp.shown(wanted)}.")
        if count > 1 and (node.kind == "Tile" or size == 1):
            if count == TIME and size == 1:
                value = imp.repeat_over_time(value, axis)
            elif count in (TIME, BATCH) or axis not in value.features:
                raise node.fail("no layer repeats time steps or sequences.")
            else:
                value = _repeated(imp, value, axis, count)
    return value


def _repeated(imp: Importer, value: Value, axis: int, count: int) -> Value:
    """Return repetitions of a tensor along an axis, by doubling."""
    if count == 1:
        return value
    half = _repeated(imp, value, axis, count // 2)
    return join(imp, [half, half, *[value] * (count % 2)], axis)
