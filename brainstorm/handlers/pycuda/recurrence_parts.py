"""The parts of a step of a recurrence: a product with a small matrix, and loops over its rows.

A row is computed by a team: the threads of a block, or of a cluster of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from brainstorm.forks import cached_property
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.driver import Device
from brainstorm.handlers.pycuda.fusing import Piece, packed_numbers
from brainstorm.handlers.pycuda.groups import Group, Rows, Walk, split
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree.render_cuda import render_step

#: Threads for a row, rows, and terms at most.
MOST_THREADS, MOST_ROWS, MOST_TERMS = 256, 128, 2048
#: Blocks of a cluster, and of a launch of clusters at most: more would be done one after the other.
CLUSTERS, MOST_BLOCKS = (2, 4, 8), 256
#: The first architecture with clusters.
CLUSTERED = 90
#: Elements of matrices, and sums, in the registers of a thread at most.
MOST_HELD = 192


def blocks_for(device: Device, rows: int) -> tuple[int, ...]:
    """Return how many blocks may compute each of some rows."""
    clusters = CLUSTERS if int(device.arch.removeprefix("sm_")) >= CLUSTERED else ()
    return 1, *(blocks for blocks in clusters if blocks * rows <= MOST_BLOCKS)


class Team(NamedTuple):
    """Who computes a row.

    Attributes:
        blocks: How many blocks.
        threads: How many threads each has.
        units: How many columns they divide. A wider matrix has several times as many, of each of
            which a block has the same.
    """

    blocks: int
    threads: int
    units: int


class ProductPart:
    """A product of a step.

    Attributes:
        is_aligned: Whether four adjacent elements of the matrix can be read at once.
        form: What is the same in all steps.
        pointers: Addresses, which may move.
        arrays: What is accessed, in the order of the pointers.
        in_columns: For each, whether a column accesses the adjacent float of its number alone.
        numbers: The format and values of what the arguments end with.
        blocks: How many blocks are needed to keep the matrix; 0: more than there may be.
        sharing: How many threads share columns.
        threads: How many threads should a block have.
        terms: How many terms of a row they share.
    """

    def __init__(self, device: Device, p: Product) -> None:
        self.product = p
        self.is_aligned = p.b % 16 == 0 == p.ldb % 4
        self.form = p._replace(a=0, b=int(self.is_aligned), out=0)
        self.pointers = p.a, p.b, p.out
        rows, columns = (p.n, p.k) if p.transb else (p.k, p.n)  # of the matrix in memory
        self.arrays = [
            Rows(p.a, 4 * p.k, 4 * p.lda, False),
            Rows(p.b, 4 * (p.ldb * (rows - 1) + columns), 0, False),
            Rows(p.out, 4 * p.n, 4 * p.ldc, True),
        ]
        self.in_columns = [False, False, True]
        self.numbers = "3i", [p.lda, p.ldb, p.ldc]
        for self.blocks in (*blocks_for(device, p.m), 0):
            self.sharing, self.threads = _division(_over(p.n, self.blocks or 1), p.k)
            self.terms = _over(p.k, self.sharing) * self.sharing
            room = device.shared // 4 - self.terms
            if self.blocks and self.kept(Team(self.blocks, self.threads, p.n), 0, room):
                break

    def source(self, name: str, team: Team, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs."""
        return f"struct {name}_arguments {{ char *p[3]; ptrdiff_t d[3]; int n[3]; }};\n"

    def _units(self, team: Team) -> int:
        n = self.product.n
        return n if n % team.units else team.units

    def kept(self, team: Team, held: int, room: int) -> tuple[int, int] | None:
        """Return how many elements of the matrix a thread keeps in registers, and all share.

        Args:
            team: Who computes a row.
            held: How many elements of other matrices are in the registers of each.
            room: How many elements find room in the memory that they share; if not all others do,
                it is None.
        """
        units = self._units(team)
        columns = self.product.n // units * _over(units, team.blocks)
        rounds = _over(columns, team.threads // self.sharing)
        elements = rounds * self.terms // self.sharing
        mine = max(0, min(elements, MOST_HELD - held - _power_of_two(rounds)))
        shared = (elements - mine) * team.threads
        return (mine, shared) if shared <= room else None

    def calls(self, name: str, team: Team, kept: tuple[int, int] | None) -> tuple[str, str]:
        """Return the texts for what is done before all steps, and for `row` and `step`.

        Args:
            name: The name; the arguments are ``a.<name>``.
            team: Who computes a row.
            kept: If the matrix is the same in all steps, how many of its elements are in
                registers, and where in the memory that the threads share the others begin.
        """
        p = self.product
        a, b, out = (f"(float *)(a.{name}.p[{k}] + step * a.{name}.d[{k}])" for k in range(3))
        sizes = p.n, self._units(team), p.k, self.sharing, team.blocks, team.threads
        flags = (str(flag).lower() for flag in (p.transb, self.is_aligned))
        form = ", ".join((*map(str, sizes), *flags))
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

    blocks = terms = 1

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
    def in_columns(self) -> list[bool]:
        """See `ProductPart`."""
        return [
            walk.steps(k)[1] == walk.item_sizes[k] == 4
            for walk in self.walks
            for k in range(walk.loop.arrays)
        ]

    @cached_property
    def numbers(self) -> tuple[str, list[Any]]:
        """The format and values of what the arguments end with."""
        return packed_numbers(self.walks, self.structure)

    def source(self, name: str, team: Team, is_constant: Sequence[bool]) -> str:
        """Return the functions and structures that it needs; see `ProductPart`."""
        accesses = [
            access._replace(is_constant=constant)
            for access, constant in zip(self.structure.accesses, is_constant, strict=True)
        ]
        structure = dataclasses.replace(self.structure, accesses=tuple(accesses))
        return render_step(structure, name, team.blocks)

    def calls(self, name: str, team: Team, kept: tuple[int, int] | None) -> tuple[str, str]:
        """Return the texts of what is done; see `ProductPart`."""
        return "", f"{name}(a.{name}, step, row);"


Part: TypeAlias = ProductPart | LoopsPart


def part_of(device: Device, piece: Piece, rows: int) -> Part | None:
    """Return a piece as a part of a step of so many rows; None: it cannot be one."""
    if (p := piece.product) is not None:
        return ProductPart(device, p) if piece.may_recur and p.m == rows else None
    if piece.launch or piece.group.by_rows:
        return None
    walks = [split(walk, (rows, walk.results // rows)) for walk in piece.group.walks]
    shaped = [walk for walk in walks if walk and not (walk.loop.file or walk.loop.reductions)]
    are_alike = len(shaped) == len(walks) and len({walk.sizes for walk in shaped}) == 1
    return LoopsPart(shaped) if are_alike else None


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
