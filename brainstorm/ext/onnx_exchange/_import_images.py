"""ONNX operators that make images of another size, without weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._import_weights import images
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._values import Value

__all__: list[str] = []


@reads("Pad")
def _pad(imp: Importer, node: Node) -> Value:
    value, rank = node.value(), len(node.value().axes)
    mode = node.options.get("mode", b"constant")
    if mode != b"constant":
        raise node.fail(f"no layer pads with mode {mode.decode()!r}, only with one number.")
    given = [int(i) % rank for i in node.axes(3) or range(rank)]
    pads = node.axes(1, "pads") or []
    if len(pads) != 2 * len(given):
        raise node.fail(f"expected two pads for each of {len(given)} axes, got {pads}.")
    sides = dict(zip(given, zip(pads[: len(given)], pads[len(given) :], strict=True), strict=True))
    wanted = [sides.get(i, (0, 0)) for i in range(rank)]
    if not any(map(any, wanted)):
        return value
    if any(map(any, wanted[:2])) or min(map(min, wanted)) < 0:
        raise node.fail(f"expected cells around (N, C, ...) images, got pads {pads}.")
    value, order, path, (*sizes, channels) = images(imp, node, rank - 2)
    padding = wanted[2:]
    size = [n + sum(side) for n, side in zip(sizes, padding, strict=True)]
    made = imp.add(node, "Padding", {"default": path}, [*size, channels],
                   padding=[list(s) for s in padding] if rank > 3 else list(padding[0]),
                   value=float(node.constant(2, node.options.get("value", 0.0))))  # fmt: skip
    return imp.like(value, order, made)


#: Options of Resize, and those of them that an `Upsampling2D` computes.
_RESIZED: dict[str, dict[str, tuple[str, ...]]] = {
    "nearest": {"coordinate_transformation_mode": ("asymmetric",), "nearest_mode": ("floor",)},
    "linear": {"coordinate_transformation_mode": ("half_pixel", "pytorch_half_pixel")},
}
_DEFAULTS = {"coordinate_transformation_mode": b"half_pixel", "nearest_mode": b"round_prefer_floor"}


@reads("Resize")
def _resize(imp: Importer, node: Node) -> Value:
    options = {**_DEFAULTS, **node.options}
    mode = options.get("mode", b"nearest").decode()
    known = _RESIZED.get(mode, {})
    got = {name: options[name].decode() for name in known}
    if not known or any(got[name] not in known[name] for name in known) or options.get("antialias"):
        raise node.fail(f"no layer interpolates with mode {mode!r} and {got}; those that do: "
                        f"{_RESIZED}.")  # fmt: skip
    if options.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise node.fail("no layer keeps the aspect ratio.")
    value, order, path, (*sizes, channels) = images(imp, node, 2)
    size = _wanted(node, value, sizes)
    if got["coordinate_transformation_mode"] == "pytorch_half_pixel" and 1 in size:
        raise node.fail("expected more than one row and column, where PyTorch's half pixels end.")
    made = imp.add(node, "Upsampling2D", {"default": path}, [*size, channels], size=size,
                   type="bilinear" if mode == "linear" else mode)  # fmt: skip
    return imp.like(value, order, made)


def _wanted(node: Node, value: Value, sizes: list[int]) -> list[int]:
    """Return the rows and columns that a Resize makes of an image."""
    axes = [i % 4 for i in node.options.get("axes", range(4))]
    given = node.axes(3) or [
        float(scale) * value.shape[axis]
        for axis, scale in zip(axes, np.ravel(node.constant(2, ())), strict=False)
    ]
    if len(given) != len(axes) or any(n < 1 or n % 1 for n in given):
        raise node.fail(f"expected scales or sizes that give whole sizes >= 1, got {given}.")
    size = {axis: int(n) for axis, n in zip(axes, given, strict=True)}
    if any(size.get(axis, value.shape[axis]) != value.shape[axis] for axis in (0, 1)):
        raise node.fail("no layer interpolates between sequences or channels.")
    return [size.get(axis, n) for axis, n in zip((2, 3), sizes, strict=True)]


@reads("DepthToSpace", "SpaceToDepth")
def _blocks(imp: Importer, node: Node) -> Value:
    value, order, path, (rows, columns, channels) = images(imp, node, 2)
    block = node.options.get("blocksize", 0)
    if block < 1:
        raise node.fail(f"expected a blocksize >= 1, got {block}.")
    area = block**2
    mode: Any = "DCR"  # the only one of SpaceToDepth
    features = [rows // block, columns // block, channels * area]
    if node.kind == "DepthToSpace":
        mode = node.options.get("mode", b"DCR").decode()
        features = [rows * block, columns * block, channels // area]
    made = imp.add(node, node.kind, {"default": path}, features, block=block, order=mode)
    return imp.like(value, order, made)
