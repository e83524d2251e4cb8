"""Signals: handlers for the time of a block, and what must be done completely."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

#: Signals whose handlers raise errors in many programs.
_NUMBERS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class Listener:
    """Base of those that handle some signals in a ``with`` block, if it is in the main thread.

    In a forked process, and before and after the block, signals do what they did before.
    """

    numbers: tuple[int, ...] = ()
    _listens = _is_over = False

    def replaces(self, handler: Any) -> bool:
        """Return whether to listen in place of a handler."""
        return callable(handler)

    def receive(self, number: int, frame: Any) -> None:
        """Handle a signal."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        self._process, self._listens, self._is_over = os.getpid(), True, False
        self._handlers: dict[int, Any] = {}
        try:
            for number in self.numbers if is_main_thread() else ():
                handler = _present_handler(number)
                if self.replaces(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._dispatch)
        except BaseException:  # of a handler that is not replaced yet
            Listener.__exit__(self)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._listens, self._is_over = False, True
        self._restore(list(self._handlers.items()))

    def _restore(self, handlers: list[tuple[int, Any]]) -> None:
        """Set the handlers again, even if one of them raises an error meanwhile."""
        if handlers:
            (number, handler), *others = handlers
            try:
                if signal.getsignal(number) == self._dispatch:
                    signal.signal(number, handler)
            finally:
                self._restore(others)

    def _dispatch(self, number: int, frame: Any) -> None:
        if self._listens and os.getpid() == self._process:
            self.receive(number, frame)
        else:
            self.hand_on(number, frame)

    def hand_on(self, number: int, frame: Any) -> None:
        """Do with a signal what would have been done before."""
        handler = self._handlers[number]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


class uninterrupted(Listener):  # noqa: N801
    """Let Python's signal handlers run only at the end of a ``with`` block.

    Args:
        most: How many signals of a kind wait; the next one runs all handlers at once.
    """

    numbers = _NUMBERS

    def __init__(self, most: float = math.inf) -> None:
        self.most = most

    def __enter__(self) -> uninterrupted:
        self._received: list[tuple[int, Any]] = []
        super().__enter__()
        if self._handlers:
            _entered.append(self)
        return self

    def receive(self, number: int, frame: Any) -> None:
        """Keep the signal."""
        self._received.append((number, frame))
        if [kept for kept, _ in self._received].count(number) > self.most:
            self.deliver()

    def __exit__(self, *error: object) -> None:
        try:
            if self in _entered:
                _entered.remove(self)
            super().__exit__()
        finally:
            self.deliver()

    def deliver(self) -> None:
        """Run the handlers of the signals received so far: all, even if they raise errors."""
        if self._received:
            first = self._received.pop(0)
            try:
                self.hand_on(*first)
            finally:
                self.deliver()


#: The blocks that the main thread is in.
_entered: list[uninterrupted] = []


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let signals in for a ``with`` block within one that is `uninterrupted`."""
    blocks = _entered[::-1] if is_main_thread() else []
    for block in blocks:
        block._listens = False
    try:
        for block in blocks:
            block.deliver()
        yield
    finally:
        for block in blocks:
            block._listens = True


def _present_handler(number: int) -> Any:
    """Return the handler of a signal; not one that an interrupted end of a block has left."""
    handler = signal.getsignal(number)
    while isinstance(left := getattr(handler, "__self__", None), Listener) and left._is_over:
        handler = left._handlers[number]
    return handler


def is_main_thread() -> bool:
    """Return whether this is the thread in which Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()
