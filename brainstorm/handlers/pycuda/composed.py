"""Op-trees with products and indexing: parts that are loops, and these steps between them.

Each step has a level: how many products and indexings lie in a row before it. The loops of a level
become one program, and what later levels need of it is stored.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.builders import add_picked
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.programs import DeviceProgram
from brainstorm.optree import Program, Variable, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.program import Step
from brainstorm.utils import Arrays

__all__ = ["ComposedProgram", "is_composed"]

_KINDS = ("product", "indexing")
_classes = formula(lambda indices, classes: fn.equal(indices, classes))


def is_composed(program: Program) -> bool:
    """Return whether a program has steps that are no loops."""
    return any(step.operator.kind in _KINDS for step in program.steps)


class ComposedProgram:
    """Turns such a program and arrays into launches.

    Args:
        program: The program.
        handler: Whose building blocks it uses.

    Raises:
        HandlerValidationError: It computes in float64.
    """

    def __init__(self, program: Program, handler: Any) -> None:
        for step in program.steps:
            if step.operator.kind in _KINDS and step.dtype != np.float32:
                raise HandlerValidationError(
                    f"op-tree on a GPU: expected float32 for the operator {step.operator.name!r}, "
                    f"got {step.dtype}. Compute it on the CPU, or with float32 arrays."
                )
        self._program = program
        self._first = len(program.inputs)
        self._levels = self._count_levels()
        self._arrays = {
            value: DeviceArray.new(
                handler._device, program.shape_of(value), program.dtype_of(value)
            )
            for value in self._values_to_store()
        }
        known: set[int] = set(range(self._first))
        self._parts: list[_Part | Step] = []
        for level in range(max(self._levels) + 1):
            at_level = [s for s in program.steps if self._levels[s.result] == level]
            picked = [s for s in at_level if not _is_loop(s)]
            self._parts += picked
            known |= {s.result for s in picked}
            stored = [s.result for s in at_level if _is_loop(s) and s.result in self._arrays]
            if stored:
                self._parts.append(_Part(program, stored, known, handler._device))
                known |= set(stored)
        self._last = _Part(program, program.outputs, known, handler._device)

    def _count_levels(self) -> list[int]:
        levels = [0] * self._first
        for step in self._program.steps:
            before = max([0, *(levels[x] for x in _operands(step))])
            levels.append(before + (not _is_loop(step)))
        return levels

    def _values_to_store(self) -> list[int]:
        """Return the values of products and indexings, and those that they or later levels use."""
        stored = set()
        for step in self._program.steps:
            if not _is_loop(step):
                stored |= {step.result, *_operands(step)}
            level = self._levels[step.result]
            stored |= {x for x in _operands(step) if self._levels[x] < level}
        return sorted(value for value in stored if value >= self._first)

    def collect(
        self, build: Building, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        """Add the launches that compute the outputs; see `DeviceProgram`."""
        arrays = {**dict(enumerate(inputs)), **self._arrays}
        build.kept += self._arrays.values()
        for part in self._parts:
            if isinstance(part, _Part):
                written = [arrays[value] for value in part.writes]
                part.collect(build, arrays, written, [False] * len(written))
            else:
                operands = [arrays[x] for x in _operands(part)]
                _STEPS[part.operator.name](build, *operands, arrays[part.result], **part.params)
        self._last.collect(build, arrays, outputs, accumulate)


def _is_loop(step: Step) -> bool:
    return step.operator.kind not in _KINDS


def _operands(step: Step) -> list[int]:
    return [x for x in step.operands if isinstance(x, int)]


class _Part:
    """The loops of a level: a program from what is known to what is stored."""

    def __init__(
        self, program: Program, outputs: Sequence[int], known: set[int], device: Any
    ) -> None:
        needed, steps = set(outputs), []
        for step in reversed(program.steps):
            if step.result in needed and step.result not in known:
                steps.append(step)
                needed |= set(_operands(step))
        self.reads, self.writes = sorted(needed & known), list(outputs)
        numbers = {value: i for i, value in enumerate(self.reads)}
        renumbered = []
        for step in reversed(steps):
            operands = tuple(numbers[x] if isinstance(x, int) else x for x in step.operands)
            numbers[step.result] = len(numbers)
            renumbered.append(
                dataclasses.replace(step, operands=operands, result=numbers[step.result], frees=())
            )
        variables = tuple(
            Variable(program.shape_of(v), program.dtype_of(v), f"v{v}") for v in self.reads
        )
        part = Program(variables, tuple(renumbered), tuple(numbers[v] for v in outputs))
        self._program = DeviceProgram(part, device)

    def collect(
        self, build: Building, arrays: Any, outputs: Any, accumulate: Sequence[bool]
    ) -> None:
        """Add its launches."""
        self._program.collect(build, [arrays[v] for v in self.reads], outputs, accumulate)


# -- products and indexing ---------------------------------------------------------------------


def _dot(build: Building, x: DeviceArray, y: DeviceArray, out: DeviceArray) -> None:
    ahead = out.shape[:-2]
    stacks = [a.broadcast_to((*ahead, *a.shape[-2:])) for a in (x, y)]
    for place in np.ndindex(*ahead[:-1]):
        build.product(stacks[0][place], stacks[1][place], out[place])


def _sizes(shape: tuple[int, ...], axis: int, count: int = 1) -> tuple[int, int]:
    """Return how many elements lie before some axes, and behind them."""
    return math.prod(shape[:axis]), math.prod(shape[axis + count :])


def _as_indices(build: Building, indices: DeviceArray) -> DeviceArray:
    if indices.dtype == np.float32:
        return build.dense(indices)
    converted = build.temporary(indices.shape)
    build.copy(indices, converted)
    return converted


def _take(build: Building, x: Any, indices: Any, out: Any, axis: int, each: int = 0) -> None:
    inner = _sizes(x.shape, axis)[1]
    picks = out.shape[axis] if each else indices.size
    sizes = (out.size, x.shape[axis], picks, inner, each)
    build.kernel("take_rows", out.size, build.dense(x), _as_indices(build, indices), out, *sizes)


def _gather(build: Building, x: Any, indices: Any, out: Any, axis: int) -> None:
    _take(build, x, indices, out, axis, each=1)


def _put(build: Building, values: Any, indices: Any, out: Any, axis: int, size: int) -> None:
    inner = _sizes(values.shape, axis, indices.ndim)[1]
    build.clear(out)
    add_picked(build, build.dense(values), _as_indices(build, indices), out, size, inner)


def _scatter(build: Building, values: Any, indices: Any, out: Any, axis: int, size: int) -> None:
    outer, inner = _sizes(values.shape, axis)
    build.clear(out)
    sizes = (outer * inner, size, values.shape[axis], inner)
    picked = _as_indices(build, indices)
    build.kernel("scatter_each", outer * inner, build.dense(values), picked, out, *sizes)


def _onehot(build: Building, indices: Any, out: Any, axis: int, size: int) -> None:
    counting = build.constant(build.handler._counting(size))
    classes = counting.reshape((size, *(1,) * (out.ndim - axis - 1)))
    build.program(_classes, [_as_indices(build, indices), classes], [out])


_STEPS: dict[str, Callable[..., None]] = {
    "dot": _dot,
    "take": _take,
    "gather": _gather,
    "put": _put,
    "scatter": _scatter,
    "onehot": _onehot,
}
