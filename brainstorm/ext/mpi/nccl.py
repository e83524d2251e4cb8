"""NCCL by ctypes: sums over GPUs without the host (NVIDIA Collective Communications Library).

Signatures and numbers are those of nccl.h, versions 2.x.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from brainstorm.errors import TrainingError
from brainstorm.ext.mpi.world import World
from brainstorm.handlers.pycuda.libraries import load_library

UNIQUE_ID_BYTES = 128
SUM = 0
TYPES = {"float16": 6, "float32": 7, "float64": 8}
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    """The identifier that the ranks of a communicator share; passed by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


def find_nccl() -> Any:
    """Return ``libnccl.so.2``, or `None` if it is not found."""
    try:
        return load_library("nccl", (2,))
    except OSError:
        return None


class Nccl:
    """A communicator of NCCL over all ranks, one GPU each; its context must be current.

    Args:
        library: ``libnccl.so.2``.
        world: The ranks.
    """

    def __init__(self, library: Any, world: World) -> None:
        self._library = library
        library.ncclGetErrorString.restype = ctypes.c_char_p
        unique = UniqueId()
        if world.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(unique))
        content = world.share(bytes(memoryview(unique).cast("B")))
        unique = UniqueId.from_buffer_copy(content)
        self._comm = ctypes.c_void_p()
        size, rank = ctypes.c_int(world.size), ctypes.c_int(world.rank)
        self._call("ncclCommInitRank", ctypes.byref(self._comm), size, unique, rank)

    def _call(self, name: str, *args: Any) -> None:
        self._judge(name, getattr(self._library, name)(*args))

    def _judge(self, name: str, result: int) -> None:
        if result not in (0, IN_PROGRESS):
            text = self._library.ncclGetErrorString(result).decode()
            raise TrainingError(f"{name}: NCCL says {text!r} (error {result}).")

    def all_reduce(self, address: int, count: int, dtype: Any, stream: int) -> None:
        """Queue the sum of an array over all ranks, in place."""
        self._queue("ncclAllReduce", SUM, address, count, dtype, stream)

    def broadcast(self, address: int, count: int, dtype: Any, stream: int) -> None:
        """Queue the copy of rank 0's array to all ranks."""
        self._queue("ncclBroadcast", 0, address, count, dtype, stream)

    def _queue(
        self, name: str, how: int, address: int, count: int, dtype: Any, stream: int
    ) -> None:
        """Queue an operation in place; `how` is the kind of sum, or the rank that has the array."""
        where = ctypes.c_void_p(address)
        kind = ctypes.c_int(TYPES[np.dtype(dtype).name])
        size, number = ctypes.c_size_t(count), ctypes.c_int(how)
        self._call(name, where, where, size, kind, number, self._comm, ctypes.c_void_p(stream))

    def check(self) -> None:
        """Raise an error if one of the queued operations has failed.

        Raises:
            TrainingError: The text is NCCL's.
        """
        found = ctypes.c_int()
        self._call("ncclCommGetAsyncError", self._comm, ctypes.byref(found))
        self._judge("ncclCommGetAsyncError", found.value)
