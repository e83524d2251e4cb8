"""The structure of kernels: what of their loops' numbers and addresses is known when they compile.

That are strides of 0 and 1, arrays that are the same, those that nothing writes, and whether a
thread may access several elements of 16 bytes at once. Sizes and other strides are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from brainstorm.handlers.pycuda.groups import Group, Span, Walk, meet
from brainstorm.handlers.pycuda.launches import MANY
from brainstorm.optree.cuda_structure import Access, Structure

#: Bytes that an instruction of a thread accesses at most, at addresses that are multiples of them.
WIDEST = 16


def structure_of(group: Group) -> Structure:
    """Return what the kernel of a group is compiled from."""
    walks = group.walks
    index = "int" if max(walk.reach for walk in walks) < MANY else "ptrdiff_t"
    loops = tuple(walk.loop for walk in walks)
    return Structure(loops, tuple(_accesses(group)), index, group.by_rows, _lanes(group))


def _accesses(group: Group) -> Iterator[Access]:
    written = [span for walk in group.walks for span in walk.spans[len(walk.loop.reads) :]]
    before: list[Span] = []
    known: dict[tuple[object, ...], int] = {}
    number = 0
    for walk in group.walks:
        for k, (array, strides) in enumerate(zip(walk.loop.accessed, walk.strides, strict=True)):
            elements = (walk.pointers[k], array.type, strides, walk.spans[k])
            steps = tuple({0: "fixed", 1: "unit"}.get(step, "any") for step in strides)
            span = walk.spans[k : k + 1]
            is_constant, is_early = not meet(span, written), not meet(span, before)
            yield Access(known.setdefault(elements, number), steps, is_constant, is_early)
            number += 1
        if not group.by_rows:
            before += walk.spans[len(walk.loop.reads) :]


def _lanes(group: Group) -> int:
    """Return how many elements a thread of the kernel can do at once."""
    walks = group.walks
    if group.by_rows or any(walk.loop.reductions or walk.loop.file for walk in walks):
        return 1
    lanes = WIDEST // max(size for walk in walks for size in walk.item_sizes)
    return lanes if all(_fits(walk, lanes) for walk in walks) else 1


def _fits(walk: Walk, lanes: int) -> bool:
    """Return whether packs of elements of a loop lie together, where such a pack may lie."""
    *outer, inner = walk.sizes
    if outer and inner % lanes:
        return False
    for k, (*above, step) in enumerate(walk.strides):
        is_repeated = step == 0 and k < len(walk.loop.reads)
        begins = math.gcd(*above) % lanes or walk.pointers[k] % (lanes * walk.item_sizes[k])
        if not is_repeated and (step != 1 or begins):
            return False
    return True
