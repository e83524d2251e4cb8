"""The CUDA driver: one GPU with its context, streams, memory and errors.

PyCUDA is imported when the first `Device` is created. The context is the primary one of the GPU,
which PyTorch, CuPy and the CUDA libraries use too.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from brainstorm.errors import DeviceError, MissingDependencyError, OutOfMemoryError
from brainstorm.handlers.numpy_memory import byte_span
from brainstorm.optree.cuda_structure import BUSY
from brainstorm.utils import format_bytes

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
                f"for this Python: pip install --force-reinstall --no-deps --no-cache-dir pycuda"
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


@functools.cache
def driver_library() -> ctypes.CDLL:
    """Return the driver library itself, for functions that PyCUDA lacks."""
    return ctypes.CDLL("libcuda.so.1")


def guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that uses the driver; its errors name what was done."""
    try:
        return function(*arguments)
    except load_driver().MemoryError as error:
        text = f"{what}: the GPU does not have enough memory left ({error})"
        raise OutOfMemoryError(text) from error
    except load_driver().Error as error:
        raise DeviceError(
            f"{what}: the GPU failed ({error}). Results since the last read are lost, and the "
            f"CUDA context may be unusable: start a new process and continue from a checkpoint. "
            f"If it happens again at the same place, set CUDA_LAUNCH_BLOCKING=1, and look at "
            f"nvidia-smi and at `dmesg | grep -i xid`."
        ) from error


def _current_handle() -> int | None:
    """Return the driver's handle of the context that is current in this thread."""
    found = ctypes.c_void_p()
    driver_library().cuCtxGetCurrent(ctypes.byref(found))
    return found.value


def _make_current(handle: int | None) -> None:
    """Make a context (or none) current, because another library may have changed that.

    PyCUDA assumes that only its own contexts become current.
    """
    if _current_handle() != handle:
        driver_library().cuCtxSetCurrent(ctypes.c_void_p(handle))


@functools.cache
def _primary_context(index: int) -> Any:
    return load_driver().Device(index).retain_primary_context()


@atexit.register
def _say_nothing() -> None:
    """Suppress PyCUDA's warning about memory that is only freed when the process ends."""
    warnings.filterwarnings("ignore", ".*context could not be cleaned up")


@contextlib.contextmanager
def pushed(context: Any) -> Iterator[None]:
    """Tell PyCUDA which context is current, as it requires for creating or destroying objects.

    Afterwards the current context is unchanged. A context that PyCUDA considers current when a
    thread or Python ends would abort the process.
    """
    before = _current_handle()
    _make_current(context.handle)
    guarded("making the context of the GPU current", context.push)
    try:
        yield
    finally:
        context.pop()
        _make_current(before)


def _within(context: Any, function: Callable[..., Any], *arguments: Any) -> None:
    with pushed(context):
        function(*arguments)


def destroy_with(owner: Any, device: Device, function: Callable[..., Any], *handle: Any) -> None:
    """Destroy a handle of a library when its owner is collected, in any thread.

    Not when Python exits: the library may be unloaded before its handles.
    """
    weakref.finalize(owner, _within, device.context, function, *handle).atexit = False


#: Objects left behind by their owners, by the number of the GPU.
_left: defaultdict[int, list[Any]] = defaultdict(list)


def leave_with(owner: Any, device: Device, *things: Any) -> None:
    """Destroy PyCUDA's streams and events some time after their owner.

    That is at the next allocation. The garbage collector may collect the owner in any thread, but
    PyCUDA can only destroy objects in the thread that created the context.
    """
    weakref.finalize(owner, _left[device.index].extend, things).atexit = False


def _allocated(size: int) -> Any:
    driver = load_driver()
    try:
        return driver.mem_alloc(size)
    except driver.MemoryError:
        gc.collect()  # unused networks whose parts refer to each other
        return driver.mem_alloc(size)


def new_event(device: Device) -> Any:
    """Return an event, for waiting only."""
    driver = load_driver()
    with pushed(device.context):
        return guarded("an event", driver.Event, driver.event_flags.DISABLE_TIMING)


class Memory:
    """So many bytes of memory on a GPU, freed together with this object, in any thread.

    Its address is a multiple of 256.
    """

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, device: Device, size: int) -> None:
        device.enter()
        self.size, self.address = size, 0
        with pushed(device.context):
            _left[device.index].clear()
            if size:
                what = f"{format_bytes(size)} of memory on {device.name}"
                allocation = guarded(what, _allocated, size)
                self.address = int(allocation)
                destroy_with(self, device, allocation.free)


class Device:
    """A GPU, with the streams and the scratch memory of all its handlers.

    Args:
        index: Number of the GPU, as in CUDA.

    Raises:
        MissingDependencyError: PyCUDA is not installed.
        DeviceError: There is no driver, no such GPU, or it is too old.

    Attributes:
        arch: Its architecture in the compiler's terms, e.g. ``'sm_90'``.
        stream: The stream of all operations, in order.
        copies: Another stream, for copies from the host.
        lock: Held while anything is put into the stream: operations share scratch memory, and
            while a graph is captured, other threads must not add to it, nor wait for it.
    """

    def __init__(self, index: int) -> None:
        driver = load_driver()
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
        attributes = driver.device_attribute
        self.multiprocessors: int = gpu.get_attribute(attributes.MULTIPROCESSOR_COUNT)
        #: Bytes that the threads of a block can share at most.
        self.shared: int = gpu.get_attribute(attributes.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.context = guarded(f"the context of {self.name}", _primary_context, index)
        self._handle: int = self.context.handle
        with pushed(self.context):
            # Streams that do not wait for the default stream, which other libraries may use.
            self.stream, self.copies = (driver.Stream(1) for _ in range(2))
        #: Events that nobody waits for; a thread takes one, or makes another one.
        self._events: list[Any] = []
        leave_with(self, self, self.stream, self.copies, self._events)
        self.lock = threading.RLock()
        self._scratch: dict[str, Memory] = {}
        #: Zeros, by which the blocks of a reduction find the last one; see `render_cuda`.
        self.tickets = Memory(self, 4 * BUSY)
        self.clear(self.tickets)
        #: Copies an array of the host to a `DeviceArray`; see `find_device`.
        self.upload: Callable[[Any, Any], None]

    def enter(self) -> None:
        """Make the context of the GPU current in this thread."""
        _make_current(self._handle)

    def scratch(self, slot: str, size: int) -> Memory:
        """Return memory of at least `size` bytes for use within one operation.

        Calls that contain its address must keep it: the slot may get larger memory later.
        """
        memory = self._scratch.get(slot)
        if memory is None or memory.size < size:
            memory = self._scratch[slot] = Memory(self, size)
        return memory

    def clear(self, memory: Memory) -> None:
        """Fill memory with zeros, after waiting for earlier operations."""
        if memory.size:
            clear = load_driver().memset_d8_async
            with self.lock:
                guarded("clearing memory", clear, memory.address, 0, memory.size, self.stream)

    def download(self, array: Any) -> np.ndarray:
        """Return a copy of a `DeviceArray` on the host, after waiting for earlier operations.

        Raises:
            DeviceError: Something failed since the last time.
        """
        self.synchronize()
        if not array.size:
            return np.empty(array.shape, array.dtype)
        # All bytes from the first to the last one, which contain the array with its strides.
        start, stop = byte_span(array.shadow)
        memory = np.empty(stop - start, np.uint8)
        guarded("copying to the host", load_driver().memcpy_dtoh, memory, start)
        place = array.address - start
        view = np.ndarray(array.shape, array.dtype, memory, place, array.strides)
        return view if view.flags.c_contiguous else view.copy()

    def synchronize(self) -> None:
        """Wait for all operations, while other threads may add some.

        Raises:
            DeviceError: Something failed since the last time.
        """
        self.enter()
        try:
            event = self._events.pop()
        except IndexError:
            event = new_event(self)
        try:
            with self.lock:
                guarded("waiting for the GPU", event.record, self.stream)
            guarded("waiting for the GPU", event.synchronize)
        finally:
            self._events.append(event)


def _dotted(capability: tuple[int, int]) -> str:
    return "{}.{}".format(*capability)
