"""Transports: how arrays of a handler get from rank to rank."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from brainstorm.ext.mpi.nccl import Nccl, find_nccl
from brainstorm.ext.mpi.world import World
from brainstorm.optional import require
from brainstorm.utils import Array

__all__ = [
    "DeviceTransport",
    "HostTransport",
    "NcclTransport",
    "PinnedTransport",
    "choose_transport",
    "is_cuda_aware",
]


class HostTransport:
    """NumPy arrays, which MPI reads and writes where they are.

    Args:
        world: The ranks.

    Attributes:
        is_queued: Whether sums are put into the stream of the handler, like its own operations.
    """

    is_queued = False

    def __init__(self, world: World) -> None:
        self.world = world

    def sum(self, array: Array) -> None:
        """Let an array on all ranks hold the sum of all of them."""
        self.wait(self.start_sum(array))

    def start_sum(self, array: Array) -> Any:
        """Begin to sum; return what `wait` takes."""
        return self.world.start_sum(array)

    def wait(self, request: Any) -> None:
        """Wait for the end of what `start_sum` has begun."""
        self.world.wait(request)

    def check(self) -> None:
        """Raise an error if what was queued has failed; here nothing is."""

    def broadcast(self, array: Array) -> None:
        """Let an array on all ranks hold what it holds on rank 0."""
        self.world.broadcast(array)


class DeviceTransport(HostTransport):
    """Arrays of a GPU, given to an MPI that is CUDA-aware.

    Such an MPI takes no part in streams: what was queued is computed first.
    """

    def start_sum(self, array: Array) -> Any:
        """Begin to sum what the GPU has computed."""
        array.device.synchronize()
        return super().start_sum(array)

    def broadcast(self, array: Array) -> None:
        """Broadcast what the GPU has computed."""
        array.device.synchronize()
        super().broadcast(array)


class PinnedTransport(HostTransport):
    """Arrays of a GPU, by way of page-locked memory of the host.

    Args:
        world: The ranks.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._driver = require("pycuda.driver", "cuda")
        self._free: dict[int, list[np.ndarray]] = {}  # by size

    def start_sum(self, array: Array) -> Any:
        """Copy the array to the host and begin to sum."""
        place = self._download(array)
        return super().start_sum(place), place, array

    def wait(self, request: Any) -> None:
        """Wait for the sum and copy it to the GPU."""
        summing, place, array = request
        super().wait(summing)
        self._upload(place, array)

    def broadcast(self, array: Array) -> None:
        """Broadcast by way of the host."""
        place = self._download(array)
        super().broadcast(place)
        self._upload(place, array)

    def _download(self, array: Array) -> np.ndarray:
        """Return a copy in memory that is this array's until it is uploaded."""
        size, free = int(array.size), self._free.setdefault(int(array.size), [])
        place = free.pop() if free else self._driver.pagelocked_empty((size,), array.dtype)
        array.device.synchronize()
        self._driver.memcpy_dtoh(place, _address(array))
        return place

    def _upload(self, place: np.ndarray, array: Array) -> None:
        self._driver.memcpy_htod(_address(array), place)
        self._free[place.size].append(place)


class NcclTransport:
    """Arrays of GPUs that talk to each other, in the order of the handler's stream.

    Nothing waits here: what the handler does next waits on the GPU.

    Args:
        nccl: The communicator.
    """

    is_queued = True

    def __init__(self, nccl: Nccl) -> None:
        self.nccl = nccl

    def sum(self, array: Array) -> None:
        """Let an array on all ranks hold the sum of all of them."""
        self.nccl.all_reduce(_address(array), int(array.size), array.dtype, _stream(array))

    def start_sum(self, array: Array) -> None:
        """Do as `sum`, which only queues it."""
        self.sum(array)

    def wait(self, request: None) -> None:
        """Do nothing: the stream waits by itself."""

    def check(self) -> None:
        """Raise an error if one of the queued sums has failed."""
        self.nccl.check()

    def broadcast(self, array: Array) -> None:
        """Let an array on all ranks hold what it holds on rank 0."""
        self.nccl.broadcast(_address(array), int(array.size), array.dtype, _stream(array))


def _address(array: Array) -> int:
    """Return where the memory of an array of a GPU is."""
    return int(array.__cuda_array_interface__["data"][0])


def _stream(array: Array) -> int:
    """Return the stream that computes an array."""
    return int(array.__cuda_array_interface__.get("stream") or 0)


def choose_transport(world: World, handler: Any) -> HostTransport | NcclTransport:
    """Return the best transport for a handler's arrays that all ranks have."""
    if handler.array_type is np.ndarray:
        return HostTransport(world)
    library = find_nccl()
    devices = world.gather((world.hosts[world.rank], handler.zeros((1,)).device.index))
    shares_device = len(set(devices)) < world.size  # which NCCL refuses
    if all(world.gather(library is not None)) and not shares_device:
        return NcclTransport(Nccl(library, world))
    return (DeviceTransport if all(world.gather(is_cuda_aware())) else PinnedTransport)(world)


def is_cuda_aware() -> bool:
    """Return whether the MPI library says that it can read the memory of GPUs.

    Open MPI and MPICH have ``MPIX_Query_cuda_support`` for this; without it the answer is no.
    """
    try:
        return bool(ctypes.CDLL(None).MPIX_Query_cuda_support())
    except AttributeError:
        return False
