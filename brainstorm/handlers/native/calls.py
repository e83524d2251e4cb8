"""Native calls: C functions with their arguments, called one by one, in a loop, or all at once.

A call is of a kernel, ``f(void **pointers, int64_t *numbers)``, or executes a primitive of oneDNN:
``int f(primitive, stream, int count, arguments)``, which returns 0 on success. It keeps objects
created for it alive, but not the arrays of the operation, which the owner of the call must keep.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_int, c_int64, c_void_p
from typing import Any

import numpy as np

from brainstorm.errors import (
    BrainstormError,
    HandlerValidationError,
    MissingDependencyError,
    OutOfMemoryError,
)
from brainstorm.handlers import compiler
from brainstorm.handlers.native.library import Argument, Library
from brainstorm.handlers.numpy_memory import address_of

_KERNEL, _PRIMITIVE, _LOOP = range(3)
_KERNEL_TYPE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
_PRIMITIVE_TYPE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
_OUT_OF_MEMORY = 1

#: Replaced by another object in a forked process.
_process = [object()]


def _after_fork() -> None:
    _process[0] = object()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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


class Call:
    """A C function with arguments.

    Attributes:
        name: The operation, for messages.
        places: The addresses of its data.
        threads: The number of threads to set in the library; 0: not needed.
    """

    __slots__ = ()
    name: str
    places: list[int]
    threads = 0
    #: Objects kept alive for the call.
    keep: Any = ()

    @property
    def form(self) -> Any:
        """A value that is equal for calls that differ only in their places."""
        raise NotImplementedError

    def record(self) -> _Record:
        """Return it as a record for `Replay`."""
        raise NotImplementedError

    def __call__(self) -> None:
        """Execute it.

        Raises:
            BrainstormError: The library reports a failure.
        """
        raise NotImplementedError

    def failure(self, status: int) -> BrainstormError:
        """Return the error for a status that is not 0."""
        if status == _OUT_OF_MEMORY:
            return OutOfMemoryError(f"{self.name}: oneDNN got no memory from the system")
        return BrainstormError(
            f"{self.name}: oneDNN returned status {status}. Set BRAINSTORM_ONEDNN=off to do "
            f"without it."
        )


class Kernel(Call):
    """A kernel in C.

    Args:
        function: Its address.
        pointers: Its first arguments, the places.
        numbers: Its other arguments.
        keep: Objects to keep alive for the call.
        name: The operation.
    """

    __slots__ = ("_arguments", "_function", "_places", "_words", "keep", "name", "run")

    def __init__(
        self, function: int, pointers: Sequence[int] | np.ndarray,
        numbers: Sequence[int] | np.ndarray, keep: Any = (), name: str = "",
    ) -> None:  # fmt: skip
        self.name, self.keep, self._function = name, keep, function
        self._words, self._places = np.array([*pointers, *numbers], np.int64), len(pointers)
        start = address_of(self._words)
        self._arguments = start, start + self._places * self._words.itemsize
        self.run = functools.partial(_kernel(function), *self._arguments)

    @property
    def places(self) -> list[int]:  # type: ignore[override]
        """The addresses of its data."""
        return self._words[: self._places].tolist()

    @property
    def numbers(self) -> list[int]:
        """The arguments of the function other than places."""
        return self._words[self._places :].tolist()

    @property
    def form(self) -> Any:
        """The function and the numbers."""
        return self._function, self.numbers, self._places

    def record(self) -> _Record:
        """Return it as a record for `Replay`."""
        return _Record(_KERNEL, self._function, *self._arguments)

    def copy(self) -> Kernel:
        """Return a copy with places of its own."""
        return Kernel(self._function, self.places, self.numbers, self.keep, self.name)

    def slots(self) -> list[tuple[int, int]]:
        """Return, for each place, where it is stored, and the function that sets it (0: none)."""
        size = self._words.itemsize
        return [(self._arguments[0] + i * size, 0) for i in range(self._places)]

    def __call__(self) -> None:
        """Execute it."""
        self.run()


@functools.cache
def _kernel(address: int) -> Any:
    return _KERNEL_TYPE(address)


class Execution(Call):
    """The execution of a primitive of oneDNN.

    Args:
        library: The library.
        primitive: The primitive, with an attribute ``handle``.
        stream: The stream of the execution.
        given: Number of the argument to (layout, address).
        keep: Objects to keep alive for the call.
        name: The operation.
        threads: Number of threads.
    """

    def __init__(
        self, library: Library, primitive: Any, stream: Any, given: Mapping[int, tuple[Any, int]],
        keep: Any, name: str, threads: int,
    ) -> None:  # fmt: skip
        self._made_of = library, primitive, stream, given, keep, name, threads
        self.name, self.threads, self._library, self.keep = name, threads, library, keep
        layouts = [getattr(layout, "_as_parameter_", layout).value for layout, _ in given.values()]
        self._form = primitive.handle.address, stream.address, tuple(given), layouts, threads
        self.places = [where for _, where in given.values()]
        self._memories = [
            library.create("dnnl_memory", layout, library.engine, where)
            for layout, where in given.values()
        ]
        passed = (Argument * len(given))(
            *(Argument(i, m.address) for i, m in zip(given, self._memories, strict=True))
        )
        self._passed = passed
        where = primitive.handle.address, stream.address, len(passed), ctypes.addressof(passed)
        self._arguments = where
        self._run = functools.partial(_PRIMITIVE_TYPE(library.execute), *where)

    @property
    def form(self) -> Any:
        """The primitive and the kinds and layouts of its arguments."""
        return self._form

    def record(self) -> _Record:
        """Return it as a record for `Replay`."""
        return _Record(_PRIMITIVE, self._library.execute, *self._arguments, self.threads)

    def copy(self) -> Execution:
        """Return a copy with memory objects of its own."""
        return Execution(*self._made_of)

    def slots(self) -> list[tuple[int, int]]:
        """Return, for each place, the memory object and the function that sets its address."""
        return [(memory.address, self._library.data_setter) for memory in self._memories]

    def __call__(self) -> None:
        """Execute it."""
        self._library.use_threads(self.threads)
        if status := self._run():
            raise self.failure(status)


class _Move(ctypes.Structure):
    _fields_ = [("slot", c_void_p), ("base", c_void_p), ("step", c_int64), ("set", c_void_p)]


class _Loop(ctypes.Structure):
    _fields_ = [
        ("iterations", c_int64),
        ("count", c_int64),
        ("moves", c_int64),
        ("calls", ctypes.POINTER(_Record)),
        ("move", ctypes.POINTER(_Move)),
    ]


#: `state` holds the number of calls, then the number and status of a failed call, and the function
#: that sets the number of threads.
_SOURCE = """
#include <stdint.h>
struct record { int64_t kind; void *function, *a, *b; int64_t c; void *d; int64_t threads; };
struct move { void *slot; char *base; int64_t step; void *set; };
struct loop {
  int64_t iterations, count, moves;
  const struct record *calls;
  const struct move *move;
};
typedef void kernel(void *, void *);
typedef int primitive(void *, void *, int, void *);
typedef int setter(void *, void *);

static int run(const struct record *calls, int64_t count, int64_t *state, int64_t *used) {
  void (*use_threads)(int) = (void (*)(int))state[3];
  for (int64_t i = 0; i < count; i++) {
    const struct record r = calls[i];
    int status = 0;
    if (r.kind == 0) {
      ((kernel *)r.function)(r.a, r.b);
    } else if (r.kind == 1) {
      if (r.threads != *used && use_threads) use_threads((int)r.threads);
      *used = r.threads;
      status = ((primitive *)r.function)(r.a, r.b, (int)r.c, r.d);
    } else {
      const struct loop *loop = r.a;
      for (int64_t t = 0; t < loop->iterations && !status; t++) {
        for (int64_t m = 0; m < loop->moves; m++) {
          const struct move *move = loop->move + m;
          char *place = move->base + t * move->step;
          if (move->set) ((setter *)move->set)(move->slot, place);
          else *(char **)move->slot = place;
        }
        status = run(loop->calls, loop->count, state, used);
      }
    }
    if (status) { state[1] = i; state[2] = status; return status; }
  }
  return 0;
}

void replay(const struct record *calls, int64_t *state) {
  int64_t used = 0;
  run(calls, state[0], state, &used);
}
"""


class Replay:
    """Executes calls in order; with a C compiler by one C function.

    Args:
        calls: The calls, which are kept.
        library: The library of the primitives among them.
    """

    def __init__(self, calls: Sequence[Call], library: Library | None = None) -> None:
        self.calls = list(calls)
        self._library, self._process = library, _process[0]
        self._records = (_Record * len(self.calls))(*(call.record() for call in self.calls))
        setter = 0 if library is None else library.thread_setter
        self._state = (c_int64 * 4)(len(self.calls), 0, 0, setter)
        self._arguments = ctypes.addressof(self._records), ctypes.addressof(self._state)
        try:
            self._function: Callable[..., Any] = _compiled()
        except MissingDependencyError:
            self._function = self._run_from_python

    def __call__(self) -> None:
        """Execute the calls.

        Raises:
            BrainstormError: The library reports a failure; later calls did not run.
            HandlerValidationError: The process was forked since.
        """
        if self._process is not _process[0]:
            # The threads of the GNU OpenMP library exist only in the parent: waiting never ends.
            raise HandlerValidationError(
                "a trace that was made before the process was forked cannot be replayed after it. "
                "Trace again."
            )
        self._function(*self._arguments)
        if self._library is not None:
            self._library.used.count = 0  # unknown after the replay
        if self._state[2]:
            status, self._state[2] = self._state[2], 0
            raise self.calls[self._state[1]].failure(status)

    def _run_from_python(self, *_: int) -> None:
        for call in self.calls:
            call()


@functools.cache
def _compiled() -> Callable[..., None]:
    return _kernel(compiler.load(_SOURCE, "replay"))


class Loop(Call):
    """Calls that are repeated, each time at places one step further.

    Args:
        calls: The calls of the first iteration, which are not shared.
        steps: For each call and each of its places, the step in bytes.
        iterations: Number of iterations.
        keep: Objects to keep alive for the call.
        library: The library of the primitives among them.
    """

    def __init__(
        self, calls: Sequence[Kernel | Execution], steps: Sequence[Sequence[int]], iterations: int,
        keep: Any, library: Library | None,
    ) -> None:  # fmt: skip
        self.calls, self.keep = calls, keep
        self.name = f"{iterations} times {', '.join(call.name for call in calls)}"
        moves = [
            _Move(slot, place, step, setter)
            for call, distances in zip(calls, steps, strict=True)
            for (slot, setter), place, step in zip(
                call.slots(), call.places, distances, strict=True
            )
            if step
        ]
        self._records = (_Record * len(calls))(*(call.record() for call in calls))
        self._moves = (_Move * len(moves))(*moves)
        self._loop = _Loop(iterations, len(calls), len(moves), self._records, self._moves)
        self._alone = Replay([self], library)

    def record(self) -> _Record:
        """Return it as a record for `Replay`."""
        return _Record(_LOOP, None, ctypes.addressof(self._loop))

    def __call__(self) -> None:
        """Execute it."""
        self._alone()


def as_loop(
    rounds: Sequence[Sequence[Any]], iterations: int, keep: Any, library: Library | None
) -> Loop | None:
    """Return a loop over the calls of several iterations, or None if they do not form a loop.

    Args:
        rounds: The calls of the first, the second and the last iteration.
        iterations: Number of iterations.
        keep: Objects to keep alive for the loop.
        library: The library of the primitives.
    """
    first, second, last = rounds
    steps = []
    for a, b, c in zip(first, second, last, strict=False):
        if not all(isinstance(call, (Kernel, Execution)) for call in (a, b, c)):
            return None
        if not a.form == b.form == c.form:
            return None
        steps.append([later - place for place, later in zip(a.places, b.places, strict=True)])
        reached = [
            place + (iterations - 1) * step for place, step in zip(a.places, steps[-1], strict=True)
        ]
        if reached != c.places:
            return None
    if not len(first) == len(second) == len(last) or not first:
        return None
    try:
        _compiled()
    except MissingDependencyError:
        return None
    calls = [call.copy() for call in first]
    return Loop(calls, steps, iterations, (keep, [call.keep for call in first]), library)
