"""Timing on a noisy machine: what is compared takes turns within one run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Times", "seconds_of_others", "take_turns"]

K = TypeVar("K", bound=Hashable)

#: Seconds at the start of a turn that are not timed: caches fill, and the threads of whoever had
#: the turn before stop waiting for work (OpenBLAS: after 0.03 s).
SETTLE = 0.05
#: Seconds of a turn that are timed.
TURN = 0.1


class Times(NamedTuple):
    """The shortest time and the median, mostly in milliseconds."""

    minimum: float
    median: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Times:
        """Return those of all samples."""
        return cls(min(samples), statistics.median(samples))

    def share(self, count: int) -> Times:
        """Return the times of each of so many things that were timed together."""
        return Times(self.minimum / count, self.median / count)

    def __str__(self) -> str:
        digits = 3 if self.minimum < 1 else 2
        return f"{self.minimum:.{digits}f} ({self.median:.{digits}f})"


def take_turns(calls: Mapping[K, Callable[[], object]], seconds: float) -> dict[K, Times]:
    """Time every call many times, in turns, for about so many seconds altogether."""
    samples: dict[K, list[float]] = {key: [] for key in calls}
    stop = time.perf_counter() + seconds
    while True:
        for key, call in calls.items():
            _repeat(call, SETTLE)
            samples[key] += _repeat(call, TURN)
        if time.perf_counter() > stop:
            return {k: Times.of(s) for k, s in samples.items()}


def _repeat(call: Callable[[], object], seconds: float) -> list[float]:
    """Return the milliseconds of each call within a period, at least of two."""
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def seconds_of_others() -> float:
    """Return the processor time that everybody else has used since the system started.

    Two threads that wait for each other take many times as long where another program needs one
    of two cores, whoever they belong to. 0 where the system does not tell (it is Linux that does).
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    # user nice system idle iowait irq softirq steal
    ticks = [int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:2])
