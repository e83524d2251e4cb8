"""Groups: loops that one kernel does, one after the other, and what they must have in common.

Either they are done row by row. A softmax is three loops: the maximum of each row, the sum of the
exponentials, the quotients. What a loop reads of the results of those before it lies in the same
row, so the threads that do a row need wait for nobody but each other. Or they are done side by
side, element by element, by threads that need not wait: a loop reads of what others write only the
element that it is at. Behind reductions that are done so come loops over their results.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from brainstorm.forks import cached_property
from brainstorm.handlers.bound_program import Loops
from brainstorm.optree.cuda_structure import blocks_of, row_blocks, shares
from brainstorm.optree.loops import C_TYPES, Loop

#: Terms of a row up to which a block does it all.
MOST_TERMS = 8192
#: Arrays of a group at most: a kernel takes 4 kB of arguments. Loops and reductions take registers.
MOST_ARRAYS, MOST_LOOPS, MOST_REDUCTIONS = 64, 12, 8

#: From an address to another one.
Span: TypeAlias = tuple[int, int]

_SIZES = {name: dtype.itemsize for dtype, name in C_TYPES.items()}


def _span(start: int, width: int, axes: Iterable[tuple[int, int]]) -> Span:
    """Return between which addresses parts lie: so many on each axis, some bytes apart."""
    reach = [step * max(n - 1, 0) for step, n in axes]
    return start + sum(min(x, 0) for x in reach), start + width + sum(max(x, 0) for x in reach)


class Rows(NamedTuple):
    """Rows of an array that are accessed one by one, in one of several steps.

    Attributes:
        start: The first address.
        width: Bytes from there to the end of the first row; of all, if there is but one for all.
        step: Bytes between rows; 0: the same for all rows.
        is_written: Whether they are written.
        move: Bytes to the next step.
    """

    start: int
    width: int
    step: int
    is_written: bool
    move: int = 0

    def span(self, rows: int, steps: int = 1) -> Span:
        """Return between which addresses all rows and steps access it."""
        return _span(self.start, self.width, ((self.step, rows), (self.move, steps)))

    def keep_to_rows(self, other: Rows, rows: int) -> bool:
        """Return whether none of so many rows overlaps another row of other ones, in any step."""
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

    def is_beside(self, other: Rows) -> bool:
        """Return whether no row overlaps any row of other ones, which lie between them."""
        if self.step <= 0 or self.step != other.step:
            return False
        apart = (other.start - self.start) % self.step
        return self.width <= apart <= self.step - other.width


@dataclasses.dataclass(frozen=True)
class Walk:
    """A loop with its numbers.

    Attributes:
        loop: The loop.
        sizes: Of its axes.
        strides: Of each array on each axis, counted in elements.
        pointers: Addresses of the arrays.
        constants: The numbers that it uses.
        lengths: Bytes of the arrays that it reads, if it has them read by functions of a file.
    """

    loop: Loop
    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    pointers: tuple[int, ...]
    constants: tuple[float, ...]
    lengths: tuple[int, ...] = ()

    @cached_property
    def spans(self) -> list[Span]:
        """Between which addresses it accesses each array."""
        return [self.span(k) for k in range(self.loop.arrays)]

    @property
    def terms(self) -> int:
        """What there is to do for a result."""
        return math.prod(itertools.compress(self.sizes, self.loop.reduced))

    @property
    def results(self) -> int:
        """How many results it has, each perhaps of a reduction."""
        sizes = zip(self.sizes, self.loop.reduced, strict=True)
        return math.prod(n for n, is_reduced in sizes if not is_reduced)

    @property
    def reach(self) -> int:
        """The largest number that an index can be."""
        distances = (
            sum(abs(step) * n for step, n in zip(row, self.sizes, strict=True))
            for row in self.strides
        )
        return max(math.prod(self.sizes), *distances)

    @cached_property
    def item_sizes(self) -> list[int]:
        """How many bytes an element of each array has."""
        return [_SIZES[array.type] for array in self.loop.accessed]

    def steps(self, array: int) -> tuple[int, ...]:
        """Return how many bytes lie between the elements of an array, on each axis."""
        size = self.item_sizes[array]
        return tuple(step * size for step in self.strides[array])

    def span(self, array: int, first_axis: int = 0) -> Span:
        """Return between which addresses it accesses an array, on axes from some on."""
        start, item = self.pointers[array], self.item_sizes[array]
        if array < len(self.lengths):
            return start, start + self.lengths[array]
        steps = self.steps(array)[first_axis:], self.sizes[first_axis:]
        return _span(start, item, zip(*steps, strict=True))

    def rows(self, array: int, axes: int = 1) -> Rows:
        """Return the rows of an array: the places on so many of the first axes."""
        steps, is_written = self.steps(array), array >= len(self.loop.reads)
        if any(steps[k - 1] != steps[k] * self.sizes[k] for k in range(1, axes)):
            start, stop = self.span(array)  # at different distances: all may be accessed by each
            return Rows(start, stop - start, 0, is_written)
        start, stop = self.span(array, axes)
        return Rows(start, stop - start, steps[axes - 1], is_written)


class Group(NamedTuple):
    """Loops that one kernel does; see `render_cuda`."""

    walks: tuple[Walk, ...]
    by_rows: bool = False


def walks_of(part: Loops, pointers: Sequence[int]) -> Iterator[Walk]:
    """Yield the loops of a part with their numbers, if they have anything to do."""
    addresses = iter(pointers)
    for loop, axes, constants in zip(part.loops, part.axes, part.constants, strict=True):
        places = tuple(itertools.islice(addresses, loop.arrays))
        walk = Walk(loop, axes.sizes, axes.strides, places, constants)
        if walk.results:
            yield walk


def meet(spans: Iterable[Span], others: Sequence[Span]) -> bool:
    """Return whether some of the spans overlap some of the others."""
    return any(start < end and first < stop for start, stop in spans for first, end in others)


def grouped(walks: Sequence[Walk]) -> Group | None:
    """Return how one kernel does loops, in their order, with the bits of each alone; None: not."""
    if len(walks) == 1:
        return Group(tuple(walks))
    reductions = [walk for walk in walks if walk.loop.reductions]
    if (
        len(walks) > MOST_LOOPS
        or sum(walk.loop.arrays for walk in walks) > MOST_ARRAYS
        or sum(len(walk.loop.reductions) for walk in walks) > MOST_REDUCTIONS
        or not all(shares(walk.loop) for walk in reductions)
    ):
        return None
    return _row_by_row(walks, reductions) or _side_by_side(walks, reductions)


def split(walk: Walk, sizes: tuple[int, ...]) -> Walk | None:
    """Return a loop that does not reduce, with axes of these sizes."""
    if walk.sizes == sizes:
        return walk
    if walk.loop.rank > 1 or walk.sizes[0] != math.prod(sizes):
        return None
    inner = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return dataclasses.replace(
        walk,
        loop=walk.loop._replace(reduced=(False,) * len(sizes)),
        sizes=sizes,
        strides=tuple(tuple(step * n for n in inner) for (step,) in walk.strides),
    )


def in_parts(walk: Walk, before: Walk) -> list[Walk]:
    """Return a copy as copies of the parts that a loop before it has written, if these are all.

    The parts are columns, of the same number; there are none if it has written something else.
    So are the deltas of the gates of an LSTM rounded, which are one factor of a product.
    """
    is_copy = walk.loop.arrays == 2 and not (walk.loop.reductions or walk.loop.file)
    if not is_copy or len(before.sizes) != 2 or before.loop.reductions:
        return []
    rows, columns = before.sizes
    shaped = split(walk, (rows, walk.results // rows)) if walk.loop.rank == 1 else walk
    if shaped is None or shaped.loop.rank != 2 or shaped.sizes[0] != rows:
        return []
    size, width = shaped.item_sizes[0], shaped.sizes[1]
    written = range(len(before.loop.reads), before.loop.arrays)
    places = (
        (before.pointers[k] - shaped.pointers[0]) // size
        for k in written
        if before.steps(k) == shaped.steps(0) and before.item_sizes[k] == size
    )
    starts = sorted(place for place in places if 0 <= place < width)
    is_whole = starts == list(range(0, width, columns)) and width % columns == 0 < width - columns
    if not is_whole or shaped.steps(0)[1] != size:
        return []
    steps = [shaped.steps(array)[1] for array in range(2)]
    return [
        dataclasses.replace(
            shaped,
            sizes=before.sizes,
            pointers=tuple(x + start * n for x, n in zip(shaped.pointers, steps, strict=True)),
        )
        for start in starts
    ]


# -- row by row ------------------------------------------------------------------------------------


def _row_by_row(walks: Sequence[Walk], reductions: Sequence[Walk]) -> Group | None:
    if not reductions or not all(map(_reduces_rows, reductions)):
        return None
    rows = reductions[0].results
    shaped: list[Walk] = []
    for walk in walks:
        rowed = _rowed(walk, rows)
        if rowed is None or rowed.terms > MOST_TERMS:
            return None
        if not all(_keep_to_rows(before, rowed) for before in shaped):
            return None
        shaped.append(rowed)
    blocks = row_blocks(rows, max(walk.terms for walk in shaped))
    if any(row_blocks(rows, walk.terms) != blocks for walk in reductions):
        return None  # others would share the reductions, in another order
    return Group(tuple(shaped), by_rows=True)


def _reduces_rows(walk: Walk) -> bool:
    """Return whether a loop reduces each row to one element, and is best done by one block each."""
    reduced = list(walk.loop.reduced)
    is_first_kept = not reduced[0] and reduced == sorted(reduced)
    return is_first_kept and blocks_of(walk.loop, walk.sizes).chunks == 1


def _rowed(walk: Walk, rows: int) -> Walk | None:
    """Return a loop whose first axes are so many rows, the others being as if they were reduced."""
    if walk.loop.reductions:
        return walk if walk.results == rows else None
    whole = list(itertools.accumulate(walk.sizes, operator.mul))
    if rows in whole:
        axes, shaped = whole.index(rows) + 1, walk
    elif (found := split(walk, (rows, walk.sizes[0] // rows))) is not None:
        axes, shaped = 1, found
    else:
        return None
    reduced = tuple(axis >= axes for axis in range(shaped.loop.rank))
    return dataclasses.replace(shaped, loop=shaped.loop._replace(reduced=reduced))


def _keep_to_rows(before: Walk, after: Walk) -> bool:
    """Return whether two loops touch nothing in common but in the same row, if one writes it."""
    axes, others = (walk.loop.reduced.count(False) for walk in (before, after))
    return all(
        before.rows(i, axes).keep_to_rows(after.rows(j, others), before.results)
        for i, j in _shared(before, after)
    )


# -- side by side ----------------------------------------------------------------------------------


class _Shaped(NamedTuple):
    """A loop of a group, and whether it works through the results of reductions."""

    walk: Walk
    is_behind: bool

    def access(self, array: int) -> tuple[Any, ...]:
        """Return which elements of an array are accessed when: of each result, or of each term."""
        loop, sizes, reads = self.walk.loop, self.walk.sizes, len(self.walk.loop.reads)
        of_results = self.is_behind or (
            array >= reads and bool(loop.writes[array - reads].reduction)
        )
        axes = zip(self.walk.steps(array), sizes, loop.reduced, strict=True)
        steps = [step for step, n, gone in axes if n > 1 and not (of_results and gone)]
        return of_results, self.walk.pointers[array], steps


def _side_by_side(walks: Sequence[Walk], reductions: Sequence[Walk]) -> Group | None:
    lead = reductions[0] if reductions else max(walks, key=lambda walk: walk.loop.rank)
    kept = tuple(n for n, gone in zip(lead.sizes, lead.loop.reduced, strict=True) if not gone)
    shaped: list[_Shaped] = []
    for walk in walks:
        choices = []
        if walk.loop.reductions:
            if walk.sizes == lead.sizes and walk.loop.reduced == lead.loop.reduced:
                choices.append(_Shaped(walk, False))
        else:
            if (shape := split(walk, lead.sizes)) is not None:
                loop = shape.loop._replace(reduced=lead.loop.reduced)
                choices.append(_Shaped(dataclasses.replace(shape, loop=loop), False))
            if reductions and (shape := split(walk, kept or (1,))) is not None:
                choices.append(_Shaped(shape, True))
        for choice in choices:
            if all(_keep_apart(before, choice) for before in shaped):
                shaped.append(choice)
                break
        else:
            return None
    return Group(tuple(one.walk for one in shaped))


def _keep_apart(before: _Shaped, after: _Shaped) -> bool:
    """Return whether two loops touch nothing in common but by the same thread, and in order."""
    for i, j in _shared(before.walk, after.walk):
        is_same = before.access(i) == after.access(j) and before.is_behind <= after.is_behind
        if not (is_same or before.walk.rows(i).is_beside(after.walk.rows(j))):
            return False
    return True


def _shared(before: Walk, after: Walk) -> Iterator[tuple[int, int]]:
    """Yield which arrays of two loops overlap, if one writes there."""
    reads = len(before.loop.reads), len(after.loop.reads)
    for i, (start, stop) in enumerate(before.spans):
        first = 0 if i >= reads[0] else reads[1]
        for j, (other, end) in enumerate(after.spans[first:], first):
            if start < end and other < stop:
                yield i, j
