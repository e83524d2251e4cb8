"""From operations to calls: looked up by the addresses of the arguments, or built and cached.

    dot_mm = lowered("dot_mm", build)  # the method of a handler that is `Lowering`

An array at the address of an earlier one needs the same calls, so the cache need not know when
arrays are created or freed.
"""
# ruff: noqa: D102 (`run_program` is documented in base_handler)

from __future__ import annotations

import abc
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brainstorm.forks import renew_after_fork
from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.optree import Program
from brainstorm.utils import Arrays

#: Number of built calls from which `Memo.trim` evicts them, and the maximum number of those of
#: operations, and of each program. A pass through 1,000 layers has 6,000.
MANY_CALLS, MOST_CALLS = 2**12, 2**16

#: The calls of an operation; None: the base handler does it.
Calls: TypeAlias = list[Any] | None


class Memo:
    """The cached calls of operations and programs, and the executors of programs.

    Executors are given copies of the programs; they and their calls are dropped with the programs.

    Args:
        make_executor: Creates the executor of a program, or returns None.
        build: Returns the calls of an executor for inputs, outputs, and `accumulate`; if there are
            none for some arrays, there are none for any.
    """

    def __init__(
        self, make_executor: Callable[[Program], Any], build: Callable[..., Calls]
    ) -> None:
        self._make_executor, self._build = make_executor, build
        self._calls: dict[Hashable, Calls] = {}
        self._built = 0  # how often calls were built since they were last dropped
        self.renew()
        renew_after_fork(self)
        #: Program to its executor and the calls of this.
        self._programs: weakref.WeakKeyDictionary[Program, tuple[Any, dict[Hashable, Calls]]]
        self._programs = weakref.WeakKeyDictionary()

    def renew(self) -> None:
        """Replace the lock."""
        self._lock = threading.Lock()

    def calls(
        self, key: Hashable, build: Callable[[], Calls], known: dict[Hashable, Calls] | None = None
    ) -> Calls:
        """Return the result of `build` for this key, from the cache (of a program) if possible."""
        known = self._calls if known is None else known
        try:
            return known[key]
        except KeyError:
            pass
        calls = build()
        with self._lock:
            if len(known) >= MOST_CALLS:
                del known[next(iter(known))]
            known[key] = calls
            self._built += 1
        return calls

    def executor(self, program: Program) -> Any:
        """Return the executor of a program."""
        return self._entry(program)[0]

    def _entry(self, program: Program) -> tuple[Any, dict[Hashable, Calls]]:
        try:
            return self._programs[program]
        except KeyError:
            executor = self._make_executor(dataclasses.replace(program))
            with self._lock:
                return self._programs.setdefault(program, (executor, {}))

    def program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> Calls:
        """Return the calls that run a program."""
        executor, known = self._entry(program)
        if executor is None:
            return None
        flags = tuple(accumulate)
        key = (*map(_place_of, inputs), *map(_place_of, outputs), flags)
        calls = self.calls(key, lambda: self._build(executor, inputs, outputs, flags), known)
        if calls is None:
            self._programs[program] = None, {}
        return calls

    @property
    def executors(self) -> list[Any]:
        """All existing executors."""
        return [executor for executor, _ in self._programs.values() if executor is not None]

    def forget(self) -> None:
        """Drop all cached calls; traces keep those that they have."""
        with self._lock:
            for known in self._known():
                known.clear()
            self._built = 0

    def _known(self) -> list[dict[Hashable, Calls]]:
        """Return all cached calls; the lock is held, since threads add programs."""
        return [self._calls, *(known for _, known in self._programs.values())]

    def trim(self) -> None:
        """Drop everything if it is much: most of it is for sizes that may not come again."""
        if self._built >= MANY_CALLS:
            with self._lock:
                self._calls.clear()
                self._programs.clear()
                self._built = 0


class Lowering(Handler):
    """Base of handlers that build the calls of operations, and cache them."""

    @property
    @abc.abstractmethod
    def memo(self) -> Memo:
        """The cache of this thread."""

    @abc.abstractmethod
    def _build_calls(
        self, name: str, builder: Callable[..., Any], arguments: Mapping[str, Any]
    ) -> Calls:
        """Return the calls of an operation.

        Args:
            name: The operation.
            builder: The argument of `lowered`.
            arguments: The arguments by name.
        """

    def run_program(
        self, program: Program, inputs: Arrays, outputs: Arrays, accumulate: Sequence[bool]
    ) -> None:
        calls = self.memo.program(program, inputs, outputs, accumulate)
        if calls is None:
            given = program, tuple(inputs), tuple(outputs), tuple(accumulate)
            calls = [_instead(self, "run_program", given)]
        self.execute(calls, program.name, (*inputs, *outputs))

    run_program.executes = True  # type: ignore[attr-defined]


def lowered(name: str, builder: Callable[..., Any]) -> Any:
    """Return the method of an operation whose calls are built; see `Lowering._build_calls`."""
    contract = Handler.operations()[name]
    names = tuple(contract.signature.parameters)

    @functools.wraps(getattr(Handler, name))
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        values = contract.complete(args, kwargs)

        def build() -> Any:
            return self._build_calls(name, builder, dict(zip(names, values, strict=True)))

        calls = self.memo.calls((name, *map(_place_of, values)), build)
        if calls is None:
            calls = [_instead(self, name, values)]
        self.execute(calls, name, values)

    run.__isabstractmethod__ = False  # type: ignore[attr-defined]
    run.executes = True  # type: ignore[attr-defined]
    return run


def _instead(handler: Lowering, name: str, values: Sequence[Any]) -> Callable[[], Any]:
    """Return a call of the method that the handler would have without lowering."""
    return functools.partial(getattr(super(Lowering, handler), name), *values)


def _place_of(value: Any) -> Hashable:
    """Return the properties of an argument that calls depend on: address and layout of an array."""
    if isinstance(value, np.ndarray):
        place = address_of(value), value.shape, value.strides, value.dtype
        return place if value.flags.writeable else (*place, "read only")
    if isinstance(address := getattr(value, "address", None), int):
        return address, value.shape, value.strides, value.dtype
    return tuple(value) if type(value) is list else value
