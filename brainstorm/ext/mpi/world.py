"""The ranks of an MPI job: operations of all of them, which end with an error if one does not come.

All operations are non-blocking ones that are waited for in Python: so a rank that waits can look
whether the others are still alive, and gives the processor away where there are more ranks than
cores.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from brainstorm.errors import BrainstormError, MissingDependencyError, TrainingError
from brainstorm.ext.mpi.watch import RANK_0_DIED, Hub, Watch
from brainstorm.optional import has, require

__all__ = ["World", "agreed", "find_world"]

#: Variables by which launchers tell a process how many there are.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")

#: How often it is looked whether an operation has ended before the processor is given away.
SPINS = 200

#: Seconds between two looks while waiting for long.
PAUSE = 0.0002


class World:
    """The ranks of a communicator.

    Args:
        comm: A communicator of mpi4py; `None` is the one of all ranks.
        timeout: After so many seconds of waiting for a rank the job fails.

    Attributes:
        rank: The number of this rank.
        size: How many there are.
        hosts: The names of the machines that the ranks run on.
    """

    def __init__(self, comm: Any = None, timeout: float = 600.0) -> None:
        self.mpi = require("mpi4py.MPI", "mpi")
        self.comm = (self.mpi.COMM_WORLD if comm is None else comm).Dup()
        self.timeout = timeout
        self.rank, self.size = self.comm.rank, self.comm.size
        self._operations = 0
        self._is_waiting = False
        self.hosts: list[str] = self.comm.allgather(self.mpi.Get_processor_name())
        self.watch = self._start_watch()
        _ignore_news_of_deaths()
        atexit.register(self._leave)
        self._excepthook, sys.excepthook = sys.excepthook, self._report_uncaught

    def _start_watch(self) -> Watch:
        if self.rank == 0:
            is_local = len(set(self.hosts)) == 1
            secret, host = secrets.token_hex(16), "127.0.0.1" if is_local else ""
            hub = Hub(self.size, self._where, host, secret)
            self.comm.bcast((host or socket.getfqdn(), hub.port, secret))
            self.comm.Barrier()
            return hub
        host, port, secret = self.comm.bcast(None)
        watch = Watch(self.rank, self._where)
        watch.connect((host, port), secret)
        self.comm.Barrier()
        return watch

    # -- operations of all ranks ------------------------------------------------------------------

    def sum(self, array: Any) -> None:
        """Let an array, the same one on all ranks, hold the sum of all of them."""
        self.wait(self.start_sum(array))

    def start_sum(self, array: Any) -> Any:
        """Begin to sum; return what `wait` takes."""
        self._operations += 1
        return self.comm.Iallreduce(self.mpi.IN_PLACE, array, self.mpi.SUM)

    def broadcast(self, array: Any) -> None:
        """Let an array on all ranks hold what it holds on rank 0."""
        self._operations += 1
        self.wait(self.comm.Ibcast(array, 0))

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers (n,) of all ranks, as (ranks, n)."""
        self._operations += 1
        result = np.empty((self.size, *numbers.shape), numbers.dtype)
        self.wait(self.comm.Iallgather(numbers, result))
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the Python objects of all ranks."""
        content = np.frombuffer(self.mpi.pickle.dumps(value), np.uint8)
        sizes = self.gather_numbers(np.array([content.size])).ravel()
        starts = np.concatenate([[0], np.cumsum(sizes)])
        result = np.empty(starts[-1], np.uint8)
        self._operations += 1
        layout = [result, sizes, starts[:-1], self.mpi.BYTE]
        self.wait(self.comm.Iallgatherv([content, self.mpi.BYTE], layout))
        return [
            self.mpi.pickle.loads(result[start:stop].tobytes())
            for start, stop in itertools.pairwise(starts)
        ]

    def share(self, value: Any) -> Any:
        """Return the Python object of rank 0."""
        content = np.frombuffer(self.mpi.pickle.dumps(value), np.uint8)
        size = np.array([content.size])
        self.broadcast(size)
        if self.rank:
            content = np.empty(size[0], np.uint8)
        elif not content.flags.writeable:
            content = content.copy()
        self.broadcast(content)
        return value if self.rank == 0 else self.mpi.pickle.loads(content.tobytes())

    # -- waiting ----------------------------------------------------------------------------------

    def wait(self, request: Any) -> None:
        """Wait for the end of an operation.

        Raises:
            TrainingError: Another rank died, failed, or did not come in time.
        """
        for _ in range(SPINS):
            if request.Test():
                return
        begin, pause = time.monotonic(), 0.0
        reported = begin
        self._is_waiting = True
        try:
            while not request.Test():
                self.check()
                time.sleep(pause)
                now = time.monotonic()
                pause = PAUSE if now - begin > 0.05 else 0.0
                if now - reported > self.timeout:
                    reported = now
                    self.watch.report_waiting(self._operations, self.timeout)
        finally:
            self._is_waiting = False

    def check(self) -> None:
        """Raise an error if another rank has failed.

        Raises:
            TrainingError: It names the rank.
        """
        if self.watch.failure is not None:
            raise TrainingError(
                f"rank {self.rank} of {self.size} ends: {self.watch.failure}. Continue from the "
                f"last checkpoint (Trainer.resume), with the same or another number of ranks."
            )

    def _where(self) -> int:
        return self._operations if self._is_waiting else -1 - self._operations

    # -- the end ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Make an error inside a ``with`` block one of all ranks."""
        try:
            yield
        except BaseException as error:
            self._report(error)
            raise

    def _report(self, error: BaseException) -> None:
        if self.watch.failure is None and not getattr(error, "is_agreed", False):
            kind, text = type(error).__name__, str(error).partition("\n")[0]
            self.watch.report_failure(f"rank {self.rank} has failed: {kind}: {text}")

    def _report_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._report(error)
        self._excepthook(kind, error, trace)

    def _leave(self) -> None:
        """End the process: after a failure without MPI, which would wait for all ranks."""
        failed = self.watch.failure is not None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.watch.leave()
        if failed:
            is_headless = self.watch.failure == RANK_0_DIED
            if is_headless:
                time.sleep(1.0)  # until the others, too, have said what they have to say
            if is_headless or self.rank == 0:
                self.comm.Abort(1)
            os._exit(1)


def _ignore_news_of_deaths() -> None:
    """Stay alive when MPICH's launcher tells by a signal that another rank has died."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def agreed(error: BrainstormError) -> BrainstormError:
    """Return an error that all ranks raise at once, so that nobody has to tell the others."""
    error.is_agreed = True  # type: ignore[attr-defined]
    return error


def find_world(timeout: float = 600.0) -> World | None:
    """Return the ranks of this job; `None` where a process runs alone.

    Raises:
        MissingDependencyError: There are several, but no mpi4py.
    """
    if not has("mpi4py"):
        launched = {name: os.environ[name] for name in LAUNCHED if name in os.environ}
        if any(value.isdigit() and int(value) > 1 for value in launched.values()):
            names = ", ".join(f"{name}={value}" for name, value in launched.items())
            raise MissingDependencyError(
                f"this process is one of several ({names}), but mpi4py is missing. Install it "
                f"with: pip install 'brainstorm[mpi]'"
            )
        return None
    if require("mpi4py.MPI", "mpi").COMM_WORLD.size == 1:
        return None
    world = _all_ranks()
    world.timeout = timeout
    return world


@functools.cache
def _all_ranks() -> World:
    """Return the world of all ranks, always the same one."""
    return World()
