"""The ranks of an MPI job: collective operations, which raise an error if a rank does not come.

Launchers end a job when one of its processes is killed. Two cases they do not see. A rank that has
failed would wait in ``MPI_Finalize`` for the others, which wait for it: it aborts the job instead.
A rank may hang: so all operations are non-blocking ones that are waited for in Python, with a limit
of time. A rank that reaches the limit tells the others that it waits, and those that also wait
answer: the other ranks hang. Between two looks the processor is free for others, as there may be
more ranks than cores.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from brainstorm.errors import MissingDependencyError, TrainingError
from brainstorm.optional import has, require

#: Environment variables in which launchers store the number of processes.
LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS")

#: How often an operation is tested before the processor is yielded.
SPINS = 200

#: Seconds between two tests during a long wait.
PAUSE = 0.0002

#: Seconds in which a rank that waits answers one that has waited for too long.
ANSWER_TIME = 5.0

#: The tag of messages that say that a rank waits.
WAITING = 1


class World:
    """The ranks of a communicator.

    Args:
        comm: A communicator of mpi4py; `None`: that of all ranks.
        timeout: Seconds of waiting for a rank after which the job fails.

    Attributes:
        rank: The number of this rank.
        size: Number of ranks.
        hosts: The names of the machines that the ranks run on.
    """

    def __init__(self, comm: Any = None, timeout: float = 600.0) -> None:
        self.mpi = require("mpi4py.MPI", "mpi")
        self.comm = (self.mpi.COMM_WORLD if comm is None else comm).Dup()
        self.timeout = timeout
        self.rank, self.size = self.comm.rank, self.comm.size
        self._has_failed = False
        self.hosts: list[str] = self.comm.allgather(self.mpi.Get_processor_name())
        atexit.register(self._leave)
        self._excepthook, sys.excepthook = sys.excepthook, self._note_uncaught

    def __repr__(self) -> str:
        return f"World: rank {self.rank} of {self.size}"

    # -- collective operations --------------------------------------------------------------------

    def sum(self, array: Any) -> None:
        """Replace an array on all ranks by the sum over the ranks."""
        self.wait(self.start_sum(array))

    def start_sum(self, array: Any) -> Any:
        """Begin to sum; return what `wait` takes."""
        return self.comm.Iallreduce(self.mpi.IN_PLACE, array, self.mpi.SUM)

    def broadcast(self, array: Any) -> None:
        """Let an array on all ranks hold what it holds on rank 0."""
        self.wait(self.comm.Ibcast(array, 0))

    def gather_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers (n,) of all ranks, as (ranks, n)."""
        result = np.empty((self.size, *numbers.shape), numbers.dtype)
        self.wait(self.comm.Iallgather(numbers, result))
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the Python objects of all ranks."""
        content = np.frombuffer(self.mpi.pickle.dumps(value), np.uint8)
        sizes = self.gather_numbers(np.array([content.size])).ravel()
        starts = np.concatenate([[0], np.cumsum(sizes)])
        result = np.empty(starts[-1], np.uint8)
        layout = [result, sizes, starts[:-1], self.mpi.BYTE]
        self.wait(self.comm.Iallgatherv([content, self.mpi.BYTE], layout))
        return [
            self.mpi.pickle.loads(result[start:stop].tobytes())
            for start, stop in itertools.pairwise(starts)
        ]

    def share(self, value: Any) -> Any:
        """Return the Python object of rank 0."""
        shared = self.gather(None if self.rank else value)[0]
        return shared if self.rank else value

    # -- waiting ----------------------------------------------------------------------------------

    def wait(self, request: Any) -> None:
        """Wait for the end of an operation.

        Raises:
            TrainingError: Another rank did not come in time.
        """
        for _ in range(SPINS):
            if request.Test():
                return
        begin, pause = time.monotonic(), 0.0
        while not request.Test():
            time.sleep(pause)
            waited = time.monotonic() - begin
            pause = PAUSE if waited > 0.05 else 0.0
            if waited > self.timeout or (pause and self.comm.iprobe(tag=WAITING)):
                self._has_failed = True
                raise TrainingError(
                    f"rank {self.rank} of {self.size} ends: {self._find_missing()} within "
                    f"{self.timeout:g} s. Continue from the last checkpoint (Trainer.resume), with "
                    f"the same or another number of ranks."
                )

    def _find_missing(self) -> str:
        """Tell the others that this rank waits; return the ranks that have not come."""
        missing = {rank for rank in range(self.size) if rank != self.rank}
        for rank in missing:
            self.comm.isend(None, rank, WAITING)
        status, end = self.mpi.Status(), time.monotonic() + ANSWER_TIME
        while missing and time.monotonic() < end:
            if self.comm.iprobe(tag=WAITING, status=status):
                self.comm.recv(source=status.source, tag=WAITING)
                missing.discard(status.source)
            else:
                time.sleep(PAUSE)
        if missing:
            return f"{name_ranks(sorted(missing))} did not come"
        return "an operation of all ranks has not ended"

    # -- the end ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Let an error inside a ``with`` block end the job when this process ends.

        Unless all ranks go on, and come well through a later one.
        """
        try:
            yield
        except BaseException as error:
            self._note(error)
            raise
        self._has_failed = False

    def _note(self, error: BaseException) -> None:
        self._has_failed |= not getattr(error, "is_agreed", False)

    def _note_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._note(error)
        self._excepthook(kind, error, trace)

    def _leave(self) -> None:
        if self._has_failed:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            self.comm.Abort(1)


def agreed(text: str) -> TrainingError:
    """Return an error that all ranks raise together, so that it need not be reported to others."""
    error = TrainingError(text)
    error.is_agreed = True  # type: ignore[attr-defined]
    return error


def name_ranks(ranks: list[int]) -> str:
    """Return the names of ranks for messages."""
    numbers = ", ".join(map(str, ranks))
    return f"rank {numbers}" if len(ranks) == 1 else f"ranks {numbers}"


def find_world(timeout: float = 600.0) -> World | None:
    """Return the ranks of this job; `None` for a process that runs alone.

    Raises:
        MissingDependencyError: There are several, but mpi4py or its MPI library is not installed.
    """
    if not has("mpi4py"):
        _check_alone("mpi4py is missing. Install it with: pip install 'brainstorm[mpi]'")
        return None
    try:
        size = require("mpi4py.MPI", "mpi").COMM_WORLD.size
    except RuntimeError as error:  # of mpi4py, which looks for the library at run time
        _check_alone(
            "mpi4py finds no MPI library. Install one, e.g. with: pip install mpich", error
        )
        return None
    if size == 1:
        return None
    world = _all_ranks()
    world.timeout = timeout
    return world


def _check_alone(missing: str, error: Exception | None = None) -> None:
    """Raise an error if this process was launched as one of several."""
    launched = {name: os.environ[name] for name in LAUNCHED if name in os.environ}
    if any(value.isdigit() and int(value) > 1 for value in launched.values()):
        names = ", ".join(f"{name}={value}" for name, value in launched.items())
        raise MissingDependencyError(
            f"this process is one of several ({names}), but {missing}"
        ) from error


@functools.cache
def _all_ranks() -> World:
    """Return the world of all ranks, always the same one."""
    return World()
