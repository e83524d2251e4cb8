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
from brainstorm.utils import Array

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


def address(array: Array) -> int:
    """Return the address of an array of a GPU."""
    return int(array.__cuda_array_interface__["data"][0])


class NcclTransport:
    """Arrays of GPUs that communicate directly, in the order of the handler's stream.

    The host does not wait: later operations of the handler wait on the GPU. Each rank has a GPU,
    whose context must be current.
    """

    is_queued = True

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

    def sum(self, array: Array) -> None:
        """Queue the sum of an array over all ranks, in place."""
        self._queue("ncclAllReduce", SUM, array)

    start_sum = sum

    def wait(self, request: None) -> None:
        """Do nothing: the stream waits by itself."""

    def broadcast(self, array: Array) -> None:
        """Queue the copy of rank 0's array to all ranks."""
        self._queue("ncclBroadcast", 0, array)

    def _queue(self, name: str, how: int, array: Array) -> None:
        """Queue an operation in place; `how` is the kind of sum, or the rank that has the array."""
        where = ctypes.c_void_p(address(array))
        kind = ctypes.c_int(TYPES[np.dtype(array.dtype).name])
        size, number = ctypes.c_size_t(int(array.size)), ctypes.c_int(how)
        stream = ctypes.c_void_p(int(array.__cuda_array_interface__.get("stream") or 0))
        self._call(name, where, where, size, kind, number, self._comm, stream)

    def check(self) -> None:
        """Raise an error if one of the queued operations has failed."""
        found = ctypes.c_int()
        self._call("ncclCommGetAsyncError", self._comm, ctypes.byref(found))
        self._judge("ncclCommGetAsyncError", found.value)
