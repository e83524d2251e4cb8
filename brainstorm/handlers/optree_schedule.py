"""From a program to what the NumPy interpreter does with it: aliases, order, blocks, memory.

`Flat` knows the program and which inputs are in C order. From it and from how each output is
written the interpreter makes a schedule, which has all intermediate values in one piece of memory.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brainstorm.handlers.numpy_memory import ALIGNMENT
from brainstorm.handlers.optree_functions import Shape, copy, special, view_of
from brainstorm.optree import Constant, Program, Step
from brainstorm.optree.stages import VIEWS
from brainstorm.utils import Array

__all__ = ["BLOCK", "Flat", "Instruction", "Memory", "Segment", "Value", "block_geometry"]

#: Elements that an element-wise operation works on at a time: a few such arrays fit in the cache.
BLOCK = 32768
#: How many instructions ahead are looked at for some that can join a segment.
LOOK_AHEAD = 256
#: Operators of one result element per operand element that may not write over an operand.
NOT_IN_PLACE = {"where"}


@dataclass
class Value:
    """An input, a constant, a result, intermediate memory, or a view of one of these."""

    shape: Shape
    dtype: Any
    root: int
    contiguous: bool = True
    base: int | None = None
    view: Callable[[Array], Array] | None = None
    constant: Array | None = None
    spread: bool = False


@dataclass
class Instruction:
    """One call: ``function(*operands, *memory, out=result, **params)``."""

    function: Callable[..., Any]
    operands: tuple[int, ...]
    result: int
    shape: Shape
    params: dict[str, Any] = field(default_factory=dict)
    elementwise: bool = True
    in_place: bool = True
    memory: tuple[int, ...] = ()

    @property
    def blocked(self) -> bool:
        """Whether it is worked through in blocks."""
        return self.elementwise and math.prod(self.shape) > BLOCK


@dataclass
class Segment:
    """Instructions that run one after the other: whole, or block by block if there is a shape."""

    shape: Shape | None
    instructions: list[Instruction]
    time: int = 0


class Flat:
    """The instructions of a program in segments, with views in place of copies where possible.

    Args:
        program: What is computed.
        in_order: Per input whether it lies in memory in C order.
    """

    def __init__(self, program: Program, in_order: Sequence[bool]) -> None:
        self.values = [
            Value(v.shape, v.dtype, i, contiguous)
            for i, (v, contiguous) in enumerate(zip(program.inputs, in_order, strict=True))
        ]
        self.inputs = len(self.values)
        self.instructions: list[Instruction] = []
        self.ordered: set[int] = set()  # roots that must lie in C order
        self._constants: dict[Any, int] = {}
        self._copies: dict[Any, int] = {}
        number = list(range(self.inputs))
        for step in program.steps:
            number.append(self._add(step, number))
        self.outputs = [number[x] for x in program.outputs]
        self.segments = grouped(self.instructions, self.values)
        self.made = {
            i.result: (segment, place, i)
            for segment in self.segments
            for place, i in enumerate(segment.instructions)
        }
        self.reads: dict[int, list[tuple[Segment, int, int, Instruction]]] = {}
        for segment in self.segments:
            for place, instruction in enumerate(segment.instructions):
                for x in instruction.operands:
                    read = (segment, place, x, instruction)
                    self.reads.setdefault(self.values[x].root, []).append(read)

    def new(self, shape: Shape, dtype: Any) -> int:
        """Add a value and return its number."""
        self.values.append(Value(shape, np.dtype(dtype), len(self.values)))
        return len(self.values) - 1

    def _add(self, step: Step, number: Sequence[int]) -> int:
        skipped = step.operator.index_operands
        operands = [
            self._operand(x, number, None if i in skipped else step.dtype)
            for i, x in enumerate(step.operands)
        ]
        alias = self._alias(step, operands)
        if alias is not None:
            return alias
        if step.operator.kind == "product":  # a repeated element is no matrix for BLAS
            operands = [self.copied(x) if self.values[x].spread else x for x in operands]
        how = special(step, [self.values[x].shape for x in operands])
        result = self.new(step.shape, step.dtype)
        function, params, memory = step.operator.numpy, dict(step.params), ()
        if how is not None:
            function, params = how.function, {}
            for i in how.contiguous:
                operands[i] = self._in_order(operands[i])
            memory = tuple(self.new(shape, dtype) for shape, dtype in how.memory)  # type: ignore[assignment]
            if how.contiguous_out:
                self.ordered.add(result)
        elementwise = step.operator.is_elementwise
        in_place = elementwise and step.operator.name not in NOT_IN_PLACE
        self.instructions.append(
            Instruction(function, tuple(operands), result, step.shape, params, elementwise,
                        in_place, memory)
        )  # fmt: skip
        return result

    def _operand(self, x: Any, number: Sequence[int], dtype: Any) -> int:
        if isinstance(x, Constant):
            return self._constant(x.value, dtype)
        value = number[x]
        if dtype is None or self.values[value].dtype == dtype:
            return value
        return self.copied(value, dtype)

    def _constant(self, number: float, dtype: Any) -> int:
        key = (repr(number), np.dtype(dtype))
        if key not in self._constants:
            value = self._constants[key] = self.new((), dtype)
            with np.errstate(all="ignore"):
                self.values[value].constant = np.array(number, np.float64).astype(dtype)
        return self._constants[key]

    def copied(self, value: int, dtype: Any = None) -> int:
        """Return a value with the same elements of its own, of another type if one is given."""
        key = (value, None if dtype is None else np.dtype(dtype))
        if key not in self._copies:
            old = self.values[value]
            result = self._copies[key] = self.new(old.shape, old.dtype if dtype is None else dtype)
            self.instructions.append(Instruction(copy, (value,), result, old.shape))
        return self._copies[key]

    def _in_order(self, value: int) -> int:
        if not self.values[value].contiguous:
            value = self.copied(value)
        self.ordered.add(self.values[value].root)
        return value

    def _alias(self, step: Step, operands: Sequence[int]) -> int | None:
        """Return a view that stands for the step's result, if it only moves elements."""
        shape, name = step.shape, step.operator.name
        if name == "full":
            base = self._constant(step.params["value"], step.dtype)
            return self._view(base, shape, lambda x: np.broadcast_to(x, shape), spread=True)
        if name not in VIEWS:
            return None
        base, reshapes = operands[0], name == "reshape"
        if reshapes:
            if not self.values[base].contiguous:
                return None
            self.ordered.add(self.values[base].root)
        return self._view(base, shape, view_of(step), reshapes, name == "broadcast")

    def _view(
        self,
        base: int,
        shape: Shape,
        view: Callable[[Array], Array],
        contiguous: bool = False,
        spread: bool = False,
    ) -> int:
        of = self.values[base]
        self.values.append(
            Value(shape, of.dtype, of.root, contiguous, base, view, spread=spread or of.spread)
        )
        return len(self.values) - 1


def grouped(instructions: list[Instruction], values: Sequence[Value]) -> list[Segment]:
    """Order instructions such that as many as possible stand in one segment."""
    segments: list[Segment] = []
    remaining = instructions
    time = 0
    while remaining:
        shape = remaining[0].shape if remaining[0].blocked else None
        taken: list[Instruction] = []
        left: list[Instruction] = []
        made: set[int] = set()
        waiting: set[int] = set()
        for instruction in remaining[:LOOK_AHEAD]:
            fits = (instruction.shape if instruction.blocked else None) == shape
            roots = {values[x].root for x in instruction.operands}
            if shape is not None:  # a view of what a block computes is there after the segment
                fits = fits and all(
                    values[x].base is None or values[x].root not in made
                    for x in instruction.operands
                )
            if fits and not roots & waiting:
                taken.append(instruction)
                made.add(instruction.result)
            else:
                left.append(instruction)
                waiting.add(instruction.result)
        remaining = left + remaining[LOOK_AHEAD:]
        parts = [taken] if shape is not None else [[instruction] for instruction in taken]
        for part in parts:
            segments.append(Segment(shape, part, time))
            time += 1
    return segments


def block_geometry(shape: Shape) -> tuple[int, int]:
    """Return the axis that is cut, and into which lengths; axes behind it are whole."""
    axis, inner = len(shape) - 1, 1
    while axis > 0 and inner * shape[axis] <= BLOCK:
        inner *= shape[axis]
        axis -= 1
    return axis, max(1, BLOCK // inner)


class Memory:
    """Offsets in one piece of memory; what is given back is used again."""

    def __init__(self) -> None:
        self.size = 0
        self._free: list[tuple[int, int]] = []  # (offset, bytes), by offset

    def take(self, count: int) -> int:
        """Return the offset of `count` free bytes, aligned."""
        count = _rounded(count)
        fitting = [(n, at) for at, n in self._free if n >= count]
        if fitting:
            n, at = min(fitting)
            self._free.remove((at, n))
            if n > count:
                bisect.insort(self._free, (at + count, n - count))
            return at
        self.size += count
        return self.size - count

    def give(self, at: int, count: int) -> None:
        """Take `count` bytes back, and join them to free neighbours."""
        count = _rounded(count)
        i = bisect.bisect(self._free, (at, count))
        if i < len(self._free) and self._free[i][0] == at + count:
            count += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == at:
            i -= 1
            at, count = self._free[i][0], self._free[i][1] + count
            self._free.pop(i)
        self._free.insert(i, (at, count))


def _rounded(count: int) -> int:
    return max(1, -(-count // ALIGNMENT)) * ALIGNMENT
