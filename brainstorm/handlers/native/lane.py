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

#: How many operations are remembered with their arguments.
MOST_CALLS = 4096

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
        #: What was made of programs, or why nothing was; it goes when they do.
        self._programs: weakref.WeakKeyDictionary[Program, CompiledProgram | str] = (
            weakref.WeakKeyDictionary()
        )
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
        return self._remember(key, calls)

    def only_measure(self) -> None:
        """Build calls that nobody executes, and hold no memory for them."""
        self.allocate = reserved

    @property
    def nbytes(self) -> int:
        """How much memory calls take beside their arguments."""
        made = [program for program in self._programs.values() if not isinstance(program, str)]
        return self.workspace.nbytes + sum(held.nbytes for held in (*self.packed.values(), *made))

    def forget(self) -> None:
        """Let calls that are built from now on use the memory that there is now."""
        self._calls.clear()
        for program in self._programs.values():
            if not isinstance(program, str):
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
        arrays = (*inputs, *outputs)
        addresses = [address_of(array) for array in arrays]
        form = [(array.shape, array.strides, array.dtype.num) for array in arrays]
        try:
            compiled = self._compiled(program)
            key = (compiled, *addresses, *form, accumulate)  # the program itself may go
            calls = self._calls.get(key)
            if calls is not None:
                return calls
            with out_of_memory("run_program"):
                parts = compiled.parts(inputs, outputs, accumulate, addresses)
        except (NotRenderableError, MissingDependencyError) as error:
            self._programs[program] = refusal = str(error)
            if refusal not in self.refusals:
                self.refusals.append(refusal)
            return None
        return self._remember(key, [Kernel(*parts, name="run_program")])

    def _compiled(self, program: Program) -> CompiledProgram:
        made = self._programs.get(program)
        if made is None:
            # A copy: what holds the program itself would keep it for ever.
            workspace = functools.partial(self.workspace, "formulas")
            made = self._programs[program] = CompiledProgram(
                dataclasses.replace(program), self.threads, self.allocate, workspace
            )
        if isinstance(made, str):
            raise NotRenderableError(made)
        return made

    def _remember(self, key: Hashable, calls: Any) -> Any:
        if len(self._calls) >= MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = calls
        return calls


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
