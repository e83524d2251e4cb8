"""Turns: only one thread at a time computes with the memory of a network."""

from __future__ import annotations

import contextlib
import threading
import weakref
from types import TracebackType
from typing import Any

from brainstorm.forks import renew_after_fork
from brainstorm.handlers.traces import State


class Turn:
    """The lock of a thread that computes with the memory of a network; others wait.

    Its calls use the network's own lane of the handler. Waiting threads come first when a thread
    leaves and returns at once, as in a training.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = weakref.proxy(manager)  # whose memory is freed with its last reference
        self._lock, self._gate = threading.RLock(), threading.Lock()
        self._owner: int | None = None
        self._before: list[tuple[State, Any]] = []
        renew_after_fork(self)

    def __repr__(self) -> str:
        return f"<lock of a network, {'free' if self._owner is None else 'held'}>"

    def renew(self) -> None:
        """Replace the locks held by threads that do not exist in a forked process."""
        self._lock, self._gate = threading.RLock(), threading.Lock()
        if self._owner == threading.get_ident():
            self._lock.acquire()
        else:
            self._owner, self._before = None, []

    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = len(self._before) if self._owner == me else 0
        try:
            if self._owner != me:
                with self._gate, self._lock:
                    self._owner = me
                    self._lock.acquire()  # once more, until `_leave`
            running: State = self._manager.handler.running
            self._before.append((running, running.lane))
            running.lane = self._manager.lane
        except BaseException:  # Ctrl-C, which may come between any two steps
            if self._owner == me:
                with contextlib.suppress(RuntimeError):  # the lock is not acquired yet
                    self._leave(depth)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        self._leave(len(self._before) - 1)

    def _leave(self, depth: int) -> None:
        """Return to a number of entries, and free the lock if it is 0."""
        try:
            for running, lane in self._before[depth : depth + 1]:
                running.lane = lane
        finally:
            del self._before[depth:]
            if not depth:
                self._owner = None
                self._lock.release()
