"""CUDA graphs: launches that are captured once and repeated by one driver call.

PyCUDA does not support them, so these are functions of the driver, called by ctypes.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_ulonglong, c_void_p

from brainstorm.errors import DeviceError
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.driver import Device, driver_library, guarded
from brainstorm.handlers.pycuda.fusing import fused, launched
from brainstorm.handlers.pycuda.recurrences import recurrences

#: From cuda.h: libraries may load their kernels while a graph is captured.
_RELAXED = 2


def _check(what: str, status: int) -> None:
    if status:
        text = c_char_p()
        driver_library().cuGetErrorString(c_int(status), byref(text))
        raise DeviceError(
            f"{what} failed: {(text.value or b'').decode()} (error {status} of CUDA). Set "
            f"BRAINSTORM_REPLAY=0 to run the operations one by one, which shows which one fails."
        )


class Graph:
    """Operations as one graph, in fewer launches than one by one.

    Attributes:
        launches: Its nodes, which are to be loaded before it is captured.
    """

    def __init__(self, device: Device, operations: Sequence[Building]) -> None:
        self._device, self._operations = device, operations
        pieces = fused(piece for building in operations for piece in building.pieces)
        self.launches = [launched(device, piece) for piece in recurrences(device, pieces)]
        self._executable, self._stream = c_void_p(), c_void_p(device.stream.handle)
        self._launch = driver_library().cuGraphLaunch

    def capture(self) -> None:
        """Make the graph, by whoever holds the lock of the device.

        Raises:
            DeviceError: The launches cannot be captured.
        """
        library, graph = driver_library(), c_void_p()
        self._device.enter()
        status = library.cuStreamBeginCapture_v2(self._stream, c_int(_RELAXED))
        _check("capturing a CUDA graph", status)
        collects = gc.isenabled()
        gc.disable()  # freeing memory would wait for the GPU, not allowed here
        try:
            for launch in self.launches:
                guarded("capturing a CUDA graph", launch.run)
        finally:
            status = library.cuStreamEndCapture(self._stream, byref(graph))
            if collects:
                gc.enable()
        _check("capturing a CUDA graph", status)
        status = library.cuGraphInstantiateWithFlags(byref(self._executable), graph, c_ulonglong(0))
        library.cuGraphDestroy(graph)
        _check("instantiating a CUDA graph", status)
        weakref.finalize(self, library.cuGraphExecDestroy, self._executable).atexit = False

    def __call__(self) -> None:
        """Put all launches into the stream.

        Raises:
            DeviceError: The GPU failed.
        """
        self._device.enter()
        with self._device.lock:
            status = self._launch(self._executable, self._stream)
        if status:
            _check("launching a CUDA graph", status)
