"""The NumPy interpreter: the reference among the executors of op-trees.

Each step is one NumPy call into memory that is kept between runs. Large element-wise steps that
follow each other run together, block by block, so that what they hand on stays in the cache.
Transposes, slices and the like are views. Outputs are written at once where nothing is read from
their memory later, and after everything else where something is.
"""

from __future__ import annotations

import contextvars
import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.numpy_memory import aligned_zeros
from brainstorm.handlers.optree_blocks import Blocks, Call, Whole, array_at
from brainstorm.handlers.optree_functions import Shape, copy
from brainstorm.handlers.optree_outputs import BLOCKWISE, DIRECT, SAVED, output_modes
from brainstorm.handlers.optree_schedule import Flat, Instruction, Memory, Segment
from brainstorm.optree import Program
from brainstorm.utils import Array

__all__ = ["Interpreter"]

#: Schedules that are kept per program: one per way in which arrays overlap and are laid out.
MOST_SCHEDULES = 8
#: Sets of arrays that are remembered, and NumPy calls on them that are kept ready for a set.
MOST_SETS, MOST_CALLS = 512, 128


class Interpreter(threading.local):
    """Runs programs; schedules and scratch memory are kept per thread.

    Schedules live as long as their program. When the same arrays come for the second time, the
    calls on them are kept until one of the arrays is gone. Scratch memory grows to what the largest
    program needs. Copies and pickles start empty.
    """

    def __init__(self) -> None:
        self._schedules: dict[int, tuple[weakref.ref[Program], _Schedules]] = {}
        self._seen: dict[Any, tuple[_Schedule, Any]] = {}
        self._ready: dict[Any, list[Call]] = {}
        self._arena = aligned_zeros(0, np.uint8)
        # NumPy's way of dealing with overflow and the like is part of the context; to enter one
        # takes a tenth of the time of `numpy.errstate`.
        self._quiet = contextvars.Context()
        self._quiet.run(np.seterr, all="ignore")

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
        key = (id(program), *map(id, inputs), *map(id, outputs), *accumulate)
        calls: Iterable[Call] | None = self._ready.get(key)
        if calls is None:
            calls = self._calls(key, program, inputs, outputs, accumulate)
        self._quiet.run(_do, calls)

    def _calls(
        self,
        key: Any,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> Iterable[Call]:
        known = key in self._seen
        if not known:
            flags = tuple(map(bool, accumulate))
            schedule = self._schedules_of(program).schedule(inputs, outputs, flags)
            self._remember(key, schedule, (program, *inputs, *outputs))
        schedule = self._seen[key][0]
        if schedule.size > self._arena.size:
            self._arena = aligned_zeros(schedule.size, np.uint8)
            self._ready.clear()
        if not known or schedule.length > MOST_CALLS:
            return schedule.calls(self._arena, inputs, outputs)
        borrowed = ([_borrowed(array) for array in arrays] for arrays in (inputs, outputs))
        self._ready[key] = calls = list(schedule.calls(self._arena, *borrowed))
        return calls

    def _schedules_of(self, program: Program) -> _Schedules:
        key, known = id(program), self._schedules
        if key not in known:
            reference = weakref.ref(program, lambda _: known.pop(key, None))
            known[key] = (reference, _Schedules(program))
        return known[key][1]

    def _remember(self, key: Any, schedule: _Schedule, objects: Sequence[Any]) -> None:
        seen, ready = self._seen, self._ready
        if len(seen) >= MOST_SETS:
            seen.clear()
            ready.clear()

        def gone(_: Any) -> None:  # the id may be given to something else now
            seen.pop(key, None)
            ready.pop(key, None)

        seen[key] = (schedule, [weakref.ref(x, gone) for x in objects])


def _do(calls: Iterable[Call]) -> None:
    for function, arguments, options in calls:
        function(*arguments, **options)


class _Borrowed:
    """The memory of an array, without keeping it alive."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__


def _borrowed(array: Array) -> Array:
    return np.asarray(_Borrowed(array))


class _Schedules:
    """The schedules of one program."""

    def __init__(self, program: Program) -> None:
        self._program = weakref.ref(program)
        self._flats: dict[tuple[bool, ...], Flat] = {}
        self._schedules: dict[Any, _Schedule] = {}

    def schedule(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: tuple[bool, ...]
    ) -> _Schedule:
        in_order = tuple([a.flags.c_contiguous for a in inputs])
        if in_order not in self._flats:
            program = self._program()
            assert program is not None
            self._flats[in_order] = Flat(program, in_order)
        flat = self._flats[in_order]
        modes = output_modes(flat, inputs, outputs, accumulate)
        key = (in_order, modes, accumulate)
        if key not in self._schedules:
            if len(self._schedules) >= MOST_SCHEDULES:
                self._schedules.clear()
                self._flats = {in_order: flat}
            self._schedules[key] = _Schedule(flat, modes, accumulate)
        return self._schedules[key]


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
        self.length = len(self.before) + sum(run.length for run in self.runs) + len(self.after)
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
    ) -> Whole | Blocks:
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
            run: Whole | Blocks = Whole(instruction)
        else:
            code = [
                x
                for instruction in segment.instructions
                for x in (instruction, *stored.get(instruction.result, ()))
            ]
            run = Blocks(segment.shape, code, passing, values, self.memory)
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
            arrays[value] = array_at(arena, offset, shape, dtype)
        for value, base, view in self.fixed_views:
            arrays[value] = view(arrays[base])  # type: ignore[index]
        for run in self.runs:
            run.bind(arena)
        self._arena, self._bound = arena, arrays

    def calls(
        self, arena: Array, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Iterator[Call]:
        """Yield what has to be called, `length` times, to compute and write the outputs."""
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
            yield copy, (arrays[value],), {"out": arrays[saved]}
        for run in self.runs:
            yield from run.calls(arrays)
        for store, value, target in self.after:
            yield store, (arrays[value],), {"out": arrays[target]}
