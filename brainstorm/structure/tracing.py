"""The traces of a network: what it does again and again is traced once, and then replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from brainstorm.handlers.traces import Trace, replays_are_enabled
from brainstorm.structure.buffers import BufferManager

__all__ = ["Traces"]

#: How many traces are kept: one for each T, B, and whatever else the caller tells apart.
MOST_TRACES = 64


class Traces:
    """The traces of one purpose, by T, B and whether a context is carried on.

    A trace is made when something is done, and anew when something has changed that it depends on.
    Copies start empty.
    """

    def __init__(self) -> None:
        #: Key to what the trace depends on, the trace, and where the last pass in it ended.
        self._kept: dict[Hashable, tuple[Any, Trace, int | None]] = {}

    def clear(self) -> None:
        """Forget all traces, and let the memory go that they hold."""
        self._kept.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Traces, ())

    def run(
        self,
        manager: BufferManager,
        depends: Callable[[], Any],
        function: Callable[[], None],
        purpose: Hashable = None,
    ) -> None:
        """Do something with a network, by the calls that it came down to when it was done before.

        Args:
            manager: The network's memory.
            depends: Returns what traces depend on, beside T, B and the memory.
            function: Does it.
            purpose: Tells apart what is done with networks of the same sizes.
        """
        handler = manager.handler
        if not (handler.replays and replays_are_enabled()) or handler.running.trace is not None:
            function()
            return
        key = (purpose, manager.time_size, manager.batch_size, manager.carries_context)
        stamp = manager.stamp, depends()
        known = self._kept.pop(key, None)
        if known is not None and known[0] == stamp:
            self._kept[key] = known  # now it is the last of all
            manager.position = None
            known[1].replay()
            manager.position = known[2]
            return
        trace = handler.trace(function)
        if (manager.stamp, depends()) == stamp:
            if len(self._kept) >= MOST_TRACES:
                del self._kept[next(iter(self._kept))]  # the one that was not used for longest
            self._kept[key] = stamp, trace, manager.position
            manager.traces.add(self)
