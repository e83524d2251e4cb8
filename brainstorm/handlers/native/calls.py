"""Native calls: C functions with their arguments, which are called one by one, or by `Replay`.

A call is of a kernel, ``f(void **pointers, int64_t *numbers)``, or executes a primitive of oneDNN:
``int f(primitive, stream, int count, arguments)``, which returns 0 on success. It keeps objects
created for it alive, but not the arrays of the operation, which the owner of the call must keep.
"""
# ruff: noqa: D102 (documented in the base class, or in `Kernel`)

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from ctypes import c_int, c_void_p
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import BrainstormError, OutOfMemoryError
from brainstorm.handlers.native.library import Library
from brainstorm.handlers.numpy_memory import address_of

#: Kinds of records.
KERNEL, PRIMITIVE, LOOP = range(3)
_KERNEL_TYPE = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)
_PRIMITIVE_TYPE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)
_OUT_OF_MEMORY = 1


#: An argument of a primitive: its number, and the memory object. (Arrays of `ctypes` structures
#: would keep an object for each element.)
_ARGUMENT = np.dtype([("number", np.intc), ("memory", np.uintp)], align=True)
#: A call in C, as in `replay`: its kind, the function with its four arguments, and the number of
#: threads.
Record: TypeAlias = tuple[int, int, int, int, int, int, int]


class Call:
    """A C function with arguments.

    Attributes:
        name: The operation, for messages; the owner sets it.
        threads: The number of threads to set in the library; 0: not needed.
    """

    __slots__ = ()
    name = "a native call"
    threads = 0
    #: Objects kept alive for the call.
    keep: Any = ()

    def record(self) -> Record:
        """Return it as a record for `Replay`."""
        raise NotImplementedError

    def __call__(self) -> None:
        """Execute it.

        Raises:
            BrainstormError: The library reports a failure.
        """
        raise NotImplementedError

    def failure(self, status: int) -> BrainstormError:
        """Return the error for a status that is not 0."""
        if status == _OUT_OF_MEMORY:
            return OutOfMemoryError(f"{self.name}: oneDNN got no memory from the system")
        return BrainstormError(
            f"{self.name}: oneDNN returned status {status}. Set BRAINSTORM_ONEDNN=off to do "
            f"without it."
        )


class Kernel(Call):
    """A kernel in C.

    Args:
        function: Its address.
        pointers: Its first arguments, the places.
        numbers: Its other arguments.
        keep: Objects to keep alive for the call.
    """

    __slots__ = ("_arguments", "_function", "_places", "_words", "keep", "name")

    def __init__(
        self, function: int, pointers: Sequence[int] | np.ndarray,
        numbers: Sequence[int] | np.ndarray, keep: Any = (),
    ) -> None:  # fmt: skip
        self.name, self.keep, self._function = Call.name, keep, function
        self._words, self._places = np.array([*pointers, *numbers], np.int64), len(pointers)
        start = address_of(self._words)
        self._arguments = start, start + self._places * self._words.itemsize

    @property
    def places(self) -> np.ndarray:
        """The addresses of its data."""
        return self._words[: self._places]

    @property
    def numbers(self) -> list[int]:
        """The arguments of the function other than places."""
        return self._words[self._places :].tolist()

    @property
    def form(self) -> Any:
        """A value that is equal for calls that differ only in their places."""
        return self._function, self.numbers, self._places

    def record(self) -> Record:
        return KERNEL, self._function, *self._arguments, 0, 0, 0

    def copy(self) -> Kernel:
        """Return a copy with places of its own."""
        return Kernel(self._function, self.places, self.numbers, self.keep)

    def slots(self) -> list[tuple[int, int]]:
        """Return, for each place, where it is stored, and the function that sets it (0: none)."""
        size = self._words.itemsize
        return [(self._arguments[0] + i * size, 0) for i in range(self._places)]

    def __call__(self) -> None:
        callable_at(self._function)(*self._arguments)


@functools.cache
def callable_at(address: int, type_: Any = _KERNEL_TYPE) -> Any:
    """Return the function at an address, by default of a kernel."""
    return type_(address)


class Execution(Call):
    """The execution of a primitive of oneDNN.

    Args:
        library: The library.
        primitive: The primitive, with an attribute ``handle``.
        stream: The stream of the execution.
        given: Number of the argument to (layout, address).
        keep: Objects to keep alive for the call.
        threads: Number of threads.
    """

    def __init__(
        self, library: Library, primitive: Any, stream: Any, given: Mapping[int, tuple[Any, int]],
        keep: Any, threads: int,
    ) -> None:  # fmt: skip
        self._made_of = library, primitive, stream, given, keep, threads
        self.threads, self._library, self.keep = threads, library, keep
        self._memories = [
            library.create("dnnl_memory", layout, library.engine, where)
            for layout, where in given.values()
        ]
        memories = [memory.address for memory in self._memories]
        self._passed = np.array([*zip(given, memories, strict=True)], _ARGUMENT)
        where = primitive.handle.address, stream.address
        self._arguments = *where, len(given), address_of(self._passed)

    @property
    def places(self) -> np.ndarray:
        return np.array([where for _, where in self._made_of[3].values()], np.int64)

    @property
    def form(self) -> Any:
        given = self._made_of[3]
        layouts = [layout.value for layout, _ in given.values()]
        return self._arguments[:2], tuple(given), layouts, self.threads

    def record(self) -> Record:
        return PRIMITIVE, self._library.execute, *self._arguments, self.threads

    def copy(self) -> Execution:
        """Return a copy with memory objects of its own."""
        return Execution(*self._made_of)

    def slots(self) -> list[tuple[int, int]]:
        """Return, for each place, the memory object and the function that sets its address."""
        return [(memory.address, self._library.data_setter) for memory in self._memories]

    def __call__(self) -> None:
        self._library.use_threads(self.threads)
        if status := callable_at(self._library.execute, _PRIMITIVE_TYPE)(*self._arguments):
            raise self.failure(status)
