"""Fusing: which loops of operations that follow each other become one kernel.

An operation leaves pieces: its loops, and launches of anything else. A loop joins another one of
the same `Group`, near enough before it; for that either of them may pass what lies between, if it
touches nothing that this writes and writes nothing that this touches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.groups import Group, Span, Walk, grouped, in_parts, meet
from brainstorm.handlers.pycuda.launches import Launch, looping_blocks, packed_launch
from brainstorm.handlers.pycuda.modules import loop_kernel
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree.cuda_structure import Structure, blocks_of, row_blocks

#: How many pieces before it a loop may pass.
MOST_PASSED = 32


class Piece(NamedTuple):
    """Loops that are one kernel, or another launch.

    Attributes:
        reads: What is read.
        writes: What is written, and may be read as well.
        group: The loops.
        walks: The loops as they were before they became a group.
        launch: The launch, if there are no loops.
        product: What it computes, if that is a product.
    """

    reads: Sequence[Span]
    writes: Sequence[Span]
    group: Group = Group(())
    walks: tuple[Walk, ...] = ()
    launch: Launch | None = None
    product: Product | None = None

    @classmethod
    def of_loop(cls, walk: Walk) -> Piece:
        """Return the piece of a loop."""
        reads = len(walk.loop.reads)
        return cls(walk.spans[:reads], walk.spans[reads:], Group((walk,)), (walk,))

    @property
    def may_recur(self) -> bool:
        """Whether it is a product by our kernel, with which a step of a recurrence begins."""
        return bool(self.product and self.launch and self.launch.kernel)

    @property
    def can_repeat(self) -> bool:
        """Whether it is loops, which give the same when they are done again."""
        adds = any(write.add for walk in self.walks for write in walk.loop.writes)
        return bool(self.walks) and not adds and not meet(self.writes, self.reads)

    def blocks(self, other: Piece) -> bool:
        """Return whether it must stay on its side of another one."""
        touched = (*other.reads, *other.writes)
        return meet(self.writes, touched) or meet(self.reads, other.writes)

    def joined(self, other: Piece) -> Piece | None:
        """Return this and another one, behind it, as one kernel; None: that cannot be."""
        walks = (*self.walks, *other.walks)
        group = None if self.launch or other.launch else grouped(walks)
        if group is None:
            return None
        reads, writes = (*self.reads, *other.reads), (*self.writes, *other.writes)
        return Piece(reads, writes, group, walks)


def fused(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the pieces, of which those are joined that can be, in an order that gives the same."""
    placed: list[Piece] = []
    for piece in _once(pieces):
        for part in _in_parts(piece, placed):
            _place(part, placed)
    return placed


def _in_parts(piece: Piece, placed: Sequence[Piece]) -> list[Piece]:
    """Return a copy as pieces that may be joined with the one that has written what it reads."""
    near = reversed(placed[-MOST_PASSED:]) if len(piece.walks) == 1 else ()
    writers = (other.walks for other in near if meet(other.writes, piece.reads))
    for before in next(writers, ()):
        if parts := in_parts(piece.walks[0], before):
            return [Piece.of_loop(part) for part in parts]
    return [piece]


def _once(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces, without those that would give again what is there."""
    given = list(pieces)
    spans = {span for piece in given for span in (*piece.reads, *piece.writes)}
    places = {address: i for i, address in enumerate(sorted({x for span in spans for x in span}))}
    written = np.zeros(len(places), int)  # when last, from each place to the next one
    done: dict[tuple[Walk, ...], int] = {}
    for time, piece in enumerate(given, 1):
        touched, writes = (
            [slice(places[start], places[stop]) for start, stop in some]
            for some in ((*piece.reads, *piece.writes), piece.writes)
        )
        since = done.get(piece.walks)
        if since is not None and all((written[part] <= since).all() for part in touched):
            continue
        for part in writes:
            written[part] = time
        if piece.can_repeat:
            done[piece.walks] = time
        yield piece


def _place(piece: Piece, placed: list[Piece]) -> None:
    """Add a piece: to one of the same memory, else to the first that it may be added to."""
    found: tuple[int, Piece, bool] | None = None
    passes = True
    for i in range(len(placed) - 1, max(-1, len(placed) - 1 - MOST_PASSED), -1):
        other, between = placed[i], placed[i + 1 :]
        if other.may_recur:
            break  # with what does not belong to it, a step would not be like the others
        is_near = passes or not any(map(other.blocks, between))
        if is_near and (joined := other.joined(piece)):
            found = i, joined, passes
            if meet((*other.reads, *other.writes), (*piece.reads, *piece.writes)):
                break
        passes = passes and not piece.blocks(other)
    if found is None:
        placed.append(piece)
        return
    place, joined, passes = found
    placed[place] = joined
    if not passes:
        placed.append(placed.pop(place))


def packed_numbers(walks: Sequence[Walk], structure: Structure) -> tuple[str, list[Any]]:
    """Return the numbers that a kernel of loops takes, and their format for `struct.pack`."""
    numbers = [n for walk in walks for row in (walk.sizes, *walk.strides) for n in row]
    types = [np.dtype(type_[0]) for loop in structure.loops for type_ in loop.constants]
    with np.errstate(over="ignore"):
        given = [x for walk in walks for x in walk.constants]
        values = [t.type(x) for t, x in zip(types, given, strict=True)]
    integers = f"{len(numbers)}{'i' if structure.index == 'int' else 'q'}"
    return f"{integers}{''.join(t.char for t in types)}", [*numbers, *values]


def launched(device: Device, piece: Piece) -> Launch:
    """Return the launch of a piece."""
    if piece.launch is not None:
        return piece.launch
    walks, by_rows = piece.group
    structure, parts = structure_of(piece.group), None
    addresses = [address for walk in walks for address in walk.pointers]
    lead = walks[structure.lead]
    if by_rows:
        blocks = row_blocks(lead.results, max(walk.terms for walk in walks))
    else:
        blocks = blocks_of(lead.loop, lead.sizes)
    if structure.is_shared:
        results = sum(len(walk.loop.reductions) for walk in walks) * lead.results
        chunks = blocks.chunks if blocks.chunks > 1 else 0  # one needs no place for its result
        parts = device.scratch("parts", 8 * results * chunks)
        addresses += [parts.address, device.tickets.address]
    form, numbers = packed_numbers(walks, structure)
    data = struct.pack(f"{len(addresses)}P{form}0P", *addresses, *numbers)
    count = -(-blocks.grid // structure.lanes)
    grid = looping_blocks(device, count) if blocks.chunks == 1 else count, blocks.chunks
    block = blocks.x, blocks.y, 1
    return packed_launch(device, loop_kernel(structure), grid, block, data, parts)
