"""Products, rows of tables and sequences: from arguments to launches.

Each function builds the operation with its name.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.images import biased
from brainstorm.optree import formula
from brainstorm.optree import functions as fn

_log_softmax = formula(lambda x: fn.log_softmax(x, 2))
#: How many indices a block sorts; as in rows.cu.
TILE = 2048


dot_mm = Building.product
dot_add_mm = functools.partial(Building.product, add=True)
dot_add_packed = functools.partial(Building.product, add=True, is_repeated=True)


def batched_dot_mm(
    build: Building, a: Any, b: Any, out: Any, transa: bool = False, transb: bool = False
) -> None:
    """Build out[:, g] = a[:, g] @ b[:, g]."""
    stacks = (a.T if transa else a, b.T if transb else b, out)
    build.product(*(stack.transpose((1, 0, 2)) for stack in stacks))


def affine_mm(build: Building, a: Any, b: Any, bias: Any, out: Any, activation: str) -> None:
    """Build out = activation(a @ b.T + bias)."""
    build.product(a, b, out, transb=True)
    row = bias.reshape((1, bias.shape[0]))
    build.program(biased(activation), [out, row], [out])


# -- rows and sequences ----------------------------------------------------------------------------


def take_rows_mv(build: Building, m: DeviceArray, v: DeviceArray, out: DeviceArray) -> None:
    """Build out = the rows of m at the indices v."""
    take_picked(build, m, v, build.target(out))


def add_rows_mv(build: Building, m: DeviceArray, v: DeviceArray, out: DeviceArray) -> None:
    """Build the addition of the rows of m to those of out at the indices v."""
    add_picked(build, m, v, build.target(out, keeps=True))


def indices_for(build: Building, indices: DeviceArray) -> tuple[DeviceArray, int]:
    """Return indices as kernels take them, and whether they are floats; else they are int64."""
    if indices.dtype in (np.float32, np.int64):
        return build.dense(indices), int(indices.dtype == np.float32)
    converted = build.temporary(indices.shape, np.int64)
    build.copy(indices, converted)
    return converted, 0


def take_picked(
    build: Building, table: DeviceArray, indices: DeviceArray, out: DeviceArray, axis: int = 0,
    each: bool = False, wraps: bool = False,
) -> None:  # fmt: skip
    """Add a loop over what indices pick along an axis, or for `each` element of out; see rows.cu.

    If it `wraps`, negative indices count from the end.

    Raises:
        HandlerValidationError: The table has no rows.
    """
    if out.size and not table.size:
        raise HandlerValidationError(
            f"{build.name} on a GPU: expected a table with rows to look up, got {table!r}. Look "
            f"nothing up in it, or give it rows."
        )
    places, is_float = indices_for(build, indices)
    size, picks = table.shape[axis], out.shape[axis] if each else indices.size
    numbers = size, picks, math.prod(table.shape[axis + 1 :]), each, is_float, size * wraps
    build.elements("take_rows", [build.dense(table), places], out, numbers)


def add_picked(
    build: Building, values: DeviceArray, indices: DeviceArray, out: DeviceArray, axis: int = 0,
    wraps: bool = False,
) -> None:  # fmt: skip
    """Add out (outer, size, inner) += values (outer, picks, inner), in the rows given by indices.

    If it `wraps`, negative indices count from the end. The indices are sorted. Each chunk of them,
    about the square root of their number, is summed up by other threads than the next one, so that
    none adds up all rows of an index that is frequent.
    """
    if not values.size:
        return
    picks, size, inner = indices.size, out.shape[axis], math.prod(out.shape[axis + 1 :])
    rows, back = build.dense(values), size * wraps
    places, is_float = indices_for(build, indices)
    pairs, other = (build.temporary((picks,), np.uint64) for _ in range(2))
    build.kernel(
        "sort_tiles", picks, places, pairs, picks, size, is_float, back, blocks=-(-picks // TILE)
    )
    width = TILE
    while width < picks:
        build.kernel("merge_runs", picks, pairs, other, picks, width)
        pairs, other, width = other, pairs, 2 * width
    chunk, columns = max(32, 1 << picks.bit_length() // 2), rows.size // picks
    chunks = -(-picks // chunk)
    parts = build.temporary((chunks, 2, columns))
    sizes = (size, picks, inner, chunk)
    build.kernel("add_segments", rows.size, rows, pairs, parts, out, rows.size, *sizes)
    several = (chunks - 1) * columns
    build.kernel("add_parts", several, pairs, parts, out, several, *sizes, columns)


def reverse_time(
    build: Building, x: DeviceArray, mask: DeviceArray | None, out: DeviceArray, add: bool = False
) -> None:
    """Build out = x with the time steps of each sequence reversed."""
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
    """Build the losses, and their derivatives by the scores."""
    steps, batch, classes = x.shape
    scores, label, log_p = build.dense(x), build.dense(labels), build.temporary(x.shape)
    on = build.dense(mask) if mask is not None and mask.size else None
    losses, target = build.target(loss), build.target(deltas)
    forward = build.temporary((batch, steps, 2 * steps + 1))
    backward = build.temporary((batch, 2, 2 * steps + 1))
    build.program(_log_softmax, [scores], [log_p])
    build.kernel(
        "align", batch, log_p, label, on, losses, target, forward, backward, steps, batch, classes,
        blocks=batch,
    )  # fmt: skip
