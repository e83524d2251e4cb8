"""The NumPy interpreter: the reference among the executors of op-trees.

Each step is one NumPy call into memory that is kept between runs. Large element-wise steps that
follow each other run together, block by block, so that what they hand on stays in the cache.
Transposes, slices and the like are views. Outputs are written at once where nothing is read from
their memory later, and after everything else where something is.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.numpy_memory import aligned_zeros
from brainstorm.handlers.optree_functions import Shape, copy
from brainstorm.handlers.optree_outputs import BLOCKWISE, DIRECT, SAVED, output_modes
from brainstorm.handlers.optree_schedule import (
    BLOCK,
    Flat,
    Instruction,
    Memory,
    Segment,
    block_geometry,
)
from brainstorm.optree import Program
from brainstorm.utils import Array

__all__ = ["Interpreter"]

#: Schedules that are kept per program: one per way in which arrays overlap and are laid out.
MOST_SCHEDULES = 8


class Interpreter(threading.local):
    """Runs programs; plans and scratch memory are kept per thread.

    A plan lives as long as its program. Scratch memory grows to what the largest program needs.
    Copies and pickles start empty.
    """

    def __init__(self) -> None:
        self._plans: dict[int, tuple[weakref.ref[Program], _Plan]] = {}
        self._arena = aligned_zeros(0, np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Interpreter, ())

    def __call__(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> None:
        """Run a program; see `Handler.run_program`."""
        entry = self._plans.get(id(program))
        if entry is None:
            key, plans = id(program), self._plans
            reference = weakref.ref(program, lambda _: plans.pop(key, None))
            entry = plans[key] = (reference, _Plan(program))
        schedule = entry[1].schedule(program, inputs, outputs, tuple(map(bool, accumulate)))
        if schedule.size > self._arena.size:
            self._arena = aligned_zeros(schedule.size, np.uint8)
        with np.errstate(all="ignore"):
            schedule.run(self._arena, inputs, outputs)


class _Plan:
    """The schedules of one program, and the arrays for which the last one was chosen."""

    def __init__(self, program: Program) -> None:
        self.flats: dict[tuple[bool, ...], Flat] = {}
        self.schedules: dict[Any, _Schedule] = {}
        self.arrays: list[weakref.ref[Any]] = []
        self.accumulate: tuple[bool, ...] = ()
        self.last: Any = None

    def schedule(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
    ) -> _Schedule:
        arrays = (*inputs, *outputs)
        same = self.accumulate == accumulate and len(arrays) == len(self.arrays)
        if self.last is None or not same or any(
            known() is not a for known, a in zip(self.arrays, arrays, strict=True)
        ):  # fmt: skip
            self.last = self._choose(program, inputs, outputs, accumulate)
            self.arrays = [weakref.ref(a) for a in arrays]
            self.accumulate = accumulate
        return self.last

    def _choose(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
    ) -> _Schedule:
        in_order = tuple(a.flags.c_contiguous for a in inputs)
        if len(self.schedules) >= MOST_SCHEDULES:
            self.schedules.clear()
            self.flats.clear()
        if in_order not in self.flats:
            self.flats[in_order] = Flat(program, in_order)
        flat = self.flats[in_order]
        modes = output_modes(flat, inputs, outputs, accumulate)
        key = (in_order, modes, accumulate)
        if key not in self.schedules:
            self.schedules[key] = _Schedule(flat, modes, accumulate)
        return self.schedules[key]


# -- running -----------------------------------------------------------------------------------


def _add(x: Array, *, out: Array) -> None:
    np.add(out, x, out=out, casting="unsafe")


class _Schedule:
    """Where every value lies, for one way of writing the outputs.

    Values beyond those of the `Flat`: its outputs, then copies of inputs.
    """

    def __init__(self, flat: Flat, modes: tuple[int, ...], accumulate: tuple[bool, ...]) -> None:
        self.flat = flat
        self.first_output = len(flat.values)
        self.count = self.first_output + len(modes)
        self.placed: list[tuple[int, int, Shape, Any]] = []  # (value, offset, shape, dtype)
        self.memory = Memory()
        self._ends: dict[int, list[tuple[int, int]]] = {}  # time -> places that are free then
        self.direct = {
            v: self.first_output + i
            for i, (v, mode) in enumerate(zip(flat.outputs, modes, strict=True))
            if mode == DIRECT
        }
        stores = [_add if add else copy for add in accumulate]
        self.before: list[tuple[int, int]] = []
        self.after: list[tuple[Any, int, int]] = []
        stored: dict[int, list[Instruction]] = {}
        last = {
            root: max(segment.time for segment, *_ in reads) for root, reads in flat.reads.items()
        }
        for i, (value, mode) in enumerate(zip(flat.outputs, modes, strict=True)):
            source, target = value, self.first_output + i
            shape = flat.values[value].shape
            if mode == SAVED:
                source, self.count = self.count, self.count + 1
                self.before.append((value, source))
                self._place(source, shape, flat.values[value].dtype)
            if mode == BLOCKWISE:
                stored.setdefault(value, []).append(Instruction(stores[i], (value,), target, shape))
            elif mode != DIRECT:
                self.after.append((stores[i], source, target))
                last[flat.values[value].root] = len(flat.segments)
        self.runs = [self._planned(segment, last, stored) for segment in flat.segments]
        self._find_views()
        self.size = self.memory.size
        self._arena: Any = None
        self._bound: list[Any] = []

    def _find_views(self) -> None:
        flat = self.flat
        self.constants = [
            (i, v.constant) for i, v in enumerate(flat.values) if v.constant is not None
        ]
        views = [(i, v.base, v.view) for i, v in enumerate(flat.values) if v.view is not None]
        moving = [flat.values[i].root < flat.inputs or flat.values[i].root in self.direct
                  for i, *_ in views]  # fmt: skip
        self.moving_views = [x for x, moves in zip(views, moving, strict=True) if moves]
        self.fixed_views = [x for x, moves in zip(views, moving, strict=True) if not moves]

    def _place(self, value: int, shape: Shape, dtype: Any) -> tuple[int, int]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        offset = self.memory.take(size)
        self.placed.append((value, offset, shape, dtype))
        return offset, size

    def _planned(
        self, segment: Segment, last: dict[int, int], stored: dict[int, list[Instruction]]
    ) -> _Whole | _Blocks:
        """Place what the segment computes, give back what it uses last."""
        values, passing, finished = self.flat.values, set(), []
        for instruction in segment.instructions:
            for x in (instruction.result, *instruction.memory):
                if x in self.direct:
                    continue
                ends = last.get(x, segment.time) <= segment.time
                if segment.shape is not None and ends:
                    passing.add(x)
                    continue
                place = self._place(x, values[x].shape, values[x].dtype)
                if ends:
                    finished.append(place)
                else:
                    self._ends.setdefault(last[x], []).append(place)
        if segment.shape is None:
            (instruction,) = segment.instructions
            run: _Whole | _Blocks = _Whole(instruction)
        else:
            code = [
                x
                for instruction in segment.instructions
                for x in (instruction, *stored.get(instruction.result, ()))
            ]
            run = _Blocks(self, segment.shape, code, passing)
            finished += run.slots
        for place in (*finished, *self._ends.pop(segment.time, ())):
            self.memory.give(*place)
        return run

    def _bind(self, arena: Array) -> None:
        """Make the arrays that lie in the scratch memory."""
        arrays: list[Any] = [None] * self.count
        for value, constant in self.constants:
            arrays[value] = constant
        for value, offset, shape, dtype in self.placed:
            arrays[value] = _array_at(arena, offset, shape, dtype)
        for value, base, view in self.fixed_views:
            arrays[value] = view(arrays[base])  # type: ignore[index]
        for run in self.runs:
            run.bind(arena)
        self._arena, self._bound = arena, arrays

    def run(self, arena: Array, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Compute and write the outputs."""
        if self._arena is not arena:
            self._bind(arena)
        arrays = self._bound.copy()
        arrays[: len(inputs)] = inputs
        arrays[self.first_output : self.first_output + len(outputs)] = outputs
        for value, target in self.direct.items():
            arrays[value] = arrays[target]
        for value, base, view in self.moving_views:
            arrays[value] = view(arrays[base])  # type: ignore[index]
        for value, saved in self.before:
            np.copyto(arrays[saved], arrays[value])
        for run in self.runs:
            run(arrays)
        for store, value, target in self.after:
            store(arrays[value], out=arrays[target])


def _array_at(arena: Array, offset: int, shape: Shape, dtype: Any) -> Array:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return arena[offset : offset + size].view(dtype).reshape(shape)


class _Whole:
    """One instruction on whole arrays."""

    def __init__(self, instruction: Instruction) -> None:
        self.function, self.params = instruction.function, instruction.params
        self.arguments = instruction.operands + instruction.memory
        self.result = instruction.result

    def bind(self, arena: Array) -> None:
        """Nothing lies in memory of its own."""

    def __call__(self, arrays: Sequence[Any]) -> None:
        arguments = [arrays[x] for x in self.arguments]
        self.function(*arguments, out=arrays[self.result], **self.params)


class _Blocks:
    """Element-wise instructions on one shape, block by block."""

    def __init__(
        self, schedule: _Schedule, shape: Shape, code: Sequence[Instruction], passing: set[int]
    ) -> None:
        self.shape = shape
        self.axis, self.length = block_geometry(shape)
        self.code = [(x.function, x.operands + x.memory, x.result, x.params) for x in code]
        self.slots: list[tuple[int, int]] = []
        self._placed: list[tuple[int, int, Any]] = []
        values = schedule.flat.values
        last = {x: i for i, (_, arguments, *_) in enumerate(self.code) for x in arguments}
        used: dict[int, int] = {}
        free: list[int] = []
        block = BLOCK * max((values[x].dtype.itemsize for x in passing), default=0)
        for i, instruction in enumerate(code):
            for x in (*instruction.memory, instruction.result):
                if x not in passing:
                    continue
                if not free:
                    free.append(schedule.memory.take(block))
                    self.slots.append((free[-1], block))
                used[x] = free.pop()
                self._placed.append((x, used[x], values[x].dtype))
            for x in {*self.code[i][1], instruction.result}:
                if x in used and last.get(x, i) <= i:
                    free.append(used.pop(x))
        outside = {x for _, arguments, result, _ in self.code for x in (*arguments, result)}
        self.parts: dict[Any, list[int]] = {}
        self.same: list[int] = []
        for x in sorted(outside - passing):
            own = values[x].shape if x < len(values) else shape
            pattern = _pattern(own, shape, self.axis)
            if pattern:
                self.parts.setdefault(pattern, []).append(x)
            else:
                self.same.append(x)

    def bind(self, arena: Array) -> None:
        """Make the arrays that hold one block."""
        inner = self.shape[self.axis + 1 :]
        rest = self.shape[self.axis] % self.length

        def made(length: int) -> list[tuple[int, Array]]:
            return [(x, _array_at(arena, at, (length, *inner), t)) for x, at, t in self._placed]

        self._of_length = {n: made(n) for n in (self.length, rest) if n}

    def _indices(self) -> Iterator[tuple[tuple[Any, ...], int]]:
        total = self.shape[self.axis]
        for lead in itertools.product(*map(range, self.shape[: self.axis])):
            for start in range(0, total, self.length):
                stop = min(start + self.length, total)
                yield (*lead, slice(start, stop)), stop - start

    def __call__(self, arrays: Sequence[Any]) -> None:
        block: dict[int, Array] = {x: arrays[x] for x in self.same}
        for index, length in self._indices():
            block.update(self._of_length[length])
            for pattern, members in self.parts.items():
                part = tuple(
                    index[j] if whole else (0 if j < self.axis else slice(None))
                    for j, whole in pattern
                )
                for x in members:
                    block[x] = arrays[x][part]
            for function, arguments, result, params in self.code:
                function(*[block[x] for x in arguments], out=block[result], **params)


def _pattern(own: Shape, shape: Shape, axis: int) -> tuple[tuple[int, bool], ...]:
    """Return which of the axes up to `axis` an operand has, and whether it has them in full."""
    ahead = len(shape) - len(own)
    return tuple((j, own[j - ahead] == shape[j]) for j in range(max(ahead, 0), axis + 1))
