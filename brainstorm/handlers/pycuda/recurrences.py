"""Recurrences: the steps of a walk through time as one launch.

In a walk, a few operations are repeated, each time at the next place in memory: products of few
rows with a small matrix, and loops over the rows. If the rows need nothing of each other (the
sequences of a batch), a block computes a row for all steps; its threads wait for each other, which
takes much less time than a launch, and keep the matrix in their registers. A larger matrix is kept
by a cluster of blocks, which can wait for each other too; each has some of the columns. It computes
the bits of the single operations.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from brainstorm.forks import cached_property
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece
from brainstorm.handlers.pycuda.groups import Rows, Span, meet
from brainstorm.handlers.pycuda.launches import Launch, packed_launch
from brainstorm.handlers.pycuda.modules import NAME, Kernel, named_kernel
from brainstorm.handlers.pycuda.recurrence_parts import (
    MOST_ROWS,
    MOST_TERMS,
    LoopsPart,
    Part,
    ProductPart,
    Team,
    blocks_for,
    part_of,
)

#: Pieces of a step at most, and steps at least.
MOST_PIECES, FEW_STEPS = 12, 4
#: Bytes of arguments: CUDA before 12.1 takes no more.
MOST_ARGUMENTS = 4096


def has_few_rows(device: Device, p: Product) -> bool:
    """Return whether a product can be computed by our kernel instead of cuBLAS."""
    if p.transa or p.batch > 1 or p.m > MOST_ROWS or p.k > MOST_TERMS:
        return False
    part = ProductPart(device, p)
    *factors, out = (array.span(p.m) for array in part.arrays)
    return part.blocks > 0 and not meet([out], factors)


def product_launch(device: Device, p: Product) -> Launch:
    """Return the launch of a product of few rows."""
    return Recurrence(device, p.m, 1, [ProductPart(device, p)], [(0, 0, 0)]).launch()


def recurrences(device: Device, pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces, of which those are one launch that are the steps of a recurrence."""
    part = functools.cache(lambda place, rows: part_of(device, pieces[place], rows))
    found: list[Piece] = []
    start = 0
    while start < len(pieces):
        walks = Recurrence.found(device, part, pieces, start)
        best = max(walks, key=lambda walk: (walk.fits, walk.length), default=None)
        run = pieces[start : start + (best.length if best else 1)]
        found += [best.piece(run)] if best and best.fits else run
        start += len(run)
    return found


class Recurrence:
    """The repeated parts of some steps.

    Args:
        device: The GPU.
        rows: How many rows there are.
        steps: How many steps there are.
        parts: Those of the first step.
        moves: For each part, bytes to the next step, for each of its pointers.

    Attributes:
        length: How many pieces it is.
    """

    def __init__(
        self, device: Device, rows: int, steps: int, parts: Sequence[Part],
        moves: Sequence[tuple[int, ...]],
    ) -> None:  # fmt: skip
        self.device, self.rows, self.steps = device, rows, steps
        self.parts, self.moves = parts, moves
        self.terms = max(part.terms for part in parts)
        self.length = steps * len(parts)
        self._arrays = [
            [array._replace(move=move) for array, move in zip(part.arrays, row, strict=True)]
            for part, row in zip(parts, moves, strict=True)
        ]
        self._written = [array for arrays in self._arrays for array in arrays if array.is_written]

    @classmethod
    def found(
        cls, device: Device, part: Any, pieces: Sequence[Piece], start: int
    ) -> Iterator[Recurrence]:
        """Yield the recurrences that may begin with some piece, those of few parts first.

        Args:
            device: The GPU.
            part: Returns the part for the place of a piece and a number of rows, or None.
            pieces: All pieces.
            start: Place of the first one.
        """
        first = pieces[start].product
        if first is None or not pieces[start].may_recur:
            return

        def step(number: int, cycle: int) -> list[Part | None]:
            places = range(start + number * cycle, start + (number + 1) * cycle)
            return [part(place, first.m) if place < len(pieces) else None for place in places]

        known: list[tuple[int, int]] = []
        for cycle in range(1, MOST_PIECES + 1):
            parts = [one for one in step(0, cycle) if one]
            if len(parts) < cycle:
                return
            if any(cycle % n == 0 and cycle * FEW_STEPS <= length for n, length in known):
                continue  # several of its steps at a time
            moves, steps = _moves(parts, step(1, cycle)), 2
            while moves and _moves(step(steps - 1, cycle), step(steps, cycle)) == moves:
                steps += 1
            if moves and steps >= FEW_STEPS:
                walk = cls(device, first.m, steps, parts, moves)
                known += [(cycle, walk.length)] * walk.fits
                yield walk

    def _span(self, array: Rows) -> Span:
        return array.span(self.rows, self.steps)

    @property
    def _format(self) -> str:
        forms = (
            f"{len(part.pointers)}P{len(part.pointers)}q{part.numbers[0]}0P" for part in self.parts
        )
        return f"i{''.join(forms)}"

    @cached_property
    def fits(self) -> bool:
        """Whether no row needs anything of another one, and a launch takes the arguments."""
        return struct.calcsize(self._format) <= MOST_ARGUMENTS and all(
            written.keep_to_rows(other, self.rows)
            for written in self._written
            for arrays in self._arrays
            for other in arrays
            if meet([self._span(written)], [self._span(other)])
        )

    @cached_property
    def _is_constant(self) -> list[list[bool]]:
        """For each part, which of its arrays no step writes."""
        spans = list(map(self._span, self._written))
        return [
            [not meet([self._span(array)], spans) for array in arrays] for arrays in self._arrays
        ]

    def _kept(self, team: Team) -> list[tuple[int, int] | None]:
        """Return for each part how many elements of its matrix are kept; see `ProductPart.kept`.

        None: it has no matrix, or one that changes, or there is no more room.
        """
        found: list[tuple[int, int] | None] = []
        held, room = 0, self.device.shared // 4 - self.terms
        parts = zip(self.parts, self._is_constant, self.moves, strict=True)
        for part, is_constant, moves in parts:
            kept = None
            if isinstance(part, ProductPart) and is_constant[1] and not moves[1]:
                kept = part.kept(team, held, room)
            found.append(kept)
            held, room = (held + kept[0], room - kept[1]) if kept else (held, room)
        return found

    @cached_property
    def _team(self) -> Team:
        """As few blocks as can keep most matrices."""
        threads, least = (
            max(getattr(part, name) for part in self.parts) for name in ("threads", "blocks")
        )
        loops = [part.walks[0].sizes[1] for part in self.parts if isinstance(part, LoopsPart)]
        products = [part.product.n for part in self.parts if isinstance(part, ProductPart)]
        units = min(loops or products)
        choices = (
            Team(blocks, threads, units)
            for blocks in blocks_for(self.device, self.rows)
            if blocks >= least
        )
        return max(choices, key=lambda team: sum(map(bool, self._kept(team))))

    def _stays_in_columns(self, place: int) -> bool:
        """Return whether a part and the next one meet in no memory but in the same units."""
        unit = 4 * self._team.units

        def is_in_units(place: int, k: int) -> bool:
            part, array = self.parts[place], self._arrays[place][k]
            is_divided = isinstance(part, ProductPart) or array.width == unit
            offsets = array.width, array.step, array.move
            return part.in_columns[k] and is_divided and not any(n % unit for n in offsets)

        def meet_in_a_step(one: Rows, other: Rows) -> bool:
            steps = 1 if one.move == other.move else self.steps
            spans = ([array.span(self.rows, steps)] for array in (one, other))
            return (one.is_written or other.is_written) and meet(*spans)

        return all(
            is_in_units(place, i)
            and is_in_units(place + 1, j)
            and (one.start - other.start) % unit == 0
            for i, one in enumerate(self._arrays[place])
            for j, other in enumerate(self._arrays[place + 1])
            if meet_in_a_step(one, other)
        )

    def _barriers(self) -> Iterator[int]:
        """Yield after each part how many blocks of a cluster wait for each other."""
        blocks, before = self._team.blocks, self._team.blocks
        for place in range(len(self.parts)):
            # Of two barriers one is of all, so that what lies further apart is in order.
            is_last = place == len(self.parts) - 1
            stays = before == blocks and not is_last and self._stays_in_columns(place)
            yield (before := 1 if stays else blocks)

    def launch(self) -> Launch:
        """Return the launch of all steps."""
        team, texts, begin, calls, values, used = self._team, [], [], [], [self.steps], 0
        for k, (part, kept) in enumerate(zip(self.parts, self._kept(team), strict=True)):
            name = f"{NAME}_{k}"
            texts.append(part.source(name, team, self._is_constant[k]))
            mine, shared = kept or (0, 0)
            before, call = part.calls(name, team, kept and (mine, used))
            begin.append(before)
            calls.append(call)
            used += shared
            values += [*part.pointers, *self.moves[k], *part.numbers[1]]
        calls = [
            f"{call}\nwait_for_cluster<{blocks}>();"
            for call, blocks in zip(calls, self._barriers(), strict=True)
        ]
        kind = "steps" if self.steps > 1 else "few_rows"
        kernel = _kernel(kind, team, self.terms, tuple(texts), tuple(begin), tuple(calls))
        grid, block = (self.rows * team.blocks, 1), (team.threads, 1, 1)
        data = struct.pack(self._format, *values)
        return packed_launch(self.device, kernel, grid, block, data, shared=4 * used)

    def piece(self, run: Sequence[Piece]) -> Piece:
        """Return the launch of all steps, given the pieces that it does."""
        reads = [span for piece in run for span in piece.reads]
        writes = [span for piece in run for span in piece.writes]
        return Piece(reads, writes, launch=self.launch())


def _moves(
    before: Sequence[Part | None], after: Sequence[Part | None]
) -> list[tuple[int, ...]] | None:
    """Return for the parts of a step how far those of the next one are; None: they are others."""
    found = []
    for one, other in zip(before, after, strict=True):
        if one is None or other is None or one.form != other.form:
            return None
        pairs = zip(one.pointers, other.pointers, strict=True)
        found.append(tuple(there - here for here, there in pairs))
    return found


@functools.lru_cache(maxsize=256)
def _kernel(
    kind: str, team: Team, terms: int,
    texts: tuple[str, ...], begin: tuple[str, ...], calls: tuple[str, ...],
) -> Kernel:  # fmt: skip
    """Return the kernel of what is done at the beginning, and for each step."""
    blocks = team.blocks
    members = " ".join(f"{NAME}_{k}_arguments {NAME}_{k};" for k in range(len(texts)))
    lines = [
        *texts,
        f"struct {NAME}_arguments {{ int steps; {members} }};",
        'extern "C" __global__',
        *[f"__cluster_dims__({blocks}, 1, 1)"] * (blocks > 1),
        f"__launch_bounds__({team.threads})",
        f"void {NAME}(const {NAME}_arguments a) {{",
        f"__shared__ float terms[{terms}];",
        "extern __shared__ float shared[];",
        f"const int row = blockIdx.x / {blocks};",
        *filter(None, begin),
        "for (ptrdiff_t step = 0; step < a.steps; step++) {",
        *calls,
        "}",
        "}",
    ]
    return named_kernel(kind, ["products"], "\n".join(lines) + "\n")
