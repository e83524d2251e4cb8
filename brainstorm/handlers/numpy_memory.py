"""Memory of NumPy arrays: aligned, reused as scratch space, or shared."""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import types
from typing import Any, NoReturn

import numpy as np

from brainstorm.errors import OutOfMemoryError

#: In bytes: a cache line, and the widest vector register.
ALIGNMENT = 64
#: Maximum number of cached parts of slots.
_MOST_PARTS = 1000
#: Work limit (see `numpy.shares_memory`) after which views count as overlapping. NumPy's stubs
#: before 2.5 do not expect an int.
_MOST_WORK: Any = 1000


def aligned_zeros(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros that starts at a multiple of `ALIGNMENT` bytes."""
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    dtype = np.dtype(dtype)
    length = math.prod(sizes)
    if length == 0:
        return np.zeros(sizes, dtype)
    raw = np.zeros(length + ALIGNMENT // dtype.itemsize, dtype)
    start = -raw.ctypes.data % ALIGNMENT // dtype.itemsize
    return raw[start : start + length].reshape(sizes)


def reserved(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array with addresses but no memory, which cannot be written.

    Raises:
        MemoryError: The address space is too small.
    """
    count, dtype = math.prod(shape), np.dtype(dtype)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, max(count, 1) * dtype.itemsize, flags, mmap.PROT_READ)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(str(error)) from error
    return np.frombuffer(memory, dtype, count).reshape(shape)


def array_at(
    address: int, shape: tuple[int, ...], dtype: Any, strides: Any = None, owner: Any = None
) -> np.ndarray:
    """Return a NumPy array for any address; it keeps its owner alive."""
    described = {
        "version": 3,
        "data": (address, False),
        "shape": shape,
        "typestr": np.dtype(dtype).str,
        "strides": strides,
    }
    return np.asarray(types.SimpleNamespace(__array_interface__=described, owner=owner))


def _documented_address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _address(array: np.ndarray) -> int:
    """Return where the first element lies."""
    return _pointer_at(id(array) + _HEADER).value or 0


#: NumPy keeps the address of the data behind the header that all objects have. Every operation asks
#: for addresses, and creating the dictionary ``__array_interface__`` takes ten times as long.
_HEADER = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address
_probe = np.empty(2)[1:]

#: Return where the first element of an array lies.
address_of = (
    _address if _address(_probe) == _documented_address(_probe) else _documented_address
)  # another interpreter may keep it elsewhere


def byte_span(array: np.ndarray) -> tuple[int, int]:
    """Return where the bytes of an array begin and end."""
    start = address_of(array)
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    ways = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    forth = sum([way for way in ways if way > 0])
    return start + sum(ways) - forth, start + forth + array.itemsize


def steps_of(array: Any) -> tuple[int, ...]:
    """Return the strides, with 0 on axes of length 1 or 0.

    NumPy's strides on these axes are arbitrary.
    """
    shape = array.shape
    if 1 not in shape and 0 not in shape:
        return array.strides
    return tuple([s if n > 1 else 0 for n, s in zip(shape, array.strides, strict=True)])


def overlap(a: np.ndarray, b: np.ndarray, most_work: Any = _MOST_WORK) -> str:
    """Return '' if two arrays share no element, 'same' if they are the same view, else 'other'.

    What takes more than `most_work` to decide counts as 'other'; None: no limit.
    """
    if not np.may_share_memory(a, b):
        return ""
    is_same = a.shape == b.shape and steps_of(a) == steps_of(b)
    if is_same and address_of(a) == address_of(b):
        return "same" if a.dtype == b.dtype else "other"
    try:
        shared = np.shares_memory(a, b, max_work=most_work)
        return "other" if shared else ""
    except np.exceptions.TooHardError:
        return "other"


def raise_out_of_memory(operation: str, error: MemoryError) -> NoReturn:
    """Raise an error that names the operation which needs the memory, unless this one does.

    Callers catch MemoryError: a context manager would take longer than a small operation.
    """
    if isinstance(error, OutOfMemoryError):
        raise error
    raise OutOfMemoryError(
        f"{operation}: there is no memory for its scratch arrays ({error}). Use a smaller batch."
    ) from error


class Scratch(threading.local):
    """Arrays for intermediate results, one set per thread, that grow and never shrink.

    ``scratch(slot, shape)`` returns an array of arbitrary content, valid until the next call with
    the same slot. Copies and pickles start empty.

    Args:
        dtype: The default dtype.
    """

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._slots: dict[str, np.ndarray] = {}
        self._parts: dict[tuple[str, tuple[int, ...]], np.ndarray] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (Scratch, (self._dtype,))

    def __call__(self, slot: str, shape: tuple[int, ...], dtype: Any = None) -> np.ndarray:
        """Return the array of a slot; a slot always has the same dtype."""
        part = self._parts.get((slot, shape))
        return self._make_part(slot, shape, dtype) if part is None else part

    def _make_part(self, slot: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        length = math.prod(shape)
        held = self._slots.get(slot)
        if held is None or held.size < length:
            held = aligned_zeros(max(length, 1), self._dtype if dtype is None else dtype)
            self._slots[slot] = held
            self._parts.clear()
        elif len(self._parts) == _MOST_PARTS:
            self._parts.clear()
        part = self._parts[slot, shape] = held[:length].reshape(shape)
        return part
