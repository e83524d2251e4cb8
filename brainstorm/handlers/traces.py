"""Traces: the calls that operations came down to, kept while they ran, and done again.

    with handler.tracing() as trace:
        handler.dot_mm(x, w, y)  # runs, and its calls are kept
    trace.replay()  # does the same to what is in the arrays now

An operation comes down to calls: of a C function, of a kernel on a GPU, or of a Python function,
each with its arguments. A pass is a fixed sequence of operations over fixed memory, so its calls
can be repeated without the layers. What else happens between operations is no part of a trace,
unless it is done by `Handler.call`: then it is called again in every replay.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, ClassVar, NamedTuple

__all__ = ["Report", "State", "Step", "Trace", "Traceable", "owners", "replays_are_enabled"]


def replays_are_enabled() -> bool:
    """Return whether traces may be replayed: not with BRAINSTORM_REPLAY=0 in the environment."""
    return os.environ.get("BRAINSTORM_REPLAY", "1") != "0"


class Step(NamedTuple):
    """A call that is kept.

    Attributes:
        call: Does it; takes nothing.
        operation: Of the handler, or ``'python'`` for what happens between operations.
        arrays: Those of the operation, which must not go before the call does.
        place: Whose call it is, e.g. ``'Lstm, forward'``.
    """

    call: Callable[[], Any]
    operation: str
    arrays: tuple[Any, ...]
    place: str

    def __str__(self) -> str:
        return " ".join([self.operation, *(f"{tuple(array.shape)}" for array in self.arrays)])


def owners(steps: Iterable[Step]) -> list[Any]:
    """Return what must not go before the steps do: what the memory of their arrays belongs to."""
    found = {}
    for step in steps:
        for array in step.arrays:
            owner = getattr(array, "base", None)
            owner = array if owner is None else owner
            found[id(owner)] = owner
    return list(found.values())


class Report(str):
    """A table of steps with their times: text, which a notebook shows as a table.

    Attributes:
        rows: Its cells.
    """

    rows: Sequence[tuple[str, ...]] = ()

    def _repr_html_(self) -> str:
        heads = "".join(
            f"<th>{head}</th>" for head in ("time", "share", "layer, pass", "operation")
        )
        aligns = ("right", "right", "left", "left")
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{align}">{escape(cell)}</td>'
                for align, cell in zip(aligns, row, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        return f"<table><tr>{heads}</tr>{body}</table>"


class Trace:
    """Calls, in their order.

    Args:
        handler: Whose calls they are.
        runs: Whether operations run while they are traced; else they are only kept.

    Attributes:
        steps: What was kept.
        place: Goes into all that is kept from now on.
        reads: The operations with a result that ran meanwhile, which a replay does not repeat.
    """

    def __init__(self, handler: Any, runs: bool = True) -> None:
        self.handler, self.runs = handler, runs
        self.steps: list[Step] = []
        self.place = ""
        self.reads: list[str] = []
        self._functions: Sequence[Callable[[], Any]] | None = None

    def keep(
        self, calls: Iterable[Callable[[], Any]], operation: str, given: Iterable[Any]
    ) -> None:
        """Keep the calls of an operation, and those of its arguments that are arrays."""
        arrays = tuple([value for value in given if hasattr(value, "dtype")])
        self.steps += [Step(call, operation, arrays, self.place) for call in calls]

    def replay(self) -> None:
        """Do all calls, on what is in their arrays now."""
        if self._functions is None:
            self._functions = self.handler.compile([step.call for step in self.steps])
        for function in self._functions:
            function()

    def profile(self, repeats: int = 20) -> list[tuple[Step, float]]:
        """Return every step with the shortest time that it took, in seconds.

        Args:
            repeats: How often all steps are done, in their order.
        """
        best = [float("inf")] * len(self.steps)
        for _ in range(repeats):
            for i, step in enumerate(self.steps):
                start = time.perf_counter()
                step.call()
                best[i] = min(best[i], time.perf_counter() - start)
        return list(zip(self.steps, best, strict=True))

    def report(self, repeats: int = 20) -> Report:
        """Return a table of the steps: microseconds, share, place, operation, shapes."""
        timed = self.profile(repeats)
        total = sum(seconds for _, seconds in timed)
        rows = [
            (f"{1e6 * seconds:.1f} us", f"{100 * seconds / total:.1f} %", step.place, str(step))
            for step, seconds in timed
        ]
        rows.append((f"{1e6 * total:.1f} us", "", f"{len(timed)} calls", ""))
        lines = [f"{time:>12} {share:>7}  {where:<32} {what}" for time, share, where, what in rows]
        report = Report("\n".join(line.rstrip() for line in lines))
        report.rows = rows
        return report

    def __repr__(self) -> str:
        lines = [f"{step.place:<32} {step}" for step in self.steps]
        return "\n".join([f"<trace of {len(lines)} calls>", *lines])


class State(threading.local):
    """What a thread does with a handler at the moment; copies and pickles start anew.

    Attributes:
        trace: Where calls are kept, if they are.
        lane: What the calls of this thread, or of a network, have to themselves; see
            `Handler.new_lane`.
    """

    trace: Trace | None = None
    lane: Any = None

    @contextlib.contextmanager
    def at(self, place: str) -> Iterator[None]:
        """Say of calls that are kept whose they are, until the ``with`` block ends."""
        trace = self.trace
        if trace is not None:
            trace.place = place
        try:
            yield
        finally:
            if trace is not None:
                trace.place = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (State, ())


class Traceable:
    """Base of what computes with operations: layers, steppers, modifiers."""

    __slots__ = ("revision",)

    #: Whether its passes, its update or its call do nothing but handler operations, the same ones
    #: each time until a public attribute changes. Then the operations are traced; else the method
    #: is called in every replay. It is said of one class: a subclass must say it of itself.
    is_traceable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.is_traceable = vars(cls).get("is_traceable", False)

    #: How often a public attribute was changed.
    revision: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an object of which nothing was changed yet."""
        new = super().__new__(cls)
        object.__setattr__(new, "revision", 0)
        return new

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and vars(self).get(name, Traceable) is not value:
            object.__setattr__(self, "revision", self.revision + 1)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        object.__setattr__(self, "revision", self.revision + 1)
        super().__delattr__(name)
