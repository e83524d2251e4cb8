"""Signals while oneDNN computes: their handlers get a stack of their own.

With AVX-512 some products of oneDNN use their scratch memory, on the heap, as the stack while they
run. What the system writes there for a signal handler, and the handler itself, would overwrite what
lies in front of it: values of arrays, or the bookkeeping of `malloc`. Python's handlers run on
another stack if their thread has one. It is the main thread that gets what is sent to a process.
"""

from __future__ import annotations

import ctypes
import sys

from brainstorm.interrupts import is_main_thread

#: Bytes of the stack; the system writes up to 12 KiB on it, with all registers of AMX.
SIZE = 2**16
#: What `sigaltstack` says of a thread without another stack.
DISABLED = 2


class Stack(ctypes.Structure):
    """``stack_t`` of the GNU C library."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_memory = ctypes.create_string_buffer(SIZE)


def provide_signal_stack() -> None:
    """Give signal handlers a stack, if this is the main thread and nobody else did."""
    if sys.platform == "linux" and is_main_thread():
        present, own = Stack(), Stack(ctypes.addressof(_memory), 0, SIZE)
        exchange = ctypes.CDLL(None).sigaltstack
        if exchange(None, ctypes.byref(present)) == 0 and present.flags & DISABLED:
            exchange(ctypes.byref(own), None)
