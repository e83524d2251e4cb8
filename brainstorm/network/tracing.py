"""The traces of a network: repeated computations are traced once, and then replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from brainstorm.errors import NetworkValidationError
from brainstorm.handlers.traces import Trace, replays_are_enabled
from brainstorm.structure.buffers import BufferManager

#: Maximum number of steps in all kept traces. There is one trace for each T, B, S, and whatever
#: else the caller distinguishes. A step takes about three kilobytes.
MOST_STEPS = 2**16


def repeat(manager: BufferManager, position: int | None, function: Callable[[], None]) -> None:
    """Call a function that repeats passes, of which the last one ends at a position."""
    manager.position = None
    function()
    manager.position = position


def check_planned(planned: tuple[Any, ...], present: tuple[Any, ...]) -> None:
    """Raise an error if what planned calls depend on, which begins with T, B and S, has changed."""
    if present != planned:
        raise NetworkValidationError(
            f"plan().replay: expected the sizes {planned[0]} and the network of the plan, got the "
            f"sizes {present[0]}, or its memory, layers or modifiers have changed since. Make "
            f"another plan: net.plan()."
        )


class Traces:
    """The traces of one purpose, by T, B, S and whether a context is carried on.

    A computation is traced when it is first done, and again when something that it depends on has
    changed. Copies start empty.
    """

    def __init__(self) -> None:
        #: Key to the state that the trace depends on, and the trace.
        self._kept: OrderedDict[Hashable, tuple[Any, Trace]] = OrderedDict()
        self._steps = 0

    @property
    def kept(self) -> dict[Hashable, Trace]:
        """The traces by purpose, T, B, S and whether a context is carried on; last used last."""
        return {key: trace for key, (_, trace) in self._kept.items()}

    def clear(self) -> None:
        """Drop all traces and the memory that they hold."""
        self._kept.clear()
        self._steps = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return (Traces, ())

    def run(
        self,
        manager: BufferManager,
        depends: Callable[[], Any],
        function: Callable[[], None],
        purpose: Hashable = None,
    ) -> None:
        """Do something with a network, by replaying its trace if there is one.

        Args:
            manager: The network's memory.
            depends: Returns the state that traces depend on, except sizes and the memory.
            function: Does it.
            purpose: Distinguishes computations with networks of the same sizes.
        """
        handler = manager.handler
        if not handler.replays or handler.running.trace is not None:
            function()
            return
        key = (purpose, *manager.sizes, manager.carries_context)
        stamp = manager.stamp, depends()
        known = self._kept.get(key)
        if known is not None and known[0] == stamp:
            self._kept.move_to_end(key)
            known[1].replay()
            return
        if known is not None:
            self._forget(key)
        if not replays_are_enabled():
            function()
            return
        version, passes = manager.lane and manager.lane.version, manager.passes
        trace = handler.trace(function)
        # A trace holds the scratch memory that it began with; if that grew, the next needs less.
        has_grown = version != (manager.lane and manager.lane.version)
        if (manager.stamp, depends()) == stamp and not has_grown:
            if manager.passes != passes:
                trace.around = partial(repeat, manager, manager.position)
            self._keep(key, stamp, trace)
            manager.traces.add(self)

    def _keep(self, key: Hashable, stamp: Any, trace: Trace) -> None:
        while self._kept and self._steps + len(trace.steps) > MOST_STEPS:
            self._forget(next(iter(self._kept)))  # the least recently used
        self._kept[key] = stamp, trace
        self._steps += len(trace.steps)

    def _forget(self, key: Hashable) -> None:
        _, trace = self._kept.pop(key)
        self._steps -= len(trace.steps)
