"""Traces: the calls of operations, recorded while they run, and replayed.

    with handler.tracing() as trace:
        handler.dot_mm(x, w, y)  # runs, and its calls are recorded
    trace.replay()  # repeats them with the present content of the arrays

An operation consists of calls: of a C function, of a kernel on a GPU, or of a Python function, each
with its arguments. A pass is a fixed sequence of operations on fixed memory, so its calls can be
repeated without the layers. Other code between operations is not part of a trace, unless it runs in
`Handler.call`: then it is called again in every replay.
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Any, ClassVar, NamedTuple

from brainstorm.display import without_middle
from brainstorm.errors import HandlerValidationError

__all__ = ["Report", "State", "Step", "Trace", "Traceable", "owners", "replays_are_enabled"]


def replays_are_enabled() -> bool:
    """Return whether traces may be replayed: not with BRAINSTORM_REPLAY=0 in the environment."""
    return os.environ.get("BRAINSTORM_REPLAY", "1") != "0"


class Step(NamedTuple):
    """A recorded call.

    Attributes:
        call: A function without arguments.
        operation: The operation, or ``'python'`` for functions passed to `Handler.call`.
        arrays: The arrays of the operation, kept alive for the call.
        place: The place of the call, e.g. ``'Lstm, forward'``.
    """

    call: Callable[[], Any]
    operation: str
    arrays: tuple[Any, ...]
    place: str

    def __str__(self) -> str:
        return " ".join([self.operation, *(f"{tuple(array.shape)}" for array in self.arrays)])

    def __repr__(self) -> str:
        return f"<{self.place}: {self}>" if self.place else f"<{self}>"


def owners(steps: Iterable[Step]) -> list[Any]:
    """Return the owners of the memory of all arrays, to be kept alive for the steps."""
    found = {}
    for step in steps:
        for array in step.arrays:
            owner = getattr(array, "base", None)
            owner = array if owner is None else owner
            found[id(owner)] = owner
    return list(found.values())


class Report(str):
    """A table of steps with their times: text, shown as a table in notebooks.

    Attributes:
        rows: The cells of the table.
    """

    rows: Sequence[tuple[str, ...]] = ()

    __repr__ = str.__str__

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
    """Calls in order.

    Args:
        handler: The handler of the calls.
        runs: Whether operations are executed while they are traced, or only recorded.

    Attributes:
        steps: The recorded calls.
        place: The place of the calls recorded next.
        described: What errors in a replay call a place, if not by its name.
        reads: The operations with results that ran while tracing, which a replay does not repeat.
        around: Calls the function that repeats the calls; it may wait, refuse, or do more.
    """

    def __init__(self, handler: Any, runs: bool = True) -> None:
        self.handler, self.runs = handler, runs
        self.steps: list[Step] = []
        self.place = ""
        self.described: dict[str, str] = {}
        self.reads: list[str] = []
        self.around: Callable[[Callable[[], None]], None] = operator.call
        self._functions: Sequence[Callable[[], Any]] | None = None

    def keep(
        self, calls: Iterable[Callable[[], Any]], operation: str, given: Iterable[Any]
    ) -> None:
        """Record the calls of an operation, and its array arguments."""
        arrays = tuple([value for value in given if hasattr(value, "dtype")])
        self.steps += [Step(call, operation, arrays, self.place) for call in calls]

    def replay(self) -> None:
        """Execute all calls on the present content of their arrays."""
        self.around(self._replay)

    def _replay(self) -> None:
        if self._functions is None:
            self._functions = self.handler.compile([step.call for step in self.steps])
        try:
            for function in self._functions:
                function()
        except HandlerValidationError as error:
            place = next((step.place for step in self.steps if step.call is function), "")
            place = self.described.get(place, place)
            error.args = (f"{place}: {error}" if place else str(error),)
            raise

    def profile(self, repeats: int = 20) -> list[tuple[Step, float]]:
        """Return every step with its shortest time in seconds.

        Args:
            repeats: Number of runs of all steps.
        """
        best = [float("inf")] * len(self.steps)

        def measure() -> None:
            for i, step in enumerate(self.steps):
                start = time.perf_counter()
                step.call()
                best[i] = min(best[i], time.perf_counter() - start)

        for _ in range(repeats):
            self.around(measure)
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
        shown = without_middle(lines, "... {} more ...".format)
        return "\n".join([f"<trace of {len(lines)} calls>", *shown])


class State(threading.local):
    """The state of a thread that uses a handler; copies and pickles start fresh.

    Attributes:
        trace: The trace being recorded, if any.
        turns: Those of the networks that the thread computes with, or did; the last one is that of
            the lane.
    """

    trace: Trace | None = None
    turns: Sequence[Any] = ()
    _lane: Any = None

    @property
    def lane(self) -> Any:
        """Memory for the calls of this thread, or of a network; see `Handler.new_lane`."""
        for turn in self.turns[::-1]:
            if turn._is_owned():
                return turn.lane
        return self._lane

    @lane.setter
    def lane(self, lane: Any) -> None:
        self._lane = lane

    @contextlib.contextmanager
    def at(self, place: str, described: str = "") -> Iterator[None]:
        """Set the place of recorded calls, and what errors call it, until the block ends."""
        trace = self.trace
        if trace is not None:
            trace.place = place
            trace.described[place] = described or place
        try:
            yield
        finally:
            if trace is not None:
                trace.place = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (State, ())


class Traceable:
    """Base of objects that compute with operations: layers, steppers, modifiers."""

    __slots__ = ("revision",)

    #: Whether its passes, its update or its call do only handler operations, the same ones each
    #: time until a public attribute changes. If so, the operations are traced; if not, the method
    #: is called in every replay. Subclasses must declare it themselves.
    is_traceable: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.is_traceable = vars(cls).get("is_traceable", False)

    #: Number of changes of attributes that decide which operations are done.
    revision: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Create an object without recorded changes."""
        new = super().__new__(cls)
        object.__setattr__(new, "revision", 0)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Older protocols refuse classes with slots."""
        return super().__reduce_ex__(max(protocol, 2))

    def decides_operations(self, name: str) -> bool:
        """Return whether other operations may be done when this attribute changes."""
        return not name.startswith("_")

    def __setattr__(self, name: str, value: Any) -> None:
        before = vars(self).get(name, getattr(type(self), name, Traceable))
        if before is not value and self.decides_operations(name):
            object.__setattr__(self, "revision", self.revision + 1)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self.decides_operations(name):
            object.__setattr__(self, "revision", self.revision + 1)
        super().__delattr__(name)
