"""Replaying native calls: by one C function, with loops over the steps of sequences.

A loop has the calls of one iteration; before each, the C function moves all addresses one step
further. Without a C compiler the calls are made one by one from Python, and there are no loops.
"""
# ruff: noqa: D102 (the methods of `Loop` are documented in `Call`)

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from ctypes import c_int64
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError, MissingDependencyError
from brainstorm.forks import count_forks
from brainstorm.handlers import compiler
from brainstorm.handlers.native.calls import LOOP, Call, Execution, Kernel, Record, callable_at
from brainstorm.handlers.native.library import Library
from brainstorm.handlers.numpy_memory import address_of

#: `state` holds the number of calls, then the number and status of a failed call, and the functions
#: that set the number of threads, see `Library`. All structures consist of words of eight bytes.
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
  void (*may_be_fewer)(int) = (void (*)(int))state[4];
  for (int64_t i = 0; i < count; i++) {
    const struct record r = calls[i];
    int status = 0;
    if (r.kind == 0) {
      ((kernel *)r.function)(r.a, r.b);
    } else if (r.kind == 1) {
      if (r.threads != *used) {
        if (use_threads) use_threads((int)r.threads);
        if (may_be_fewer) may_be_fewer(0);
      }
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


def _words(rows: Iterable[Sequence[int]]) -> np.ndarray:
    """Return structures of `_SOURCE` as an array."""
    return np.array(list(rows), np.int64)


class Replay:
    """Executes calls, which it keeps, in order; with a C compiler by one C function."""

    def __init__(self, calls: Sequence[Call], library: Library | None = None) -> None:
        self.calls = list(calls)
        self._library, self._forks = library, count_forks()
        self._threads = max((call.threads for call in self.calls), default=0)
        self._records = _words(call.record() for call in self.calls)
        setters = [0, 0] if library is None else library.thread_setters
        self._state = (c_int64 * 5)(len(self.calls), 0, 0, *setters)
        self._arguments = address_of(self._records), ctypes.addressof(self._state)
        try:
            self._function: Callable[..., Any] = callable_at(prepare())
        except MissingDependencyError:
            self._function = self._run_from_python

    def __call__(self) -> None:
        """Execute the calls.

        Raises:
            BrainstormError: The library reports a failure; later calls did not run.
            HandlerValidationError: The process was forked since.
        """
        if self._forks != count_forks():
            raise HandlerValidationError(
                "a trace that was made before the process was forked cannot be replayed after it. "
                "Trace again."
            )
        if self._library is not None and self._threads > 1:
            self._library.shield(self._threads)
        self._function(*self._arguments)
        if self._library is not None:
            self._library.used.count = 0  # unknown after the replay
        if self._state[2]:
            status, self._state[2] = self._state[2], 0
            raise self.calls[self._state[1]].failure(status)

    def _run_from_python(self, *_: int) -> None:
        for call in self.calls:
            call()


def prepare() -> int:
    """Return the address of the function that replays calls in C; see `compiler.load`."""
    return compiler.load_once("replay", lambda: _SOURCE, "replay")


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
        self, calls: Sequence[Kernel | Execution], steps: Sequence[np.ndarray], iterations: int,
        keep: Any, library: Library | None,
    ) -> None:  # fmt: skip
        self.calls, self.keep = calls, keep
        self.threads = max(call.threads for call in calls)
        moves = [
            (slot, place, step, setter)
            for call, distances in zip(calls, steps, strict=True)
            for (slot, setter), place, step in zip(
                call.slots(), call.places, distances, strict=True
            )
            if step
        ]
        self._records, self._moves = _words(call.record() for call in calls), _words(moves)
        where = address_of(self._records), address_of(self._moves)
        self._loop = _words([(iterations, len(calls), len(moves), *where)])
        self._alone = Replay([self], library)

    def record(self) -> Record:
        return LOOP, 0, address_of(self._loop), 0, 0, 0, 0

    def __call__(self) -> None:
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
        steps.append(b.places - a.places)
        if (a.places + (iterations - 1) * steps[-1] != c.places).any():
            return None
    if not len(first) == len(second) == len(last) or not first:
        return None
    try:
        prepare()
    except MissingDependencyError:
        return None
    calls = [call.copy() for call in first]
    loop = Loop(calls, steps, iterations, (keep, [call.keep for call in first]), library)
    loop.name = f"{iterations} times {', '.join(call.name for call in first)}"
    return loop
