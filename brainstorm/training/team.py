"""Teams: the processes that train one network together; by default a trainer's team is one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Team:
    """A process that trains alone; base class of teams of several processes.

    In a team every process runs the same script and has a part of each batch. Hooks that write
    logs or change the training run in all processes; the values that they return in rank 0 are
    logged. Hooks that only read (savers, stoppers, pictures) run in rank 0.

    Attributes:
        rank: The number of this process.
        size: The number of processes.
    """

    rank: int = 0
    size: int = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}: rank {self.rank} of {self.size}"

    def working(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a training: an error inside it ends all processes."""
        return contextlib.nullcontext()

    def divide(self, iters: Mapping[str, Any], hooks: Sequence[Any]) -> dict[str, Any]:
        """Return iterators over the part of each batch that this process has.

        All processes have the same iterators over whole batches, and the same hooks that will run.
        """
        return dict(iters)

    def own_part(self, pending: dict[str, Any], stepper: Any) -> dict[str, Any]:
        """Return the part of a run, as read by `load_run`, with which this process continues.

        The stepper gets its part of the state, too.
        """
        return pending

    def adopt(self, stepper: Any) -> None:
        """Let a stepper learn from the batches of all processes, before it starts or goes on."""

    def start(
        self, net: Any, part: Mapping[str, Any] | None
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the context of the training of a network: what this adds to it is taken off again.

        At its start the networks of all processes become equal, except for their random numbers. If
        a run is continued, `part` is the result of `own_part`.
        """
        return contextlib.nullcontext()

    def step(self, stepper: Any, is_idle: bool, signal: str | None) -> None:
        """Do a step.

        Args:
            stepper: The stepper.
            is_idle: Whether the part of this process is empty, and the batch only a stand-in.
            signal: The signal that this process has received.
        """
        stepper.run()

    def agreed_signal(self, signal: str | None) -> str | None:
        """Return the signal that ends the training in all processes, given that of this one."""
        return signal

    def merge_statistics(self, net: Any) -> None:
        """Merge the statistics of the networks of all processes, and set them in this one."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value of rank 0."""
        return value
