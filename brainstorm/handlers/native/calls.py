"""Native calls: what an operation comes down to for given arrays.

A `Call` is a C function with its arguments. It can be executed by itself, and a `Replay` executes
many in one go. It holds what it made for itself, but not the arrays of the operation: who keeps a
call keeps these.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import Any

from brainstorm.errors import BrainstormError, MissingDependencyError, OutOfMemoryError
from brainstorm.handlers import compiler
from brainstorm.handlers.native.library import Library

__all__ = ["KERNEL", "PRIMITIVE", "Call", "Replay"]

#: Kinds of calls: ``f(void **pointers, int64_t *numbers)``, and an execution of oneDNN:
#: ``int f(primitive, stream, int count, arguments)``, which returns 0 if all went well.
KERNEL, PRIMITIVE = 0, 1

_TYPES = (
    ctypes.CFUNCTYPE(None, c_void_p, c_void_p),
    ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p),
)
_OUT_OF_MEMORY = 1


class Call:
    """A C function with arguments.

    Args:
        kind: `KERNEL` or `PRIMITIVE`.
        function_address: The function.
        a: First argument.
        b: Second argument.
        c: Third argument of a primitive.
        d: Fourth argument of a primitive.
        keep: What must not go before the call does.
        name: The operation, for messages.
        threads: How many threads a primitive may use; 0: a kernel, whose numbers say it.

    Attributes:
        run: Executes it and returns the status; None and 0 mean that all went well.
    """

    __slots__ = ("a", "b", "c", "d", "function_address", "keep", "kind", "name", "run", "threads")

    def __init__(
        self,
        kind: int,
        function_address: int,
        a: int,
        b: int,
        c: int = 0,
        d: int = 0,
        keep: Any = (),
        name: str = "",
        threads: int = 0,
    ) -> None:
        self.kind, self.function_address, self.name = kind, function_address, name
        self.threads = threads
        self.a, self.b, self.c, self.d, self.keep = a, b, c, d, keep
        arguments = (a, b) if kind == KERNEL else (a, b, c, d)
        self.run = functools.partial(_TYPES[kind](function_address), *arguments)

    def __call__(self) -> None:
        """Execute it.

        Raises:
            BrainstormError: The library reports a failure.
        """
        if status := self.run():
            raise self.failure(status)

    def failure(self, status: int) -> BrainstormError:
        """Return the error for a status that is not 0."""
        if status == _OUT_OF_MEMORY:
            return OutOfMemoryError(f"{self.name}: oneDNN got no memory from the system")
        return BrainstormError(
            f"{self.name}: oneDNN returned status {status}. Set BRAINSTORM_ONEDNN=off to do "
            f"without it."
        )


class _Record(ctypes.Structure):
    _fields_ = [
        ("kind", c_int64),
        ("function", c_void_p),
        ("a", c_void_p),
        ("b", c_void_p),
        ("c", c_int64),
        ("d", c_void_p),
        ("threads", c_int64),
    ]


#: `state` is the number of calls, then which call failed, and its status, and the function that
#: sets the number of threads.
_SOURCE = """
#include <stdint.h>
struct record { int64_t kind; void *function, *a, *b; int64_t c; void *d; int64_t threads; };
typedef void kernel(void *, void *);
typedef int primitive(void *, void *, int, void *);
const char *replay_seal(void) { return "SEAL"; }
void replay(const struct record *calls, int64_t *state) {
  void (*use_threads)(int) = (void (*)(int))state[3];
  int64_t used = 0;
  for (int64_t i = 0; i < state[0]; i++) {
    const struct record r = calls[i];
    if (r.kind == 0) {
      ((kernel *)r.function)(r.a, r.b);
    } else {
      if (r.threads != used && use_threads) use_threads((int)r.threads);
      used = r.threads;
      const int status = ((primitive *)r.function)(r.a, r.b, (int)r.c, r.d);
      if (status) { state[1] = i; state[2] = status; return; }
    }
  }
}
"""


class Replay:
    """Executes calls, in their order: with a C compiler from one C function.

    Args:
        calls: The calls, which are kept.
        library: Where the primitives among them come from.
    """

    def __init__(self, calls: Sequence[Call], library: Library | None = None) -> None:
        self.calls = list(calls)
        self._library = library
        records = [
            _Record(k.kind, k.function_address, k.a, k.b, k.c, k.d, k.threads) for k in self.calls
        ]
        self._records = (_Record * len(records))(*records)
        setter = 0 if library is None else library.thread_setter
        self._state = (c_int64 * 4)(len(self.calls), 0, 0, setter)
        self._arguments = ctypes.addressof(self._records), ctypes.addressof(self._state)
        try:
            self._function = compiler.load(lambda seal: _SOURCE.replace("SEAL", seal), "replay")
        except MissingDependencyError:
            self._function = self._run_from_python

    def __call__(self) -> None:
        """Execute the calls.

        Raises:
            BrainstormError: The library reports a failure; the calls behind it did not run.
        """
        self._function(*self._arguments)
        if self._library is not None:
            self._library.used.count = 0  # whatever the last call used
        if self._state[2]:
            status, self._state[2] = self._state[2], 0
            raise self.calls[self._state[1]].failure(status)

    def _run_from_python(self, *_: int) -> None:
        for call in self.calls:
            if call.threads and self._library is not None:
                self._library.use_threads(call.threads)
            call()
