"""The CUDA driver: one GPU with its context, streams, memory, and what goes wrong there.

PyCUDA is imported when the first `Device` is made, and never before. The context is the primary
one of the GPU, which PyTorch, CuPy and the libraries of CUDA use too.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.util
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from brainstorm.errors import (
    BrainstormError,
    DeviceError,
    HandlerValidationError,
    MissingDependencyError,
    OutOfMemoryError,
)
from brainstorm.optree.render_cuda import BUSY
from brainstorm.utils import format_bytes

__all__ = [
    "OLDEST",
    "Device",
    "Memory",
    "destroy_with",
    "failure",
    "guarded",
    "leave_with",
    "load_driver",
]

#: Lowest compute capability that the kernels and CUDA 13 support.
OLDEST = (7, 5)


@functools.cache
def load_driver() -> ModuleType:
    """Return `pycuda.driver`, initialised.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no driver, or it finds no GPU.
    """
    if importlib.util.find_spec("pycuda") is None:
        raise MissingDependencyError(
            "PyCudaHandler needs pycuda, which is not installed. Install it with: "
            "pip install 'brainstorm[cuda]' (it is built on the spot and needs the CUDA toolkit)"
        )
    try:
        driver = importlib.import_module("pycuda.driver")
    except ImportError as error:
        if "libcuda" not in str(error):
            raise MissingDependencyError(
                f"PyCudaHandler needs pycuda, which cannot be imported ({error}). Build it again "
                f"for this Python: pip install --force-reinstall 'brainstorm[cuda]'"
            ) from error
        raise DeviceError(
            f"PyCudaHandler: there is no NVIDIA driver on this machine ({error}). Install the "
            f"driver of the GPU, or use get_default_handler(), which computes on the CPU."
        ) from error
    try:
        driver.init()
    except driver.Error as error:
        raise DeviceError(
            f"PyCudaHandler: the NVIDIA driver finds no GPU that it can use ({error}). Look at "
            f"nvidia-smi and CUDA_VISIBLE_DEVICES, or use get_default_handler(), which computes on "
            f"the CPU."
        ) from error
    return driver


def failure(error: Exception, what: str) -> BrainstormError:
    """Return the error of this library for one of PyCUDA's.

    Args:
        error: What PyCUDA raised.
        what: What was being done.
    """
    text = str(error)
    if isinstance(error, load_driver().MemoryError):
        return OutOfMemoryError(f"{what}: the GPU has not enough memory left ({text})")
    return DeviceError(
        f"{what}: the GPU failed ({text}). What was computed since the last read is lost, and the "
        f"CUDA context may be unusable: start a new process and continue from a checkpoint. If it "
        f"happens again at the same place, set CUDA_LAUNCH_BLOCKING=1, and look at nvidia-smi and "
        f"at `dmesg | grep -i xid`."
    )


def guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call something that uses the driver.

    Raises:
        BrainstormError: PyCUDA raised an error; see `failure`.
    """
    try:
        return function(*arguments)
    except load_driver().Error as error:
        raise failure(error, what) from error


class _Pushed:
    """Makes a context current until it is given up: at the latest when the thread ends."""

    def __init__(self, context: Any) -> None:
        self.context = context
        context.push()

    def __del__(self) -> None:
        self.context.pop()


class _Current(threading.local):
    """What is current in a thread."""

    pushed: _Pushed | None = None
    context: Any = None


_current = _Current()


@functools.cache
def _primary_context(index: int) -> Any:
    return load_driver().Device(index).retain_primary_context()


@atexit.register
def _leave() -> None:
    _current.pushed = None
    _primary_context.cache_clear()


def _within(context: Any, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function while a context is current."""
    context.push()
    try:
        function(*arguments)
    finally:
        context.pop()


def destroy_with(owner: Any, device: Device, function: Callable[..., Any], handle: Any) -> None:
    """Let a library destroy a handle when the object that owns it is collected.

    Not when Python ends: by then the library may have been closed before its handles.
    """
    weakref.finalize(owner, _within, device.context, function, handle).atexit = False


#: What its owners have left behind, by the number of the GPU.
_left: defaultdict[int, list[Any]] = defaultdict(list)


def leave_with(owner: Any, device: Device, *things: Any) -> None:
    """Let PyCUDA's streams, events and pinned memory go some time after the object that owns them.

    That is when memory is allocated the next time. The garbage collector may come upon the owner in
    any thread, and in others than that which made the context PyCUDA destroys nothing.
    """
    weakref.finalize(owner, _left[device.index].extend, things).atexit = False


def _allocated(size: int) -> Any:
    driver = load_driver()
    try:
        return driver.mem_alloc(size)
    except driver.MemoryError:
        gc.collect()  # networks that nobody uses any more, but whose parts refer to each other
        return driver.mem_alloc(size)


class Memory:
    """Memory on a GPU, which is freed with this object, in whatever thread that happens.

    Args:
        device: Where it is.
        size: In bytes.

    Attributes:
        address: Where it begins, a multiple of 256.
    """

    __slots__ = ("__weakref__", "_allocation", "_context", "address", "size")

    def __init__(self, device: Device, size: int) -> None:
        device.enter()
        _left[device.index].clear()
        self.size, self.address, self._context = size, 0, device.context
        what = f"{format_bytes(size)} of memory on {device.name}"
        self._allocation: Any = guarded(what, _allocated, size) if size else 0
        self.address = int(self._allocation)

    def __del__(self) -> None:
        # The garbage collector comes upon it in any thread; PyCUDA frees nothing in others than
        # that which made the context. When Python ends, this module may be gone before.
        if self.address and _current and _current.context is not self._context:
            _within(self._context, self._allocation.free)


class Device:
    """A GPU, with the streams and the scratch memory of one handler.

    Args:
        index: Number of the GPU, as CUDA counts.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no driver, no such GPU, or it is too old.

    Attributes:
        name: What the GPU is called.
        arch: What the compiler calls its architecture, e.g. ``'sm_90'``.
        multiprocessors: How many it has.
        stream: Everything is computed in it, in order.
        copies: Another stream, for what comes from the host.
        lock: Is held while an operation is put into the stream: operations share scratch memory,
            and a graph that is captured must get nothing from other threads.
    """

    def __init__(self, index: int) -> None:
        driver = load_driver()
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise HandlerValidationError(
                f"PyCudaHandler(device): expected the number of a GPU, got {index!r}"
            )
        count = driver.Device.count()
        if index >= count:
            names = ", ".join(f"{i}: {driver.Device(i).name()}" for i in range(count)) or "none"
            raise DeviceError(
                f"PyCudaHandler(device={index}): expected the number of a GPU of this machine "
                f"({names}). Look at nvidia-smi and CUDA_VISIBLE_DEVICES."
            )
        gpu = driver.Device(index)
        self.index, self.name = index, gpu.name()
        capability = gpu.compute_capability()
        if capability < OLDEST:
            raise DeviceError(
                f"PyCudaHandler(device={index}): expected a GPU of compute capability "
                f"{_dotted(OLDEST)} or higher (Turing), got {self.name} with {_dotted(capability)}."
                f" Use another GPU, or get_default_handler(), which computes on the CPU."
            )
        self.arch = "sm_{}{}".format(*capability)
        attribute = driver.device_attribute.MULTIPROCESSOR_COUNT
        self.multiprocessors: int = gpu.get_attribute(attribute)
        self.context = guarded(f"the context of {self.name}", _primary_context, index)
        self.enter()
        # Streams that do not wait for the default stream, where others may be at work.
        self.stream, self.copies = (driver.Stream(1) for _ in range(2))
        leave_with(self, self, self.stream, self.copies)
        self.lock = threading.RLock()
        self._scratch: dict[str, Memory] = {}
        #: Zeros, with which the blocks of a reduction count who is the last; see `render_cuda`.
        self.tickets = Memory(self, 4 * BUSY)
        self.clear(self.tickets)
        #: Copies an array of the host to a `DeviceArray`; set by the handler.
        self.upload: Callable[[Any, Any], None]

    def enter(self) -> None:
        """Make the context of the GPU current in this thread."""
        if _current.context is not self.context:
            _current.pushed = None
            _current.pushed = _Pushed(self.context)
            _current.context = self.context

    def scratch(self, slot: str, size: int) -> Memory:
        """Return memory of at least `size` bytes for what is needed within one operation.

        Who packs its address into a call keeps the memory: the slot may get larger memory later.
        """
        memory = self._scratch.get(slot)
        if memory is None or memory.size < size:
            memory = self._scratch[slot] = Memory(self, size)
        return memory

    def clear(self, memory: Memory) -> None:
        """Fill memory with zeros, when everything before it is computed."""
        if memory.size:
            clear = load_driver().memset_d8_async
            guarded("clearing memory", clear, memory.address, 0, memory.size, self.stream)

    def download(self, array: Any) -> np.ndarray:
        """Return a copy of a `DeviceArray` on the host, when everything before it is computed.

        Raises:
            DeviceError: Something failed since the last time.
        """
        self.synchronize()
        if not array.size:
            return np.empty(array.shape, array.dtype)
        # All bytes from the first to the last one, which hold the array with its strides.
        spans = [step * (n - 1) for step, n in zip(array.strides, array.shape, strict=True)]
        before, after = (sum(f(0, span) for span in spans) for f in (min, max))
        memory = np.empty(after - before + array.itemsize, np.uint8)
        copy = load_driver().memcpy_dtoh
        guarded("copying to the host", copy, memory, array.address + before)
        view = np.ndarray(array.shape, array.dtype, memory, -before, array.strides)
        return view if view.flags.c_contiguous else view.copy()

    def synchronize(self) -> None:
        """Wait until everything is computed.

        Raises:
            DeviceError: Something failed since the last time.
        """
        self.enter()
        guarded("waiting for the GPU", self.stream.synchronize)


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)
