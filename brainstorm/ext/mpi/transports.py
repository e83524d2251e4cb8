"""Transports: how arrays of a handler are exchanged between ranks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from brainstorm.ext.mpi.nccl import NcclTransport, address, find_nccl
from brainstorm.ext.mpi.world import World
from brainstorm.optional import require
from brainstorm.utils import Array


class HostTransport:
    """NumPy arrays, which MPI reads and writes in place."""

    #: Whether sums are put into the stream of the handler, like its own operations.
    is_queued = False

    def __init__(self, world: World) -> None:
        self.world = world

    def sum(self, array: Array) -> None:
        """Replace an array on all ranks by the sum over the ranks."""
        self.wait(self.start_sum(array))

    def start_sum(self, array: Array) -> Any:
        """Start a sum; return a request for `wait`."""
        return self.world.start_sum(array)

    def wait(self, request: Any) -> None:
        """Wait for the end of a sum."""
        self.world.wait(request)

    def check(self) -> None:
        """Raise an error if a queued sum has failed; nothing is queued here."""

    def broadcast(self, array: Array) -> None:
        """Replace an array on all ranks by that of rank 0."""
        self.world.broadcast(array)


class DeviceTransport(HostTransport):
    """Arrays of a GPU, for a CUDA-aware MPI.

    Such an MPI does not use streams: queued operations are finished first.
    """

    def start_sum(self, array: Array) -> Any:
        """Start to sum, when the GPU has computed the array."""
        array.device.synchronize()
        return super().start_sum(array)

    def broadcast(self, array: Array) -> None:
        """Broadcast, when the GPU has computed the array."""
        array.device.synchronize()
        super().broadcast(array)


class PinnedTransport(HostTransport):
    """Arrays of a GPU, via page-locked memory of the host."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._driver = require("pycuda.driver", "cuda")
        self._free: dict[Any, list[np.ndarray]] = {}  # by size and dtype

    def start_sum(self, array: Array) -> Any:
        """Copy the array to the host and start to sum."""
        place = self._download(array)
        return super().start_sum(place), place, array

    def wait(self, request: Any) -> None:
        """Wait for the sum and copy it to the GPU."""
        summing, place, array = request
        super().wait(summing)
        self._upload(place, array)

    def broadcast(self, array: Array) -> None:
        """Broadcast via the host."""
        place = self._download(array)
        super().broadcast(place)
        self._upload(place, array)

    def _download(self, array: Array) -> np.ndarray:
        """Return a copy in memory that is reserved for this array until it is uploaded."""
        size = int(array.size)
        free = self._free.setdefault((size, array.dtype), [])
        place = free.pop() if free else self._driver.pagelocked_empty((size,), array.dtype)
        array.device.synchronize()
        self._driver.memcpy_dtoh(place, address(array))
        return place

    def _upload(self, place: np.ndarray, array: Array) -> None:
        self._driver.memcpy_htod(address(array), place)
        self._free[place.size, place.dtype].append(place)


def choose_transport(world: World, handler: Any) -> HostTransport | NcclTransport:
    """Return the best transport that all ranks support for a handler's arrays."""
    if handler.array_type is np.ndarray:
        return HostTransport(world)
    library = find_nccl()
    devices = world.gather((world.hosts[world.rank], handler.zeros((1,)).device.index))
    shares_device = len(set(devices)) < world.size  # not supported by NCCL
    if all(world.gather(library is not None)) and not shares_device:
        return NcclTransport(library, world)
    return (DeviceTransport if all(world.gather(is_cuda_aware())) else PinnedTransport)(world)


def is_cuda_aware() -> bool:
    """Return whether the MPI library reports that it can access the memory of GPUs.

    Open MPI and MPICH have ``MPIX_Query_cuda_support`` for this; without it the result is false.
    """
    try:
        return bool(ctypes.CDLL(None).MPIX_Query_cuda_support())
    except AttributeError:
        return False
