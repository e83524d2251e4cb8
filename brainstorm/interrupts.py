"""What must be done completely: signals such as Ctrl-C wait until it is."""

from __future__ import annotations

import signal
import threading
from typing import Any

#: Signals whose handlers raise errors in many programs.
_NUMBERS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class uninterrupted:  # noqa: N801
    """Let Python's signal handlers run only at the end of a ``with`` block.

    It takes some microseconds. In other threads than the main one, no handlers run anyway.
    """

    def __enter__(self) -> uninterrupted:
        self._handlers: dict[int, Any] = {}
        self._received: list[tuple[int, Any]] = []
        try:
            if _is_main():
                _entered.append(self)
                for number in _NUMBERS:
                    handler = signal.getsignal(number)
                    if callable(handler):  # from Python
                        self._handlers[number] = handler
                        signal.signal(number, self._receive)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()
        self._deliver()

    def _deliver(self) -> None:
        received, self._received = self._received, []
        for number, frame in received:
            self._handlers[number](number, frame)

    def _receive(self, number: int, frame: Any) -> None:
        self._received.append((number, frame))

    def _restore(self) -> None:
        if self in _entered:
            _entered.remove(self)
        for number, handler in reversed(self._handlers.items()):  # SIGINT comes last
            signal.signal(number, handler)


#: The blocks that the main thread is in.
_entered: list[uninterrupted] = []


def let_signals_in() -> None:
    """Run the handlers of the signals that wait; for a place where a long block may be left."""
    if _is_main():
        for waiting in reversed(_entered):
            waiting._deliver()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
