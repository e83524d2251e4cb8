"""Timing on a GPU: by events in its stream, in turns, after everything is warm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from benchmarks.timing import Times

__all__ = ["Clock", "Timed", "take_turns_on_gpu"]

WARM_UP = 3
#: Milliseconds between two events, at least: the events themselves cost some microseconds.
SAMPLE = 10.0


class Clock(Protocol):
    """Makes events in a stream, and tells the time between two."""

    def record(self) -> Any:
        """Return an event."""

    def milliseconds(self, start: Any, end: Any) -> float:
        """Return the time between two events, when both are over."""


class Timed(NamedTuple):
    """What is timed, and how.

    Attributes:
        call: Puts work into a stream.
        clock: Of that stream.
    """

    call: Callable[[], object]
    clock: Clock


def take_turns_on_gpu(calls: Mapping[str, Timed], seconds: float) -> dict[str, Times]:
    """Time every call in turns, for about so many seconds altogether.

    A sample is as many calls between two events as take `SAMPLE`. What the host does counts where
    the GPU waits for it.
    """
    counts, samples = {}, {}
    for name, timed in calls.items():
        _sample(timed, WARM_UP)
        counts[name] = max(1, math.ceil(SAMPLE / _sample(timed, WARM_UP)))
        samples[name] = [_sample(timed, counts[name])]
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, timed in calls.items():
            samples[name].append(_sample(timed, counts[name]))
    return {name: Times.of(s) for name, s in samples.items()}


def _sample(timed: Timed, count: int) -> float:
    """Return the milliseconds of a call, over so many."""
    call, clock = timed
    start = clock.record()
    for _ in range(count):
        call()
    return clock.milliseconds(start, clock.record()) / count
