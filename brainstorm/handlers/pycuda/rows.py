"""Loops that one kernel can do row by row: finding loops over the same rows.

A softmax is three loops: the maximum of each row, the sum of the exponentials, the quotients. Each
loop reads results of the earlier ones only in the same row, so only the threads of a row need to
wait for each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from brainstorm.handlers.specialized_program import Loops
from brainstorm.optree.loops import C_TYPES, Loop, Read, Write
from brainstorm.optree.render_cuda import MOST_SHARED, blocks_of, shares

__all__ = ["Walk", "grouped", "walks_of"]

#: Maximum number of terms of a row that a block processes alone.
MOST_TERMS = 8192

_SIZES = {name: dtype.itemsize for dtype, name in C_TYPES.items()}


class Walk(NamedTuple):
    """A loop with sizes, strides and addresses.

    Attributes:
        loop: The loop.
        sizes: Sizes of its axes.
        strides: Strides of each array on each axis, in elements.
        pointers: Addresses of the arrays.
        constants: The numbers that it uses.
    """

    loop: Loop
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    pointers: tuple[int, ...]
    constants: tuple[float, ...]

    @property
    def terms(self) -> int:
        """Number of elements in a row; the first axis is that of rows."""
        return math.prod(self.sizes[1:])


def walks_of(part: Loops, pointers: np.ndarray) -> Iterator[Walk]:
    """Yield the loops of a program's part with their numbers."""
    numbers, addresses = part.numbers.tolist(), pointers.tolist()
    p = n = 0
    for loop in part.loops:
        n, rank = n + 2, loop.rank  # threads and chunks are for the CPU
        end = n + loop.extents
        stop = end + len(loop.constants)
        extents = [tuple(numbers[i : i + rank]) for i in range(n, end, rank)]
        values = part.numbers[end:stop].view(np.float64).tolist()
        places = tuple(addresses[p : p + loop.arrays])
        yield Walk(loop, extents[0], tuple(extents[1:]), places, tuple(values))
        p, n = p + loop.arrays, stop


def grouped(walks: Sequence[Walk]) -> Iterator[list[Walk]]:
    """Yield groups of loops for one kernel each, in order; most groups have one loop."""
    rest = list(walks)
    while rest:
        group = _rows_ahead(rest)
        yield group if len(group) > 1 else rest[:1]
        del rest[: len(group)]


def _rows_ahead(walks: Sequence[Walk]) -> list[Walk]:
    """Return the longest run of loops at the start over the same rows, at least one."""
    rows = next((w.sizes[0] for w in walks if _reduces_rows(w)), 0)
    group: list[Walk] = []
    reductions = 0
    for walk in walks:
        shaped = _by_rows(walk, rows)
        if shaped is None or not all(_keeps_to_rows(before, shaped) for before in group):
            break
        reductions += sum(bool(write.reduction) for write in walk.loop.writes)
        if reductions > MOST_SHARED:
            break
        group.append(shaped)
    return group if any(map(_reduces_rows, group)) else list(walks[:1])


def _reduces_rows(walk: Walk) -> bool:
    """Return whether a loop reduces each row to one element, with enough work for a block."""
    is_first_kept = walk.loop.reduced[0] is False and all(walk.loop.reduced[1:])
    return (
        walk.loop.kind == "rows"
        and is_first_kept
        and shares(walk.loop)
        and blocks_of(walk.loop, walk.sizes).chunks == 1
    )


def _by_rows(walk: Walk, rows: int) -> Walk | None:
    """Return the loop with the rows as its first axis; None if that is not possible."""
    if not rows or walk.terms * walk.sizes[0] > MOST_TERMS * rows:
        return None
    if any(walk.loop.reduced):
        return walk if _reduces_rows(walk) and walk.sizes[0] == rows else None
    if walk.sizes[0] == rows:
        return walk
    if walk.loop.rank > 1 or walk.sizes[0] % rows:
        return None
    inner = walk.sizes[0] // rows
    return walk._replace(
        loop=dataclasses.replace(walk.loop, reduced=(False, False)),
        sizes=(rows, inner),
        strides=tuple((step * inner, step) for (step,) in walk.strides),
    )


class _Span(NamedTuple):
    """Bytes of an array that a loop accesses: in the first row, between rows, and altogether."""

    start: int
    stop: int
    step: int
    end: int


def _span(walk: Walk, array: int) -> _Span:
    accessed: list[Read | Write] = [*walk.loop.reads, *walk.loop.writes]
    size = _SIZES[accessed[array].type]
    reach = [step * (n - 1) * size for step, n in zip(walk.strides[array], walk.sizes, strict=True)]
    start = walk.pointers[array] + sum(min(distance, 0) for distance in reach[1:])
    stop = walk.pointers[array] + sum(max(distance, 0) for distance in reach[1:]) + size
    return _Span(start, stop, walk.strides[array][0] * size, stop + max(reach[0], 0))


def _keeps_to_rows(before: Walk, after: Walk) -> bool:
    """Return whether two loops share only elements of the same row, if one of them writes."""
    reads = len(before.loop.reads), len(after.loop.reads)
    for i in range(before.loop.arrays):
        for j in range(after.loop.arrays):
            if i < reads[0] and j < reads[1]:
                continue
            a, b = _span(before, i), _span(after, j)
            if min(a.step, b.step) < 0:
                return False
            if a.start < b.end and b.start < a.end:
                length = max(a.stop, b.stop) - min(a.start, b.start)
                if a.step != b.step or (length > a.step and before.sizes[0] > 1):
                    return False
    return True
