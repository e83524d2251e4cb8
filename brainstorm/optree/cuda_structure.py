"""What a CUDA kernel of loops is compiled from, and its blocks of threads; see `render_cuda`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brainstorm.forks import cached_property
from brainstorm.optree.loops import Loop

#: Maximum number of threads in a block.
THREADS = 256
#: Number of blocks that keep a GPU busy, and of terms per worker that justify another block.
BUSY, FEW_TERMS = 512, 8
#: Maximum number of reductions in a loop: the workers' results must fit into shared memory.
MOST_SHARED = 20


class Access(NamedTuple):
    """What is known of a loop's array when its kernel is compiled.

    Attributes:
        first: Number of the first array of the kernel that is the same elements, by which the text
            names it: what a loop has just written, the compiler then needs not read.
        steps: The strides on each axis: 'fixed' (0), 'unit' or 'any', which is known at run time.
        is_constant: Whether nothing in the kernel writes there.
        is_early: Whether no loop before it writes there, side by side; then it can be read ahead.
    """

    first: int
    steps: tuple[str, ...]
    is_constant: bool
    is_early: bool


@dataclass(frozen=True)
class Structure:
    """What a kernel is compiled from.

    Attributes:
        loops: What it does. By rows: one loop after the other for each row, which is a place on
            the first axes of each loop; the others are marked as reduced. Else, side by side: loops
            with the same axes, element by element, and after them loops over the results of their
            reductions.
        accesses: Of the arrays that the loops read, then write, loop by loop.
        index: The type of numbers and indices; 'int' if all of them fit, else 'ptrdiff_t'.
        by_rows: Which of these; it says as well whether `row_blocks` or `blocks_of` is the grid.
        lanes: How many elements a thread does at once. If several: nothing is reduced, the
            innermost axis is a multiple of that unless it is the only one, and on it arrays have
            the stride 1, with rows that begin at multiples of so many elements, or are only read
            and have the stride 0.
    """

    loops: tuple[Loop, ...]
    accesses: tuple[Access, ...]
    index: str = "int"
    by_rows: bool = False
    lanes: int = 1

    @property
    def lead(self) -> int:
        """Number of the loop whose results the grid is over: the first that reduces."""
        return next((number for number, loop in enumerate(self.loops) if loop.reductions), 0)

    @cached_property
    def strides(self) -> list[int]:
        """Where the strides of each array begin in the kernel's numbers; see `render_cuda`."""
        places: list[int] = []
        sizes = 0
        for loop in self.loops:
            places += [sizes + loop.rank * (1 + k) for k in range(loop.arrays)]
            sizes += loop.extents
        return places

    @property
    def is_shared(self) -> bool:
        """Whether blocks share reductions side by side, for which there are two more addresses."""
        return not self.by_rows and shares(self.loops[self.lead])


class Blocks(NamedTuple):
    """The number of threads of a kernel.

    Attributes:
        x: Threads of a block along x.
        y: Threads of a block along y.
        grid: Blocks for one element per column; without chunks there may be fewer.
        chunks: Blocks along y.
    """

    x: int
    y: int
    grid: int
    chunks: int


def blocks_of(loop: Loop, sizes: Sequence[int]) -> Blocks:
    """Return the blocks for axes of these sizes.

    Columns lie along x if adjacent results are reduced from adjacent elements, else along y:
    threads that run together should read adjacent memory.
    """
    kept = reduced = 1
    for size, is_reduced in zip(sizes, loop.reduced, strict=True):
        kept, reduced = (kept, reduced * size) if is_reduced else (kept * size, reduced)
    if not shares(loop):
        return Blocks(THREADS, 1, -(-kept // THREADS), 1)
    if loop.kind == "rows":
        blocks = row_blocks(kept, reduced)
        workers = blocks.x
    else:
        columns = _power_of_two(kept, 32)
        workers = _power_of_two(reduced, THREADS // columns)
        blocks = Blocks(columns, workers, -(-kept // columns), 1)
    chunks = min(BUSY // blocks.grid, reduced // (workers * FEW_TERMS))
    return blocks._replace(chunks=max(1, chunks))


def row_blocks(rows: int, most_terms: int) -> Blocks:
    """Return the blocks of loops by rows, for so many rows and terms of a loop in a row."""
    workers = _power_of_two(most_terms, THREADS)
    columns = THREADS // workers
    return Blocks(workers, columns, -(-rows // columns), 1)


def shares(loop: Loop) -> bool:
    """Return whether workers share the reductions of a loop."""
    return loop.can_chunk and len(loop.reductions) <= MOST_SHARED


def _power_of_two(count: int, most: int) -> int:
    """Return the smallest power of two of at least half of a count, but at most `most`."""
    return min(most, 1 << max(0, (count - 1).bit_length() - 1))
