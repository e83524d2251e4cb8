"""Signals: the first SIGINT or SIGTERM ends a training in an orderly way."""

from __future__ import annotations

import signal
from typing import Any

from brainstorm.interrupts import Listener


class StopSignals(Listener):
    """Listen to SIGINT (Ctrl-C) and SIGTERM inside a ``with`` block.

    Earlier signal handlers are restored afterwards. The first signal only sets `received`; a SIGINT
    after it raises KeyboardInterrupt (at the end of a block that is `uninterrupted`). Only the main
    thread can listen; in other threads, and for signals that the process ignores, nothing changes.

    Attributes:
        received: The name of the first signal; `None` before it.
    """

    numbers = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: str | None = None

    def replaces(self, handler: Any) -> bool:
        # None: a handler that was not set from Python, and could not be set again.
        return handler not in (None, signal.SIG_IGN)

    def receive(self, number: int) -> bool:
        """Note the signal, or raise KeyboardInterrupt."""
        if self.received is None and number in self.numbers:
            self.received = signal.Signals(number).name
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        return number in self.numbers
