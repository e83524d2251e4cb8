"""oneDNN, called through ctypes on its C API of version 3.

The library ``libdnnl.so.3`` is searched for in Python's prefix, in the distribution
``onednn-cpu-gomp``, and by the system's loader. The environment variable ``BRAINSTORM_ONEDNN``
names another file, or is ``off`` to use none. Nothing is loaded before `load` is called.

The numbers in this module are those of oneDNN's ``dnnl_types.h``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from ctypes import c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Any

from brainstorm.errors import MissingDependencyError
from brainstorm.handlers.native.signal_stack import SignalStack, block_signals
from brainstorm.handlers.threads import load_library

VARIABLE = "BRAINSTORM_ONEDNN"
FILE = "libdnnl.so.3"
DISTRIBUTION = "onednn-cpu-gomp"

_CPU, _IN_ORDER, _IMPLEMENTATION = 1, 1, 8
_HANDLE = (c_void_p,)
#: Where the pointer to the new object is stored, and the engine.
_ON = (c_void_p, c_void_p)
#: Function -> types of the arguments; all return a status except those in `_RESULTS`.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "dnnl_version": (),
    "dnnl_engine_create": (c_void_p, c_int, c_size_t),
    "dnnl_engine_destroy": _HANDLE,
    "dnnl_stream_create": (c_void_p, c_void_p, c_uint),
    "dnnl_stream_destroy": _HANDLE,
    "dnnl_memory_desc_create_with_strides": (c_void_p, c_int, c_void_p, c_int, c_void_p),
    "dnnl_memory_desc_create_with_tag": (c_void_p, c_int, c_void_p, c_int, c_int),
    "dnnl_memory_desc_destroy": _HANDLE,
    "dnnl_memory_desc_get_size": _HANDLE,
    "dnnl_memory_create": (c_void_p,) * 4,
    "dnnl_memory_destroy": _HANDLE,
    "dnnl_memory_set_data_handle": (c_void_p, c_void_p),
    "dnnl_primitive_attr_create": _HANDLE,
    "dnnl_primitive_attr_destroy": _HANDLE,
    "dnnl_primitive_attr_set_scratchpad_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_fpmath_mode": (c_void_p, c_int),
    "dnnl_primitive_attr_set_post_ops": (c_void_p, c_void_p),
    "dnnl_post_ops_create": _HANDLE,
    "dnnl_post_ops_destroy": _HANDLE,
    "dnnl_post_ops_append_sum": (c_void_p, c_float, c_int32, c_int),
    "dnnl_post_ops_append_eltwise": (c_void_p, c_int, c_float, c_float),
    "dnnl_primitive_desc_query": (c_void_p, c_int, c_int, c_void_p),
    "dnnl_primitive_desc_query_md": (c_void_p, c_int, c_int),
    "dnnl_primitive_desc_destroy": _HANDLE,
    "dnnl_primitive_create": (c_void_p, c_void_p),
    "dnnl_primitive_destroy": _HANDLE,
    "dnnl_primitive_execute": (c_void_p, c_void_p, c_int, c_void_p),
    "dnnl_matmul_primitive_desc_create": (c_void_p,) * 7,
    "dnnl_reorder_primitive_desc_create": (c_void_p,) * 6,
    # What is to be computed; layouts, strides, dilations, paddings, a description, and attributes.
    "dnnl_convolution_forward_primitive_desc_create": (*_ON, c_int, c_int, *(c_void_p,) * 9),
    "dnnl_convolution_backward_data_primitive_desc_create": (*_ON, c_int, *(c_void_p,) * 9),
    "dnnl_convolution_backward_weights_primitive_desc_create": (*_ON, c_int, *(c_void_p,) * 10),
}


_RESULTS: dict[str, Any] = {
    "dnnl_version": ctypes.POINTER(c_int * 3),
    "dnnl_memory_desc_get_size": c_size_t,
    "dnnl_primitive_desc_query_md": c_void_p,
}


class UnsupportedError(Exception):
    """The library, or its use here, does not support a case; NumPy is used then."""


class Handle(c_void_p):
    """A pointer to an object of the library, which is destroyed together with this object.

    It points to nothing until the object is created, which may be followed at once by an exception,
    such as that of Ctrl-C. It equals only itself, so in a key of a cache it stands for the object;
    its address would not, because the library uses addresses again.

    Args:
        destroy: The function that destroys the object.
        owners: What the object depends on.
    """

    __slots__ = ("_destroy", "_owners")
    __hash__ = object.__hash__

    def __init__(self, destroy: Any, owners: tuple[Any, ...]) -> None:
        super().__init__()
        self._destroy, self._owners = destroy, owners

    @property
    def address(self) -> int:
        """The pointer as a number."""
        return self.value or 0

    def __del__(self) -> None:
        if self:  # it was created
            self._destroy(self)


class _Used(threading.local):
    count = shielded = 0

    def __init__(self) -> None:  # in each thread that comes here
        self._stack = SignalStack()


def _many() -> int:
    """Return the number of threads without a limit."""
    return sys.maxsize


class Library:
    """The loaded library with one engine, the CPU.

    Args:
        path: File, or name for the system's loader.

    Raises:
        MissingDependencyError: It does not load, or is not oneDNN 3.

    Attributes:
        path: The file that it was loaded from.
        version: E.g. ``'3.2.0'``.
        used: Its `count` is the number of threads set for the calling thread; 0: unknown. So many
            as are `shielded` get no signals.
        most_threads: How many threads OpenMP starts at most.
        thread_setters: The addresses of the C functions that set the number of threads, and whether
            OpenMP may start fewer; 0: there is none.
        data_setter: The address of the function that sets the address of a memory object.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = load_library(path)
            for name, types in PROTOTYPES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = types, _RESULTS.get(name, c_int)
        except (OSError, AttributeError) as error:
            raise MissingDependencyError(f"{path}: {error}") from None
        numbers = [*self._library.dnnl_version().contents]
        self.version = ".".join(map(str, numbers))
        if numbers[0] != 3:
            raise MissingDependencyError(f"{path}: expected oneDNN 3, got {self.version}")
        # oneDNN divides its work among all the threads that it asks for: there must not be fewer.
        names = "omp_set_num_threads", "omp_set_dynamic"
        self._setters = [getattr(self._library, name, None) for name in names]
        self.thread_setters = [_address(setter) for setter in self._setters]
        self.most_threads = getattr(self._library, "omp_get_thread_limit", _many)()
        if getattr(self._library, "omp_get_max_active_levels", _many)() < 1:
            self.most_threads = 1
        self.used = _Used()
        is_linux = sys.platform == "linux"
        self._parallel = getattr(self._library, "GOMP_parallel", None) if is_linux else None
        try:
            self.engine = self.create("dnnl_engine", _CPU, 0)
        except UnsupportedError as error:
            raise MissingDependencyError(f"{path}: {error}") from None
        self.execute = _address(self._library.dnnl_primitive_execute)
        self.data_setter = _address(self._library.dnnl_memory_set_data_handle)

    def __str__(self) -> str:
        return f"oneDNN {self.version} ({self.path})"

    def use_threads(self, count: int) -> None:
        """Set the number of threads for the calling thread, if the library uses OpenMP."""
        if self.used.count != count:
            self.used.count = count
            for setter, value in zip(self._setters, (count, 0), strict=True):
                if setter is not None:
                    setter(value)
            self.shield(count)

    def shield(self, threads: int) -> None:
        """Keep signals away from the threads that OpenMP has for the calling thread."""
        used = self.used
        if threads > 1 and self._parallel is not None:
            if threads > used.shielded:
                block_signals(self._parallel, threads)
            used.shielded = threads  # for fewer, OpenMP ends the others

    def check(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            UnsupportedError: The status is not that of success.
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            raise UnsupportedError(f"oneDNN's {name} returned status {status}")

    def create(self, kind: str, *arguments: Any, way: str = "") -> Handle:
        """Create an object.

        Args:
            kind: Prefix of the names of the functions, e.g. ``'dnnl_memory'``.
            arguments: Arguments of ``kind_create``, without the first.
            way: Suffix of the name, e.g. ``'_with_tag'``.
        """
        owners = tuple([each for each in arguments if isinstance(each, Handle)])
        handle = Handle(getattr(self._library, f"{kind}_destroy"), owners)
        self.check(f"{kind}_create{way}", ctypes.byref(handle), *arguments)
        return handle

    def describe(self, kind: str, *arguments: Any) -> Handle:
        """Return a primitive descriptor; `kind` is e.g. ``'matmul'``."""
        handle = Handle(self._library.dnnl_primitive_desc_destroy, arguments)
        self.check(f"dnnl_{kind}_primitive_desc_create", ctypes.byref(handle), *arguments)
        return handle

    def stream(self) -> Handle:
        """Return a new queue of executions, for one thread."""
        return self.create("dnnl_stream", self.engine, _IN_ORDER)

    def implementation(self, description: Handle) -> str:
        """Return the name of the implementation of a primitive descriptor."""
        text = c_char_p()
        self.check("dnnl_primitive_desc_query", description, _IMPLEMENTATION, 0, ctypes.byref(text))
        return (text.value or b"").decode()

    def queried(self, description: Handle, what: int) -> Handle:
        """Return one of the memory descriptors of a primitive descriptor, which destroys it."""
        handle = Handle(lambda _: None, (description,))
        handle.value = self._library.dnnl_primitive_desc_query_md(description, what, 0)
        return handle

    def size(self, memory_description: Any) -> int:
        """Return the number of bytes for a memory descriptor."""
        return self._library.dnnl_memory_desc_get_size(memory_description)


def _address(function: Any) -> int:
    """Return the address of a C function; 0 if there is none."""
    return ctypes.cast(function, c_void_p).value or 0


def sizes(numbers: Any) -> ctypes.Array[c_int64]:
    """Return a C array of sizes."""
    return (c_int64 * 12)(*numbers)


def load() -> tuple[Library | None, str]:
    """Return the library and its name, or None and why there is none."""
    return _load(os.environ.get(VARIABLE, ""))


@functools.lru_cache
def _load(wanted: str) -> tuple[Library | None, str]:
    if wanted == "off":
        return None, f"{VARIABLE} is off"
    reasons = []
    for path in [wanted] if wanted else _candidates():
        try:
            library = Library(path)
            return library, str(library)
        except MissingDependencyError as error:
            reasons.append(str(error))
    remedy = f"Run pip install {DISTRIBUTION}"
    if getattr(sys, "frozen", False):
        remedy = f"Package it with the application: --add-binary .../lib/{FILE}:lib (PyInstaller)"
    return None, f"no oneDNN ({'; '.join(reasons)}). {remedy}"


def _candidates() -> Iterator[str]:
    path = Path(sys.prefix, "lib", FILE)
    if path.exists():
        yield str(path)
    from importlib import metadata  # slow to import, and rarely needed

    try:
        files = metadata.distribution(DISTRIBUTION).files or []
    except metadata.PackageNotFoundError:
        files = []
    yield from (str(Path(file.locate()).resolve()) for file in files if file.name == FILE)
    yield FILE
