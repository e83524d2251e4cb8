"""Signals while oneDNN computes: their handlers get a stack of their own, or other threads.

With AVX-512 some products of oneDNN use their scratch memory, on the heap, as the stack while they
run. What the system writes there for a signal handler, and the handler itself, would overwrite what
lies in front of it: values of arrays, or the bookkeeping of `malloc`. Python's handlers run on
another stack if their thread has one: each thread gets one that uses oneDNN. The threads that
OpenMP has started for it block signals, which then reach others.
"""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
from typing import Any

#: Bytes of the stack; the system writes up to 12 KiB on it, with all registers of AMX.
SIZE = 2**16
#: What `sigaltstack` says of a thread without another stack, and is told for one.
DISABLED = 2
#: Signals of what a thread itself does; they are not blocked.
OWN = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP")


class Stack(ctypes.Structure):
    """``stack_t`` of the GNU C library."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


class SignalStack:
    """A stack for signal handlers of this thread, unless somebody else gave it one.

    It must be deleted by the thread.
    """

    _memory: Any = None  # also if an interrupt ends the constructor

    def __init__(self) -> None:
        if sys.platform == "linux" and _exchanged(None).flags & DISABLED:
            self._memory = ctypes.create_string_buffer(SIZE)
            _exchanged(Stack(ctypes.addressof(self._memory), 0, SIZE))

    def __del__(self) -> None:
        if self._memory is not None and _exchanged(None).start == ctypes.addressof(self._memory):
            _exchanged(Stack(None, DISABLED, 0))


def _exchanged(new: Stack | None) -> Stack:
    """Set the stack of this thread, and return what was set before."""
    before = Stack()
    ctypes.CDLL(None).sigaltstack(new and ctypes.byref(new), ctypes.byref(before))
    return before


def block_signals(parallel: Any, threads: int) -> None:
    """Block signals in the threads that OpenMP has for this one.

    Args:
        parallel: ``GOMP_parallel``, which calls a function with a number in so many threads.
        threads: How many there are, with this one.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        parallel(_blocker(), ctypes.c_void_p(_asynchronous()), threads, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _asynchronous() -> int:
    """Return the mask of the signals that others send."""
    own = {getattr(signal, name, 0) for name in OWN}
    return sum(1 << number - 1 for number in range(1, 32) if number not in own)


@functools.cache
def _blocker() -> Any:
    """Return ``sigblock`` of the C library, which blocks the signals of a mask in its thread."""
    return ctypes.CDLL(None).sigblock
