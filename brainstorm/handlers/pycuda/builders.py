"""Products, rows of tables and sequences: from arguments to launches.

Each function builds the operation with its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.images import biased

__all__ = ["add_picked"]


def dot_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    build.product(a, b, out, transa, transb)


def dot_add_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    build.product(a, b, out, transa, transb, add=True)


def pack_m(build: Building, b: Any, transb: bool = False) -> None:
    build.pack(b)


def dot_add_packed(build: Building, a: Any, b: Any, out: Any, transb: bool = False) -> None:
    is_packed = build.handler._compute == "bf16"
    build.product(a, b, out, transb=transb, add=True, is_packed=is_packed)


def batched_dot_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    stacks = (a.T if transa else a, b.T if transb else b, out)
    build.product(*(stack.transpose((1, 0, 2)) for stack in stacks))


def affine_mm(build: Building, a: Any, b: Any, bias: Any, out: Any, activation: str) -> None:
    build.product(a, b, out, transb=True)
    row = bias.reshape((1, bias.shape[0]))
    build.program(biased(activation), [out, row], [out])


# -- rows and sequences ----------------------------------------------------------------------------


def take_rows_mv(build: Building, m: DeviceArray, v: DeviceArray, out: DeviceArray) -> None:
    table, indices, target = build.dense(m), build.dense(v), build.target(out)
    build.elements("take_rows", [table, indices], target, (m.shape[0], v.size, m.shape[1], 0))


def add_rows_mv(build: Building, m: DeviceArray, v: DeviceArray, out: DeviceArray) -> None:
    rows, indices, target = build.dense(m), build.dense(v), build.target(out, keeps=True)
    add_picked(build, rows, indices, target, out.shape[0], m.shape[1])


def add_picked(
    build: Building, rows: DeviceArray, indices: DeviceArray, out: DeviceArray, size: int,
    inner: int,
) -> None:  # fmt: skip
    """Add out (outer, size, inner) += rows (outer, picks, inner), in the rows given by indices."""
    picks = indices.size
    following = build.temporary((picks,), np.int32)
    build.kernel("chain_rows", picks, indices, following, picks)
    sizes = (rows.size, size, picks, inner)
    build.kernel("add_rows", rows.size, rows, indices, following, out, *sizes)


def reverse_time(
    build: Building, x: DeviceArray, mask: DeviceArray | None, out: DeviceArray, add: bool = False
) -> None:
    steps, batch = x.shape[:2]
    source, target, lengths = build.dense(x), build.target(out, keeps=add), None
    if mask is not None and mask.size:
        lengths = build.temporary((batch,), np.int32)
        build.kernel("sequence_lengths", batch, build.dense(mask), lengths, steps, batch)
    width = max(1, x.size // max(1, steps * batch))
    build.elements("reverse_steps", [source, lengths], target, (steps, batch, width), add=add)


def ctc_loss(
    build: Building, x: DeviceArray, labels: DeviceArray, mask: DeviceArray | None,
    loss: DeviceArray, deltas: DeviceArray,
) -> None:  # fmt: skip
    steps, batch, classes = x.shape
    scores, label = build.dense(x), build.dense(labels)
    on = build.dense(mask) if mask is not None and mask.size else None
    losses, target = build.target(loss), build.target(deltas)
    sums = build.temporary((steps, batch))
    forward = build.temporary((batch, steps, 2 * steps + 1))
    backward = build.temporary((batch, 2, 2 * steps + 1))
    build.kernel("log_sums", steps * batch, scores, sums, steps * batch, classes)
    build.kernel(
        "align", batch, scores, label, on, sums, losses, target, forward, backward, steps, batch,
        classes, blocks=batch,
    )  # fmt: skip
