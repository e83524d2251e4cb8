"""Recurrences: the steps of a walk through time as one launch.

In a walk, a few operations are repeated, each time at the next place in memory: products of few
rows with a small matrix, and loops over the rows. If the rows need nothing of each other (the
sequences of a batch), a block computes a row for all steps; its threads wait for each other, which
takes much less time than a launch. It computes the bits of the single operations.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece
from brainstorm.handlers.pycuda.groups import Group, Span, Walk, meet, split
from brainstorm.handlers.pycuda.launches import Launch, packed_launch
from brainstorm.handlers.pycuda.modules import Kernel
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree.render_cuda import render_step

#: Threads for a row, and the largest numbers of rows and of terms, as in products.cu.
ROW_THREADS, MOST_ROWS, MOST_TERMS = 512, 128, 2048
#: Elements of the matrix: each block reads all of them, which should stay in its cache.
MOST_ELEMENTS = 48 * 1024
#: Bytes that the threads of a block share for a product, besides the matrix.
SHARED = 4 * (MOST_TERMS + ROW_THREADS // 32 * 128)
#: Pieces of a step at most, and steps at least.
MOST_PIECES, FEW_STEPS = 8, 4


def has_few_rows(p: Product) -> bool:
    """Return whether a product can be computed by `few_rows` instead of cuBLAS."""
    if p.transa or p.half or p.batch > 1 or p.m > MOST_ROWS or p.k > MOST_TERMS:
        return False
    *factors, out = (array.span(p.m, 1) for array in _arrays_of(p))
    return p.n * p.k <= MOST_ELEMENTS and not meet([out], factors)


def product_launch(device: Device, p: Product) -> Launch:
    """Return the launch of a product of few rows."""
    numbers = (p.n, p.k, p.lda, p.ldb, p.ldc, p.transb, p.add)
    data = struct.pack("3P7i", p.a, p.b, p.out, *numbers)
    kernel = Kernel("few_rows", ["products"])
    return packed_launch(device, kernel, (p.m, 1), (ROW_THREADS, 1, 1), data)


class _Array(NamedTuple):
    """What a part of the first step accesses of an array, and where the next one does.

    Attributes:
        start: The first address.
        width: Bytes from there to the end of the first row; of all, if there is but one for all.
        step: Bytes between rows; 0: the same for all rows.
        is_written: Whether it is written.
        move: Bytes to the next step.
    """

    start: int
    width: int
    step: int
    is_written: bool
    move: int = 0

    def span(self, rows: int, steps: int) -> tuple[int, int]:
        """Return between which addresses all rows and steps access it."""
        reach = self.step * (rows - 1), self.move * (steps - 1)
        below, above = (sum(limit(0, distance) for distance in reach) for limit in (min, max))
        return self.start + below, self.start + self.width + above

    def keeps_to_rows(self, other: _Array, rows: int) -> bool:
        """Return whether no row of this overlaps another row of another one, in any step."""
        period = self.step * rows
        if rows == 1:
            return True
        if self.step <= 0 or self.step != other.step or self.move % period or other.move % period:
            return False
        apart = (other.start - self.start) % period
        return any(
            max(self.width, place + other.width) - min(place, 0) <= self.step
            for place in (apart, apart - period)
        )


def _arrays_of(p: Product) -> list[_Array]:
    """Return both factors and the result of a product."""
    rows, columns = (p.n, p.k) if p.transb else (p.k, p.n)
    return [
        _Array(p.a, 4 * p.k, 4 * p.lda, False),
        _Array(p.b, 4 * (p.ldb * (rows - 1) + columns), 0, False),
        _Array(p.out, 4 * p.n, 4 * p.ldc, True),
    ]


class ProductPart:
    """A product of a step.

    Attributes:
        form: What is the same in all steps.
        pointers: Addresses, which may move.
        arrays: What is accessed, in the order of the pointers.
        matrix: Rows and columns of the second factor.
        numbers: The arguments behind the pointers and moves, as `struct.pack` takes them.
    """

    numbers: tuple[str, tuple[Any, ...]] = "", ()

    def __init__(self, p: Product) -> None:
        self.product = p
        self.form = p._replace(a=0, b=0, out=0)
        self.pointers = p.a, p.b, p.out
        self.arrays = _arrays_of(p)
        self.matrix = (p.n, p.k) if p.transb else (p.k, p.n)

    def source(self, name: str, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs."""
        return f"struct {name}_arguments {{ char *p[3]; ptrdiff_t d[3]; }};\n"

    def call(self, name: str, kept: int | None = None) -> str:
        """Return the text that does it, for `row` and `step`, with the arguments ``a.<name>``.

        Args:
            name: The name.
            kept: Where the matrix begins in the memory that threads share; None: it is not there.
        """
        p = self.product
        a, b, out = (
            f"({const}float *)(a.{name}.p[{k}] + step * a.{name}.d[{k}])"
            for k, const in enumerate(("const ", "const ", ""))
        )
        ldb = p.ldb
        if kept is not None:
            b, ldb = f"kept + {kept}", self.matrix[1]
        flags = ", ".join(str(bool(flag)).lower() for flag in (p.transb, p.add))
        return (
            f"product_of_row({a} + row * (ptrdiff_t){p.lda}, {b},\n"
            f"{out} + row * (ptrdiff_t){p.ldc}, {p.n}, {p.k}, {ldb}, {flags});"
        )

    def keeping(self, name: str, kept: int) -> str:
        """Return the text that copies the matrix to the memory that threads share."""
        rows, columns = self.matrix
        return (
            f"for (int i = threadIdx.x; i < {rows * columns}; i += ROW_THREADS)\n"
            f"kept[{kept} + i] = ((const float *)a.{name}.p[1])"
            f"[i / {columns} * (ptrdiff_t){self.product.ldb} + i % {columns}];"
        )


class LoopsPart:
    """Loops of a step, side by side; see `ProductPart`."""

    def __init__(self, walks: Sequence[Walk]) -> None:
        self.walks = walks
        structure = structure_of(Group(tuple(walks)))
        self.structure = dataclasses.replace(structure, lanes=1)
        forms = [(walk.sizes, walk.strides, walk.constants) for walk in walks]
        self.form = self.structure, tuple(forms)
        self.pointers = tuple(address for walk in walks for address in walk.pointers)
        self.arrays = list(self._arrays())

    def _arrays(self) -> Iterator[_Array]:
        for walk in self.walks:
            for k in range(walk.loop.arrays):
                start, stop = walk.span(k, 1)
                yield _Array(start, stop - start, walk.steps(k)[0], k >= len(walk.loop.reads))

    def source(self, name: str, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs."""
        accesses = [
            access._replace(is_constant=constant)
            for access, constant in zip(self.structure.accesses, is_constant, strict=True)
        ]
        return render_step(dataclasses.replace(self.structure, accesses=tuple(accesses)), name)

    def call(self, name: str) -> str:
        """Return the text that does it; see `ProductPart`."""
        return f"{name}(a.{name}, step, row);"

    @property
    def numbers(self) -> tuple[str, tuple[Any, ...]]:
        """The arguments behind the pointers and moves, as `struct.pack` takes them."""
        given = [n for walk in self.walks for row in (walk.sizes, *walk.strides) for n in row]
        types = [np.dtype(t[0]) for loop in self.structure.loops for t in loop.constants]
        constants = [x for walk in self.walks for x in walk.constants]
        values = [t.type(x) for t, x in zip(types, constants, strict=True)]
        index = "i" if self.structure.index == "int" else "q"
        return f"{len(given)}{index}{''.join(t.char for t in types)}", (*given, *values)


Part: TypeAlias = ProductPart | LoopsPart


def _is_ours(piece: Piece) -> bool:
    """Return whether a piece is a product by `few_rows`."""
    return bool(piece.product and piece.launch and piece.launch.kernel)


def _part(piece: Piece, rows: int) -> Part | None:
    """Return a piece as a part of a step of so many rows; None: it cannot be one."""
    if piece.product is not None:
        return ProductPart(piece.product) if _is_ours(piece) and piece.product.m == rows else None
    walks = [split(walk, (rows, walk.results // rows)) for walk in piece.group.walks]
    shaped = [walk for walk in walks if walk is not None and not walk.loop.file]
    if piece.launch or piece.group.by_rows or not shaped or len(shaped) < len(walks):
        return None
    if any(walk.reductions for walk in shaped) or len({walk.sizes for walk in shaped}) > 1:
        return None
    return LoopsPart(shaped)


def recurrences(device: Device, pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces, of which those are one launch that are the steps of a recurrence."""
    part = functools.cache(lambda place, rows: _part(pieces[place], rows))
    found: list[Piece] = []
    start = 0
    while start < len(pieces):
        walk = Recurrence.found(part, pieces, start)
        run = pieces[start : start + (walk.steps * len(walk.parts) if walk else 1)]
        found += [walk.piece(device, run)] if walk and walk.keeps_to_rows() else run
        start += len(run)
    return found


class Recurrence:
    """The repeated parts of some steps.

    Args:
        rows: How many rows there are.
        steps: How many steps there are.
        parts: Those of the first step.
        moves: For each part, bytes to the next step, for each of its pointers.
    """

    def __init__(
        self, rows: int, steps: int, parts: Sequence[Part], moves: Sequence[tuple[int, ...]]
    ) -> None:
        self.rows, self.steps, self.parts, self.moves = rows, steps, parts, moves
        self._arrays = [
            [array._replace(move=move) for array, move in zip(part.arrays, row, strict=True)]
            for part, row in zip(parts, moves, strict=True)
        ]
        self._all = [array for arrays in self._arrays for array in arrays]
        self._written = [array for array in self._all if array.is_written]

    @classmethod
    def found(cls, part: Any, pieces: Sequence[Piece], start: int) -> Recurrence | None:
        """Return the recurrence of the fewest parts from some piece on, if there is one.

        Args:
            part: Returns the part for the place of a piece and a number of rows, or None.
            pieces: All pieces.
            start: Place of the first one.
        """
        first = pieces[start].product
        if first is None or not _is_ours(pieces[start]):
            return None

        def step(number: int, cycle: int) -> list[Part | None]:
            places = range(start + number * cycle, start + (number + 1) * cycle)
            return [part(place, first.m) if place < len(pieces) else None for place in places]

        for cycle in range(1, MOST_PIECES + 1):
            parts = [one for one in step(0, cycle) if one]
            if len(parts) < cycle:
                return None
            moves, steps = _moves(parts, step(1, cycle)), 2
            while moves and _moves(step(steps - 1, cycle), step(steps, cycle)) == moves:
                steps += 1
            if moves and steps >= FEW_STEPS:
                return cls(first.m, steps, parts, moves)
        return None

    def _span(self, array: _Array) -> Span:
        return array.span(self.rows, self.steps)

    def keeps_to_rows(self) -> bool:
        """Return whether no row needs anything of another one."""
        return all(
            written.keeps_to_rows(other, self.rows)
            for written in self._written
            for other in self._all
            if meet([self._span(written)], [self._span(other)])
        )

    def kernel(self, room: int) -> tuple[Kernel, bytes, int]:
        """Return the kernel, its arguments, and how many numbers its threads share.

        Args:
            room: How many numbers they can share, besides those of a product.
        """
        spans = list(map(self._span, self._written))
        texts, begin, calls, formats, values = [], [], [], ["i"], [self.steps]
        kept = 0
        for k, (part, arrays, moves) in enumerate(
            zip(self.parts, self._arrays, self.moves, strict=True)
        ):
            name = f"STEPS_{k}"
            is_constant = [not meet([self._span(array)], spans) for array in arrays]
            texts.append(part.source(name, is_constant))
            if isinstance(part, ProductPart) and not moves[1]:
                size = math.prod(part.matrix)
                has_room = kept + size <= room
                begin += [part.keeping(name, kept)] * has_room
                calls.append(part.call(name, kept if has_room else None))
                kept += size * has_room
            else:
                calls.append(part.call(name))
            form, numbers = part.numbers
            formats.append(f"{len(moves)}P{len(moves)}q{form}0P")
            values += [*part.pointers, *moves, *numbers]
        kernel = _kernel(tuple(texts), tuple(begin), tuple(calls))
        return kernel, struct.pack("".join(formats), *values), kept

    def piece(self, device: Device, run: Sequence[Piece]) -> Piece:
        """Return the launch of all steps, given the pieces that it does."""
        kernel, data, kept = self.kernel((device.shared - SHARED) // 4)
        keep = [piece.keep for piece in run]
        grid, block = (self.rows, 1), (ROW_THREADS, 1, 1)
        launch = packed_launch(device, kernel, grid, block, data, keep, 4 * kept)
        reads = [span for piece in run for span in piece.reads]
        writes = [span for piece in run for span in piece.writes]
        return Piece(reads, writes, keep, launch=launch)


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
def _kernel(texts: tuple[str, ...], begin: tuple[str, ...], calls: tuple[str, ...]) -> Kernel:
    """Return the kernel of what is done at the beginning, and for each step.

    The names of structures and functions begin with ``STEPS_``.
    """
    members = " ".join(f"STEPS_{k}_arguments STEPS_{k};" for k in range(len(texts)))
    lines = [
        *texts,
        f"struct STEPS_arguments {{ int steps; {members} }};",
        f'extern "C" __global__ __launch_bounds__({ROW_THREADS})',
        "void STEPS(const STEPS_arguments a) {",
        "extern __shared__ float kept[];",
        "const int row = blockIdx.x;",
        *begin,
        "__syncthreads();",
        "for (ptrdiff_t step = 0; step < a.steps; step++) {",
        *(line for call in calls for line in (call, "__syncthreads();")),
        "}",
        "}",
    ]
    text = "\n".join(lines) + "\n"
    name = f"steps_{hashlib.sha256(text.encode()).hexdigest()[:24]}"
    return Kernel(name, ["products"], text.replace("STEPS", name))
