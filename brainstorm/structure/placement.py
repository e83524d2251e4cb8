"""Placement: the positions of the hubs in the three buffers, for given T and B.

Hubs that always live follow each other. The others come after them and share memory if their
lifetimes do not overlap: the largest first, each in the smallest sufficient gap between the hubs
with overlapping lifetimes. That is "greedy by size" of Y. Pisarchyk and J. Lee, "Efficient memory
management for deep neural net inference" (2020, arXiv:2001.03288), section 5.2. For example, these
hubs take 160 values instead of 208::

    96 values, live from 0 to 3:   0 to 96
    64 values, live from 1 to 2:  96 to 160, behind the first one
    48 values, live from 3 to 5:  96 to 144: the second one no longer lives
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brainstorm.structure.hubs import Hub
from brainstorm.utils import product

#: Hubs start at multiples of this many bytes (a cache line, the width of a vector register).
ALIGNMENT = 64


def get_total_size_slices_and_shapes(
    hubs: Sequence[Hub], time: int, batch: int, item_size: int = 4, source: int = 1
) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, ...]]]:
    """Return the placement of the hubs in the three buffers.

    Args:
        hubs: The hubs of a layout.
        time: Sequence length T.
        batch: Batch size B.
        item_size: Bytes per value.
        source: The second sequence length S.

    Returns:
        The size of the constant, batch sized and time sized buffer; and for every hub its
        (start, stop) in the buffer of its type and the shape of its array. All in values.
    """
    shapes = [hub.get_shape(time, batch, source) for hub in hubs]
    sizes = [product(shape) for shape in shapes]
    totals, starts = place(hubs, sizes, item_size)
    return totals, [(a, a + n) for a, n in zip(starts, sizes, strict=True)], shapes


def place(hubs: Sequence[Hub], sizes: Sequence[int], item_size: int) -> tuple[list[int], list[int]]:
    """Return the sizes of the three buffers, and the start of each hub of `sizes` values."""
    step = ALIGNMENT // item_size
    capacities = [-(-size // step) * step for size in sizes]
    starts = [0] * len(hubs)
    totals = [0, 0, 0]
    for buffer_type in range(len(totals)):
        members = [i for i, hub in enumerate(hubs) if hub.buffer_type == buffer_type]
        totals[buffer_type] = _place(hubs, members, capacities, starts)
    return totals, starts


def _place(
    hubs: Sequence[Hub], members: Sequence[int], capacities: Sequence[int], starts: list[int]
) -> int:
    """Write the starts of the members of one buffer; return the end of the last."""
    end = 0
    for i in members:
        if hubs[i].lifetime is None:
            starts[i] = end
            end += capacities[i]
    base = end
    sharing = [i for i in members if hubs[i].lifetime is not None]
    placed: list[tuple[int, int, int, int]] = []  # start, stop, first and last position
    for i in sorted(sharing, key=lambda i: -capacities[i]):
        first, last = hubs[i].lifetime or (0, 0)
        starts[i] = _smallest_gap(
            capacities[i], base, [(a, b) for a, b, f, t in placed if f <= last and first <= t]
        )
        placed.append((starts[i], starts[i] + capacities[i], first, last))
        placed.sort()
        end = max(end, starts[i] + capacities[i])
    return end


def _smallest_gap(size: int, base: int, taken: Sequence[tuple[int, int]]) -> int:
    """Return where the smallest gap from `base` on starts that is large enough.

    `taken` is sorted (start, stop), which may overlap.
    """
    best, best_size, free = None, 0, base
    for start, stop in taken:
        if start - free >= size and (best is None or start - free < best_size):
            best, best_size = free, start - free
        free = max(free, stop)
    return free if best is None else best


def measure_bytes(
    hubs: Sequence[Hub], time: int, batch: int, item_size: int, source: int = 1
) -> int:
    """Return the exact number of bytes of all buffers for T, B and S."""
    totals, _, _ = get_total_size_slices_and_shapes(hubs, time, batch, item_size, source)
    return sum(totals) * item_size


def without_sharing(hubs: Sequence[Hub]) -> list[Hub]:
    """Return the hubs as if all of them always lived."""
    return [replace(hub, lifetime=None) for hub in hubs]
