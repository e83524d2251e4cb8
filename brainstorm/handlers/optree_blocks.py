"""What the NumPy interpreter of op-trees calls: instructions on whole arrays, or on blocks."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from brainstorm.handlers.optree_functions import Shape
from brainstorm.handlers.optree_schedule import Instruction, Memory, Value, block_geometry
from brainstorm.utils import Array

__all__ = ["Blocks", "Call", "Whole", "array_at"]

#: A function, its arguments, and those with names: `out` is what it writes.
Call: TypeAlias = tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]


def array_at(arena: Array, offset: int, shape: Shape, dtype: Any) -> Array:
    """Return an array that starts at a byte of the scratch memory."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return arena[offset : offset + size].view(dtype).reshape(shape)


def _maker(instruction: Instruction) -> Callable[[Sequence[Any]], Call]:
    """Return what makes the call of an instruction, given the arrays of all values."""
    function, params, result = instruction.function, instruction.params, instruction.result
    reads = instruction.operands + instruction.memory
    if len(reads) > 1 and not params:
        take = operator.itemgetter(*reads)
        return lambda arrays: (function, take(arrays), {"out": arrays[result]})
    return lambda arrays: (function, [arrays[x] for x in reads], {"out": arrays[result], **params})


class Whole:
    """One instruction on whole arrays: one call."""

    length = 1

    def __init__(self, instruction: Instruction) -> None:
        self._call_on = _maker(instruction)

    def bind(self, arena: Array) -> None:
        """Nothing lies in memory of its own."""

    def calls(self, arrays: Sequence[Any]) -> Iterator[Call]:
        """Yield the call, given the arrays of all values."""
        yield self._call_on(arrays)


class Blocks:
    """Element-wise instructions on one shape, block by block.

    Args:
        shape: Of the results.
        code: The instructions.
        passing: Values that only these instructions use; they have memory for one block.
        values: All values but outputs and copies of inputs, which are as large as the results.
        memory: Where blocks are placed.

    Attributes:
        slots: Offset and bytes of what was placed.
        length: The number of calls.
    """

    def __init__(
        self,
        shape: Shape,
        code: Sequence[Instruction],
        passing: set[int],
        values: Sequence[Value],
        memory: Memory,
    ) -> None:
        self.shape = shape
        self.axis, self.block = block_geometry(shape)
        self.code = [_maker(instruction) for instruction in code]
        self.slots: list[tuple[int, int]] = []
        self._placed: list[tuple[int, int, Any]] = []
        touched = [{*x.operands, *x.memory, x.result} for x in code]
        last = {x: i for i, values_of in enumerate(touched) for x in values_of}
        used: dict[int, int] = {}
        free: list[int] = []
        elements = self.block * math.prod(shape[self.axis + 1 :])
        block = elements * max((values[x].dtype.itemsize for x in passing), default=0)
        for i, instruction in enumerate(code):
            for x in (*instruction.memory, instruction.result):
                if x not in passing:
                    continue
                if not free:
                    free.append(memory.take(block))
                    self.slots.append((free[-1], block))
                used[x] = free.pop()
                self._placed.append((x, used[x], values[x].dtype))
            for x in touched[i]:
                if x in used and last[x] <= i:
                    free.append(used.pop(x))
        self._cut(set(last) - passing, lambda x: values[x].shape if x < len(values) else shape)

    def _cut(self, outside: set[int], shape_of: Callable[[int], Shape]) -> None:
        """Find out which part of which array belongs to each block."""
        members: dict[Any, list[int]] = {}
        for x in sorted(outside):
            members.setdefault(_pattern(shape_of(x), self.shape, self.axis), []).append(x)
        members.pop((), None)  # the same for all blocks
        self.members = list(members.values())
        self.blocks = [
            (length, [_part(index, pattern, self.axis) for pattern in members])
            for index, length in self._indices()
        ]
        self.length = len(self.blocks) * len(self.code)

    def bind(self, arena: Array) -> None:
        """Make the arrays that hold one block."""
        inner = self.shape[self.axis + 1 :]

        def made(length: int) -> list[tuple[int, Array]]:
            return [(x, array_at(arena, at, (length, *inner), t)) for x, at, t in self._placed]

        self._of_length = {length: made(length) for length in {n for n, _ in self.blocks}}

    def _indices(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        total = self.shape[self.axis]
        for lead in itertools.product(*map(range, self.shape[: self.axis])):
            for start in range(0, total, self.block):
                stop = min(start + self.block, total)
                yield (*lead, slice(start, stop)), stop - start

    def calls(self, arrays: Sequence[Any]) -> Iterator[Call]:
        """Yield the calls, given the arrays of all values."""
        block = list(arrays)
        for length, parts in self.blocks:
            for x, array in self._of_length[length]:
                block[x] = array
            for members, part in zip(self.members, parts, strict=True):
                for x in members:
                    block[x] = arrays[x][part]
            for call_on in self.code:
                yield call_on(block)


def _pattern(own: Shape, shape: Shape, axis: int) -> tuple[tuple[int, bool], ...]:
    """Return which of the axes up to `axis` an operand has, and whether it has them in full."""
    ahead = len(shape) - len(own)
    return tuple((j, own[j - ahead] == shape[j]) for j in range(max(ahead, 0), axis + 1))


def _part(index: tuple[Any, ...], pattern: Any, axis: int) -> tuple[Any, ...]:
    return tuple(index[j] if whole else (0 if j < axis else slice(None)) for j, whole in pattern)
