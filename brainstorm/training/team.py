"""Teams: the processes that train one network together. A trainer's own team is it alone."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

__all__ = ["Team"]

T = TypeVar("T")


class Team:
    """A process that trains alone; the base of teams of several.

    In a team every process runs the same script, and has a part of each batch. Hooks that write
    logs or change the training run in all of them; what those of rank 0 return is logged. Hooks
    that only read (savers, stoppers, pictures) run in rank 0.

    Attributes:
        rank: The number of this process.
        size: How many there are.
    """

    rank: int = 0
    size: int = 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}: rank {self.rank} of {self.size}"

    def working(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a training: an error inside it ends all processes."""
        return contextlib.nullcontext()

    def divide(self, iters: Mapping[str, Any], hooks: Sequence[Any]) -> dict[str, Any]:
        """Return iterators over this process's part of each batch.

        Args:
            iters: Iterators over whole batches, by name; the same ones in all processes.
            hooks: The hooks that will run, in their order; the same ones, too.
        """
        return dict(iters)

    def own_part(self, pending: dict[str, Any], stepper: Any) -> dict[str, Any]:
        """Return what this process continues with, of what `load_run` has read.

        Args:
            pending: What it has read.
            stepper: It continues with its part, too.
        """
        return pending

    def start(self, net: Any, part: Mapping[str, Any] | None) -> None:
        """Make the networks of all processes alike, but for what they draw.

        Args:
            net: The network.
            part: What `own_part` returned, where a run is continued.
        """

    def step(self, stepper: Any, is_idle: bool, signal: str | None) -> None:
        """Do a step.

        Args:
            stepper: The stepper.
            is_idle: Whether the batch stands for none: this process's part is empty.
            signal: The signal that this process has received.
        """
        stepper.run()

    def agreed_signal(self, signal: str | None) -> str | None:
        """Return the signal that ends the training of all, given the own one."""
        return signal

    def merge_statistics(self, net: Any) -> None:
        """Let the statistics of this process's network be those of all processes."""

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value of rank 0."""
        return value
