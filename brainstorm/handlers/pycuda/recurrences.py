"""Recurrences: the steps of a walk through time as one launch.

In a walk, a few operations are repeated, each time at the next place in memory: products of few
rows with a small matrix, and loops over the rows. If the rows need nothing of each other (the
sequences of a batch), a block computes a row for all steps; its threads wait for each other, which
takes much less time than a launch, and keep the matrix in their registers. It computes the bits of
the single operations.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from brainstorm.forks import cached_property
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece, packed_numbers
from brainstorm.handlers.pycuda.groups import Group, Rows, Span, Walk, meet, split
from brainstorm.handlers.pycuda.launches import Launch, packed_launch
from brainstorm.handlers.pycuda.modules import NAME, Kernel, named_kernel
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree.render_cuda import render_step

#: Threads for a row, rows, and terms at most.
MOST_THREADS, MOST_ROWS, MOST_TERMS = 256, 128, 2048
#: Elements of matrices, and sums, in the registers of a thread at most.
MOST_HELD = 192
#: Pieces of a step at most, and steps at least.
MOST_PIECES, FEW_STEPS = 12, 4
#: Bytes of arguments: CUDA before 12.1 takes no more.
MOST_ARGUMENTS = 4096


def has_few_rows(device: Device, p: Product) -> bool:
    """Return whether a product can be computed by our kernel instead of cuBLAS."""
    if p.transa or p.batch > 1 or p.m > MOST_ROWS or p.k > MOST_TERMS:
        return False
    part = ProductPart(p)
    *factors, out = (array.span(p.m) for array in part.arrays)
    room = device.shared // 4 - part.terms
    return not meet([out], factors) and part.kept(part.threads, 0, room) is not None


def product_launch(device: Device, p: Product) -> Launch:
    """Return the launch of a product of few rows."""
    return Recurrence(p.m, 1, [ProductPart(p)], [(0, 0, 0)]).launch(device, ())


def _arrays_of(p: Product) -> list[Rows]:
    """Return both factors and the result of a product."""
    rows, columns = p.matrix
    return [
        Rows(p.a, 4 * p.k, 4 * p.lda, False),
        Rows(p.b, 4 * (p.ldb * (rows - 1) + columns), 0, False),
        Rows(p.out, 4 * p.n, 4 * p.ldc, True),
    ]


class ProductPart:
    """A product of a step.

    Attributes:
        form: What is the same in all steps.
        pointers: Addresses, which may move.
        arrays: What is accessed, in the order of the pointers.
        numbers: The format and values of what the arguments end with.
        threads: How many threads should do a row.
        terms: How many terms of a row they share.
    """

    def __init__(self, p: Product) -> None:
        self.product = p
        self.form = p._replace(a=0, b=0, out=0)
        self.pointers = p.a, p.b, p.out
        self.arrays = _arrays_of(p)
        self.numbers = "3i", [p.lda, p.ldb, p.ldc]
        self.sharing, self.threads = _division(p.n, p.k)
        self.terms = _over(p.k, self.sharing) * self.sharing

    def source(self, name: str, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs."""
        return f"struct {name}_arguments {{ char *p[3]; ptrdiff_t d[3]; int n[3]; }};\n"

    def kept(self, threads: int, held: int, room: int) -> tuple[int, int] | None:
        """Return how many elements of the matrix a thread keeps in registers, and all share.

        Args:
            threads: How many threads there are.
            held: How many elements of other matrices are in the registers of each.
            room: How many elements find room in the memory that they share; if not all others do,
                it is None.
        """
        rounds = _over(self.product.n, threads // self.sharing)
        elements = rounds * self.terms // self.sharing
        mine = max(0, min(elements, MOST_HELD - held - _power_of_two(rounds)))
        shared = (elements - mine) * threads
        return (mine, shared) if shared <= room else None

    def calls(self, name: str, threads: int, kept: tuple[int, int] | None) -> tuple[str, str]:
        """Return the texts for what is done before all steps, and for `row` and `step`.

        Args:
            name: The name; the arguments are ``a.<name>``.
            threads: How many threads there are.
            kept: If the matrix is the same in all steps, how many of its elements are in
                registers, and where in the memory that the threads share the others begin.
        """
        p = self.product
        a, b, out = (f"(float *)(a.{name}.p[{k}] + step * a.{name}.d[{k}])" for k in range(3))
        form = f"{p.n}, {p.k}, {self.sharing}, {threads}, {str(p.transb).lower()}"
        begin, matrix = "", f"Matrix<{form}>{{{b}, a.{name}.n[1]}}"
        if kept is not None:
            whole = f"Matrix<{form}>{{(float *)a.{name}.p[1], a.{name}.n[1]}}"
            matrix = f"{name}_kept"
            begin = f"const Kept<Matrix<{form}>, {kept[0]}> {matrix}({whole}, shared + {kept[1]});"
        return begin, (
            f"multiply({matrix}, {a} + row * (ptrdiff_t)a.{name}.n[0],\n"
            f"{out} + row * (ptrdiff_t)a.{name}.n[2], {str(p.add).lower()}, terms);"
        )


class LoopsPart:
    """Loops of a step, side by side; see `ProductPart`."""

    terms = 1

    def __init__(self, walks: Sequence[Walk]) -> None:
        self.walks = walks
        self.threads = min(MOST_THREADS, 32 * _over(walks[0].sizes[1], 32))
        structure = structure_of(Group(tuple(walks)))
        self.structure = dataclasses.replace(structure, lanes=1)
        forms = [(walk.sizes, walk.strides, walk.constants) for walk in walks]
        self.form = self.structure, tuple(forms)
        self.pointers = tuple(address for walk in walks for address in walk.pointers)

    @cached_property
    def arrays(self) -> list[Rows]:
        """What is accessed, in the order of the pointers."""
        return [walk.rows(k) for walk in self.walks for k in range(walk.loop.arrays)]

    @cached_property
    def numbers(self) -> tuple[str, list[Any]]:
        """The format and values of what the arguments end with."""
        return packed_numbers(self.walks, self.structure)

    def source(self, name: str, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs."""
        accesses = [
            access._replace(is_constant=constant)
            for access, constant in zip(self.structure.accesses, is_constant, strict=True)
        ]
        return render_step(dataclasses.replace(self.structure, accesses=tuple(accesses)), name)

    def calls(self, name: str, threads: int, kept: tuple[int, int] | None) -> tuple[str, str]:
        """Return the texts of what is done; see `ProductPart`."""
        return "", f"{name}(a.{name}, step, row);"


Part: TypeAlias = ProductPart | LoopsPart


def _part(piece: Piece, rows: int) -> Part | None:
    """Return a piece as a part of a step of so many rows; None: it cannot be one."""
    if piece.product is not None:
        return ProductPart(piece.product) if piece.may_recur and piece.product.m == rows else None
    if piece.launch or piece.group.by_rows:
        return None
    walks = [split(walk, (rows, walk.results // rows)) for walk in piece.group.walks]
    shaped = [walk for walk in walks if walk and not (walk.loop.file or walk.reductions)]
    are_alike = len(shaped) == len(walks) and len({walk.sizes for walk in shaped}) == 1
    return LoopsPart(shaped) if are_alike else None


def recurrences(device: Device, pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces, of which those are one launch that are the steps of a recurrence."""
    part = functools.cache(lambda place, rows: _part(pieces[place], rows))
    found: list[Piece] = []
    start = 0
    while start < len(pieces):
        walks = Recurrence.found(part, pieces, start)
        best = max(walks, key=lambda walk: (walk.fits, walk.length), default=None)
        run = pieces[start : start + (best.length if best else 1)]
        found += [best.piece(device, run)] if best and best.fits else run
        start += len(run)
    return found


class Recurrence:
    """The repeated parts of some steps.

    Args:
        rows: How many rows there are.
        steps: How many steps there are.
        parts: Those of the first step.
        moves: For each part, bytes to the next step, for each of its pointers.

    Attributes:
        length: How many pieces it is.
    """

    def __init__(
        self, rows: int, steps: int, parts: Sequence[Part], moves: Sequence[tuple[int, ...]]
    ) -> None:
        self.rows, self.steps, self.parts, self.moves = rows, steps, parts, moves
        self.length = steps * len(parts)
        self._arrays = [
            [array._replace(move=move) for array, move in zip(part.arrays, row, strict=True)]
            for part, row in zip(parts, moves, strict=True)
        ]
        self._written = [array for arrays in self._arrays for array in arrays if array.is_written]

    @classmethod
    def found(cls, part: Any, pieces: Sequence[Piece], start: int) -> Iterator[Recurrence]:
        """Yield the recurrences that may begin with some piece, those of few parts first.

        Args:
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
                walk = cls(first.m, steps, parts, moves)
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

    def kernel(self, room: int) -> tuple[Kernel, bytes, int, int]:
        """Return the kernel, its arguments, how many threads it has, and what they share.

        Args:
            room: How many numbers they can share.
        """
        spans, threads = list(map(self._span, self._written)), max(p.threads for p in self.parts)
        terms = max(part.terms for part in self.parts)
        texts, begin, calls, values, held, used = [], [], [], [self.steps], 0, 0
        for k, (part, arrays) in enumerate(zip(self.parts, self._arrays, strict=True)):
            name = f"{NAME}_{k}"
            is_constant = [not meet([self._span(array)], spans) for array in arrays]
            texts.append(part.source(name, is_constant))
            kept = None
            if isinstance(part, ProductPart) and is_constant[1] and not self.moves[k][1]:
                kept = part.kept(threads, held, room - terms - used)
            mine, shared = kept or (0, 0)
            before, call = part.calls(name, threads, kept and (mine, used))
            begin.append(before)
            calls.append(call)
            held, used = held + mine, used + shared
            values += [*part.pointers, *self.moves[k], *part.numbers[1]]
        kind = "steps" if self.steps > 1 else "few_rows"
        kernel = _kernel(kind, threads, terms, tuple(texts), tuple(begin), tuple(calls))
        return kernel, struct.pack(self._format, *values), threads, used

    def launch(self, device: Device, keep: Any) -> Launch:
        """Return the launch of all steps."""
        kernel, data, threads, shared = self.kernel(device.shared // 4)
        block = threads, 1, 1
        return packed_launch(device, kernel, (self.rows, 1), block, data, keep, 4 * shared)

    def piece(self, device: Device, run: Sequence[Piece]) -> Piece:
        """Return the launch of all steps, given the pieces that it does."""
        keep = [piece.keep for piece in run]
        reads = [span for piece in run for span in piece.reads]
        writes = [span for piece in run for span in piece.writes]
        return Piece(reads, writes, keep, launch=self.launch(device, keep))


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
    kind: str,
    threads: int,
    terms: int,
    texts: tuple[str, ...],
    begin: tuple[str, ...],
    calls: tuple[str, ...],
) -> Kernel:
    """Return the kernel of what is done at the beginning, and for each step."""
    members = " ".join(f"{NAME}_{k}_arguments {NAME}_{k};" for k in range(len(texts)))
    lines = [
        *texts,
        f"struct {NAME}_arguments {{ int steps; {members} }};",
        f'extern "C" __global__ __launch_bounds__({threads})',
        f"void {NAME}(const {NAME}_arguments a) {{",
        f"__shared__ float terms[{terms}];",
        "extern __shared__ float shared[];",
        "const int row = blockIdx.x;",
        *filter(None, begin),
        "for (ptrdiff_t step = 0; step < a.steps; step++) {",
        *(line for call in calls for line in (call, "__syncthreads();")),
        "}",
        "}",
    ]
    return named_kernel(kind, ["products"], "\n".join(lines) + "\n")


@functools.cache
def _division(columns: int, terms: int) -> tuple[int, int]:
    """Return how many threads share columns of a matrix, and how many there are, to be fastest.

    In a cycle a multiprocessor reads an element of the row, or exchanges a sum, for the threads of
    a warp, and multiplies for those of four. A sum takes four cycles, what is exchanged thirty.
    """

    def cost(division: tuple[int, int]) -> float:
        sharing, threads = division
        doublings, rounds = sharing.bit_length() - 1, _over(columns, threads // sharing)
        read, sums = _over(terms, sharing), _power_of_two(rounds)
        exchanges = sum(max(1, sums >> level) for level in range(1, doublings + 1))
        products = max(_over(threads, 128) * rounds, 4) * read
        more = max(rounds * read + sums - MOST_HELD, 0)  # which are read, too
        return threads / 32 * (read + exchanges + more) + products + 30 * doublings

    return min(itertools.product((1, 2, 4, 8, 16, 32), range(32, MOST_THREADS + 1, 32)), key=cost)


def _power_of_two(least: int) -> int:
    """Return the smallest power of two of at least a number."""
    return 1 << (least - 1).bit_length()


def _over(n: int, size: int) -> int:
    """Return how many parts of a size hold n."""
    return -(-n // size)
