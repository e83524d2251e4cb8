"""Signals: the first SIGINT or SIGTERM ends a training in an orderly way."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


class StopSignals:
    """Listen to SIGINT (Ctrl-C) and SIGTERM inside a ``with`` block.

    Earlier signal handlers are restored afterwards. The first signal only sets `received`; a SIGINT
    after it raises KeyboardInterrupt, at once or at the end of `waiting`. Only the main thread can
    listen; in other threads, and for signals that the process ignores, nothing changes.

    Attributes:
        received: The name of the first signal; `None` before it.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._waits = self._is_late = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None: a handler that was not set from Python, and could not be set again.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is None:
            self.received = signal.Signals(number).name
        elif number == signal.SIGINT and self._waits:
            self._is_late = True
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let KeyboardInterrupt wait until the end of a ``with`` block, such as a step."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
            if self._is_late:
                self._is_late = False
                raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)
