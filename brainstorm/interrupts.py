"""Signals: handlers for the time of a block, and what must be done completely."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without names for numbers it takes a tenth
import contextlib
import math
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

#: Signals whose handlers raise errors in many programs.
_NUMBERS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class Listener:
    """Base of those that get some signals in a ``with`` block, if it is in the main thread.

    The innermost block comes first. In a forked process, and before and after all blocks, signals
    do what they did before. Their handlers are replaced once, by the outermost block that listens.
    """

    numbers: tuple[int, ...] = ()
    _process = 0

    def replaces(self, handler: Any) -> bool:
        """Return whether to listen in place of a handler."""
        return callable(handler)

    def receive(self, number: int) -> bool:
        """Handle a signal; return whether that was done, and no other block gets it."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        if is_main_thread():
            self._process = os.getpid()
            with contextlib.suppress(ValueError):  # signals are those of the main interpreter
                for number in self.numbers:
                    handler = _signal.getsignal(number)
                    if handler is not _dispatch and self.replaces(handler):
                        _replaced[number] = handler
                        _signal.signal(number, _dispatch)
                _blocks.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        if self in _blocks:
            _blocks.remove(self)
            if all(block._process != self._process for block in _blocks):
                _restore()


class uninterrupted(Listener):  # noqa: N801
    """Let Python's signal handlers run only at the end of a ``with`` block.

    Args:
        most: How many signals of a kind wait; the next one runs all handlers at once.
        numbers: The signals that wait, beside those that a surrounding block gets.
    """

    def __init__(self, most: float = math.inf, numbers: tuple[int, ...] = _NUMBERS) -> None:
        self.most = most
        self.numbers = numbers
        self._received: list[int] = []
        self.lets_in = False

    def receive(self, number: int) -> bool:
        """Keep the signal."""
        if self.lets_in:
            return False
        self._received.append(number)
        if self._received.count(number) > self.most:
            with interruptible([self]):
                pass
        return True

    def __exit__(self, *error: object) -> None:
        try:
            super().__exit__()
        finally:
            self.deliver()

    def deliver(self) -> None:
        """Repeat the signals received so far: all, even if their handlers raise errors."""
        if self._received:
            try:
                signal.raise_signal(self._received.pop(0))
            finally:
                self.deliver()


#: The blocks that the main thread is in, innermost last.
_blocks: list[Listener] = []

#: Number of a signal to the handler that `_dispatch` replaces, or did.
_replaced: dict[int, Any] = {}


@contextlib.contextmanager
def interruptible(blocks: Sequence[Listener] = _blocks) -> Iterator[None]:
    """Let signals in for a ``with`` block within one that is `uninterrupted`."""
    innermost_first = blocks[::-1] if is_main_thread() else []
    present = [block for block in innermost_first if isinstance(block, uninterrupted)]
    for block in present:
        block.lets_in = True
    try:
        for block in present:
            block.deliver()
        yield
    finally:
        for block in present:
            block.lets_in = False


def _dispatch(number: int, frame: Any) -> None:
    """Give a signal to the innermost block that takes it, or do with it what was done before."""
    for block in _blocks[::-1]:
        if block._process == os.getpid() and block.receive(number):
            return
    handler = _replaced[number]
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)


def _restore() -> None:
    """Set handlers again that were not set meanwhile.

    If one of them raises an error now, `_dispatch` calls the others until the next block ends.
    """
    for number, handler in _replaced.items():
        if _signal.getsignal(number) is _dispatch:
            _signal.signal(number, handler)


def is_main_thread() -> bool:
    """Return whether this is the thread in which Python runs signal handlers."""
    return threading.current_thread() is threading.main_thread()


# -- forks ----------------------------------------------------------------------------------------

_held = threading.local()


def _hold() -> None:
    """Let SIGTERM wait while a process forks: the new one would lose it, as it has a handler."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]) if _blocks else None


def _let_go() -> None:
    if _held.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
