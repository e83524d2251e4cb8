"""Signals: the first SIGINT or SIGTERM ends a training in an orderly way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from brainstorm.interrupts import Listener


class StopSignals(Listener):
    """Listen to SIGINT (Ctrl-C) and SIGTERM inside a ``with`` block.

    Earlier signal handlers are restored afterwards. The first signal only sets `received`; a SIGINT
    after it raises KeyboardInterrupt at once, or at the end of `waiting`, if there is no third one.
    Only the main thread can listen; in other threads, and for signals that the process ignores,
    nothing changes.

    Attributes:
        received: The name of the first signal; `None` before it.
    """

    numbers = (signal.SIGINT, signal.SIGTERM)
    _waits = _is_late = False

    def __init__(self) -> None:
        self.received: str | None = None

    def replaces(self, handler: Any) -> bool:
        # None: a handler that was not set from Python, and could not be set again.
        return handler not in (None, signal.SIG_IGN)

    def receive(self, number: int, frame: Any) -> None:
        """Note the signal, or raise KeyboardInterrupt."""
        if self.received is None:
            self.received = signal.Signals(number).name
        elif number == signal.SIGINT:
            if self._is_late or not self._waits:
                raise KeyboardInterrupt
            self._is_late = True

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let KeyboardInterrupt wait until the end of a ``with`` block, such as a step."""
        self._waits, self._is_late = True, False
        try:
            yield
        finally:
            self._waits = False
        if self._is_late:
            raise KeyboardInterrupt
