"""From the host to a GPU, while the GPU computes.

Small arrays are copied from a ring of pinned memory directly to their destination, in the order of
the operations. Large ones go through one of two pairs of staging memory, one half pinned on the
host and the other on the GPU: the host fills the first, a separate stream copies it to the second,
and the stream of the operations copies it from there. So the next batch is transferred while the
present one is being processed. The host waits only for memory that is still in use. Very large
arrays do not use pinned memory: the driver copies them, in the order of the operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.driver import (
    Device,
    Memory,
    destroy_with,
    guarded,
    leave_with,
    load_driver,
    new_event,
    pushed,
)
from brainstorm.handlers.pycuda.elements import copying_walk
from brainstorm.handlers.pycuda.fusing import Piece, launched
from brainstorm.handlers.pycuda.launches import load

#: Bytes: maximum of a small array, of both halves, and of arrays that use pinned memory.
SMALL, RING, MOST_PINNED = 16 << 10, 256 << 10, 64 << 20

#: dtypes that are sent unchanged and converted on the GPU; others are converted on the host.
_SENT = frozenset(map(np.dtype, ("bool", "uint8", "int8", "uint16", "int16", "float32")))


def _pinned(size: int, device: Device) -> np.ndarray:
    with pushed(device.context):
        memory: Any = guarded(
            "pinned memory", load_driver().pagelocked_empty, size, np.dtype(np.uint8)
        )
    destroy_with(memory, device, memory.base.free)
    return memory


class _Ring:
    """Two halves of pinned memory, which are filled alternately."""

    def __init__(self, device: Device) -> None:
        self._halves = [_pinned(RING // 2, device) for _ in range(2)]
        self._sent = [new_event(device) for _ in range(2)]
        self._start = 0

    def filled(self, values: np.ndarray, stream: Any) -> np.ndarray:
        """Return a part filled with the values, after its earlier content has been sent."""
        if self._start + values.nbytes > RING // 2:
            self._sent[0].record(stream)
            self._halves.reverse()
            self._sent.reverse()
            guarded("waiting for a copy to the GPU", self._sent[0].synchronize)
            self._start = 0
        part = self._halves[0][self._start : self._start + values.nbytes]
        self._start += values.nbytes
        np.copyto(part, values.reshape(-1).view(np.uint8))
        return part


class _Staging:
    """Memory on both sides, and events for when it can be reused."""

    def __init__(self, device: Device) -> None:
        self.sent, self.used = new_event(device), new_event(device)
        self.host = np.empty(0, np.uint8)
        self.memory: Memory | None = None

    def filled(self, values: np.ndarray, device: Device) -> tuple[np.ndarray, Memory]:
        """Return the part on the host filled with the values, after earlier ones were sent."""
        guarded("waiting for a copy to the GPU", self.sent.synchronize)
        if self.memory is None or self.host.size < values.nbytes:
            self.host, self.memory = _pinned(values.nbytes, device), Memory(device, values.nbytes)
        part = self.host[: values.nbytes]
        np.copyto(part, values.reshape(-1).view(np.uint8))
        return part, self.memory


class Uploads:
    """Copies arrays from the host."""

    def __init__(self, device: Device) -> None:
        self._device = device
        driver = load_driver()
        self._send, self._move = driver.memcpy_htod_async, driver.memcpy_dtod_async
        self._ring, self._staging = _Ring(device), [_Staging(device) for _ in range(2)]
        leave_with(self, device, self._ring, *self._staging)

    def __call__(self, values: np.ndarray, array: DeviceArray) -> None:
        """Copy an array of the same shape; when this returns, `values` may change.

        Raises:
            DeviceError: The GPU failed.
        """
        if not array.size:
            return
        self._device.enter()
        with self._device.lock:
            self._upload(values, array)

    def _upload(self, values: np.ndarray, array: DeviceArray) -> None:
        if array.nbytes <= SMALL and array.flags.c_contiguous:
            part = self._ring.filled(np.ascontiguousarray(values, array.dtype), self._device.stream)
            guarded("copying to the GPU", self._send, array.address, part, self._device.stream)
            return
        kept = values.dtype == array.dtype or values.dtype in _SENT
        values = np.ascontiguousarray(values, None if kept else array.dtype)
        is_plain = values.dtype == array.dtype and array.flags.c_contiguous
        if values.nbytes <= MOST_PINNED:
            self._stage(values, array, is_plain)
            return
        whole = array if is_plain else DeviceArray.new(self._device, array.shape, values.dtype)
        # In the stream of the operations: a copy in the default stream may still be running when
        # it returns, and this stream would not wait for it.
        guarded("copying to the GPU", self._send, whole.address, values, self._device.stream)
        if whole is not array:
            self._copy(whole, array)

    def _copy(self, source: DeviceArray, target: DeviceArray) -> None:
        """Copy an array to another one of any dtype."""
        launch = launched(self._device, Piece.of_loop(copying_walk(source, target)))
        load(self._device, [launch])
        guarded("converting on the GPU", launch.run)

    def _stage(self, values: np.ndarray, array: DeviceArray, is_plain: bool) -> None:
        device = self._device
        self._staging.reverse()
        staging = self._staging[0]
        part, memory = staging.filled(values, device)
        device.copies.wait_for_event(staging.used)
        guarded("copying to the GPU", self._send, memory.address, part, device.copies)
        staging.sent.record(device.copies)
        device.stream.wait_for_event(staging.sent)
        if is_plain:
            given = array.address, memory.address, values.nbytes, device.stream
            guarded("copying to the GPU", self._move, *given)
        else:
            self._copy(DeviceArray.at(device, memory, array.shape, values.dtype), array)
        staging.used.record(device.stream)
