"""Which outputs of a program share memory with what it reads, and whether that matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from brainstorm.handlers.numpy_memory import address_of, byte_span, overlap
from brainstorm.utils import Array

#: (number of an output, number of an input or earlier output, bytes from this to the output) of all
#: that share memory. A program may read only some elements, so the distance matters.
Overlaps: TypeAlias = tuple[tuple[int, int, int], ...]


def find_overlaps(arrays: Sequence[Array], inputs: int) -> Overlaps:
    """Return which outputs share memory with an input or an earlier output, and where.

    Overlaps are rare: pairs are only compared if their ranges of bytes overlap. The first `inputs`
    of the arrays are inputs.
    """
    spans = [byte_span(array) for array in arrays]
    found = []
    for i in range(inputs, len(arrays)):
        start, stop = spans[i]
        for j in range(i):
            near = start < spans[j][1] and spans[j][0] < stop
            if near and overlap(arrays[i], arrays[j]):
                found.append((i - inputs, j, address_of(arrays[i]) - address_of(arrays[j])))
    return tuple(found)


def find_conflicts(stages: Sequence[Any], inputs: int, overlaps: Overlaps) -> set[int]:
    """Return the outputs that would be written before something else has been read."""
    found = {k for k, other, _ in overlaps if other >= inputs}
    pairs = {(inputs + k, other) for k, other, _ in overlaps}
    for s, stage in enumerate(stages if pairs else ()):
        for write, reads_all in zip(stage.writes, stage.reads_all, strict=True):
            for later, other in enumerate(stages[s:]):
                for read in other.reads:
                    if (write.base, read.base) in pairs:
                        shared = overlap(write.view, read.view)
                        if shared and (later or reads_all or shared != "same"):
                            found.add(write.base - inputs)
    return found
