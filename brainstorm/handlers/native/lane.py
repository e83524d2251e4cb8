"""Lanes: what native calls that follow each other share, and nobody else uses meanwhile."""

from __future__ import annotations

import dataclasses
import functools
import os
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers.compiled import CompiledProgram
from brainstorm.handlers.native.calls import Kernel
from brainstorm.handlers.native.library import Library, UnsupportedError
from brainstorm.handlers.native.primitives import Primitives
from brainstorm.handlers.numpy_memory import address_of, out_of_memory, reserved
from brainstorm.optree import Formula, Program
from brainstorm.optree.stages import NotRenderableError
from brainstorm.utils import Array

__all__ = ["Lane"]

#: How many operations with their arguments are remembered, beside programs; and of each program.
MOST_CALLS, MOST_CALLS_OF_PROGRAM = 4096, 256

_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


class Lane(Primitives):
    """Primitives, scratch memory, and the memo of what operations came down to.

    A thread has one of its own, and so has every network, whichever thread runs it.

    Attributes:
        version: Changes when calls that were built before should be built anew.
        refusals: Why programs have no kernel, for those that have none.
    """

    def __init__(
        self, library: Library | None, threads: int, is_half: bool, refusals: list[str]
    ) -> None:
        super().__init__(library, threads, is_half)
        self.version = 0
        self.refusals = refusals
        #: What was built for an operation with these arguments, at these places.
        self._calls: dict[Hashable, Any] = {}
        #: What was made of programs, with their calls; it goes when they do.
        self._programs: weakref.WeakKeyDictionary[Program, _Program] = weakref.WeakKeyDictionary()
        _lanes.add(self)

    def lowered(
        self, name: str, values: Iterable[Any], build: Callable[[], list[Any]]
    ) -> list[Any] | None:
        """Return the calls that an operation comes down to; None: it is for NumPy.

        Args:
            name: The operation.
            values: Its arguments.
            build: Returns the calls; what it returned is remembered.

        Raises:
            OutOfMemoryError: There is no memory for what lies between the calls.
        """
        key = (name, *map(_place_of, values))
        try:
            return self._calls[key]
        except KeyError:
            pass
        try:
            with out_of_memory(name):
                calls = build()
        except UnsupportedError:
            calls = None
        if len(self._calls) >= MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = calls
        return calls

    def only_measure(self) -> None:
        """Build calls that nobody executes, and hold no memory for them."""
        self.allocate = reserved

    @property
    def nbytes(self) -> int:
        """How much memory calls take beside their arguments."""
        programs = [p.compiled for p in self._programs.values() if p.compiled is not None]
        held = [*self.packed.values(), *programs]
        return self.workspace.nbytes + sum(holder.nbytes for holder in held)

    def forget(self) -> None:
        """Let calls that are built from now on use the memory that there is now."""
        self._calls.clear()
        for program in self._programs.values():
            program.forget()
        self.version += 1

    def clear(self) -> None:
        """Forget all that belongs to arrays: memory has moved."""
        self.forget()
        self.packed.clear()

    def run_alone(self) -> None:
        """Use one thread from now on: in a forked process others do not come."""
        self.threads = self.team = 1
        self._made.clear()
        self._programs.clear()
        self.clear()

    # -- op-trees ----------------------------------------------------------------------------

    def compute(
        self, formula: Formula, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> list[Kernel]:
        """Return the call that computes a formula.

        Raises:
            UnsupportedError: There is no kernel for it.
        """
        flags = (False,) * len(outputs)
        calls = self.program(formula.program(*inputs), inputs, outputs, flags)
        if calls is None:
            raise UnsupportedError("there is no kernel for the formula")
        return calls

    def program(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
    ) -> list[Kernel] | None:
        """Return the call that runs a program; None: there is no kernel for it."""
        known = self._programs.get(program)
        if known is None:
            known = self._programs[program] = _Program(program, self)
        arrays = (*inputs, *outputs)
        addresses = [address_of(array) for array in arrays]
        form = [(array.shape, array.strides, array.dtype.num) for array in arrays]
        key = (*addresses, *form, accumulate)
        calls = known.calls.get(key)
        if calls is None and known.compiled is not None:
            if len(known.calls) >= MOST_CALLS_OF_PROGRAM:
                del known.calls[next(iter(known.calls))]
            try:
                with out_of_memory("run_program"):
                    parts = known.compiled.parts(inputs, outputs, accumulate, addresses)
                calls = known.calls[key] = [Kernel(*parts, name="run_program")]
            except (NotRenderableError, MissingDependencyError) as error:
                known.compiled, known.refusal = None, str(error)
        if calls is None and known.refusal not in self.refusals:
            self.refusals.append(known.refusal)
        return calls


class _Program:
    """What was made of a program: its compiled form, if it has one, and calls by places."""

    def __init__(self, program: Program, lane: Lane) -> None:
        self.calls: dict[Hashable, list[Kernel]] = {}
        self.compiled: CompiledProgram | None = None
        self.refusal = ""
        try:
            # A copy: what holds the program itself would keep it for ever.
            workspace = functools.partial(lane.workspace, "formulas")
            self.compiled = CompiledProgram(
                dataclasses.replace(program), lane.threads, lane.allocate, workspace
            )
        except NotRenderableError as error:
            self.refusal = str(error)

    def forget(self) -> None:
        """Let calls be built anew."""
        self.calls.clear()
        if self.compiled is not None:
            self.compiled.forget()


def _place_of(value: Any) -> Hashable:
    """Return what calls depend on of an argument: where an array lies, and how."""
    if isinstance(value, np.ndarray):
        return address_of(value), value.shape, value.strides, value.dtype.num
    return tuple(value) if type(value) is list else value


def _after_fork() -> None:
    for lane in list(_lanes):
        lane.run_alone()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
