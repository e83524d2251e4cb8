"""Columns: long logs of numbers, which stay on disk but for their ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

__all__ = ["BLOCK", "Column"]

#: How many numbers lie in memory, at eight bytes each, before they are written away.
BLOCK = 4096

#: How many bytes a temporary file takes before another one is begun.
MOST_BYTES = 1 << 26

_CODES = {float: "d", int: "q"}


class Column(Sequence[Any]):
    """Numbers of one type, to be read like a list.

    Every `BLOCK` of them goes to a temporary file, which has no name and vanishes with the process.
    Where it cannot be written, they stay in memory.

    Args:
        values: All of them floats, or all of them ints of 64 bits.

    Raises:
        TypeError: They are not, or those of `append` are not like them.
        OverflowError: An int needs more bits.

    Attributes:
        type: `float` or `int`.
    """

    def __init__(self, values: Sequence[Any] | np.ndarray) -> None:
        numbers = values.tolist() if isinstance(values, np.ndarray) else values
        self.type = type(numbers[0])
        if self.type not in _CODES or any(type(value) is not self.type for value in numbers):
            raise TypeError("expected numbers of one type")
        self._blocks: list[tuple[_File, int]] = []
        self._last = array(_CODES[self.type])
        for value in numbers:
            self.append(value)

    def append(self, value: Any) -> None:
        """Append a number of the same type."""
        if type(value) is not self.type:
            raise TypeError(f"expected a {self.type.__name__}, got {value!r}")
        self._last.append(value)
        if len(self._last) >= BLOCK and len(self._last) % BLOCK == 0:
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # they stay in memory until the next block is full
            while self._last:
                file = _present_file()
                self._blocks.append((file, file.write(self._last[:BLOCK].tobytes())))
                del self._last[:BLOCK]

    def copy(self) -> Column:
        """Return a copy."""
        other = object.__new__(Column)
        other.type, other._blocks, other._last = self.type, self._blocks[:], self._last[:]
        return other

    def _arrays(self, first: int = 0, behind: int | None = None) -> Iterator[np.ndarray]:
        """Yield the numbers of these blocks and of the rest, which counts as a block."""
        dtype = np.dtype(self._last.typecode)
        for file, offset in self._blocks[first:behind]:
            yield np.frombuffer(file.read(offset, BLOCK * dtype.itemsize), dtype)
        if behind is None or behind > len(self._blocks):
            yield np.array(self._last, dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(list(self._arrays())).astype(dtype or self.type, copy=False)

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK + len(self._last)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        positions = range(len(self))[index]
        if isinstance(positions, int):
            return self[positions : positions + 1][0]
        if not positions:
            return []
        low, high = sorted((positions[0], positions[-1]))
        first = min(low // BLOCK, len(self._blocks))
        found = np.concatenate(list(self._arrays(first, high // BLOCK + 1)))
        return found[np.array(positions) - first * BLOCK].tolist()

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(part.tolist() for part in self._arrays())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, Column)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Column, (np.asarray(self),))


class _File:
    """A temporary file of one process; it is closed when no block in it is needed any more."""

    def __init__(self) -> None:
        self._process = os.getpid()
        with tempfile.TemporaryFile() as file:
            self._handle = os.dup(file.fileno())
        self._offsets = itertools.count(0, 8 * BLOCK)
        self._is_full = False
        weakref.finalize(self, os.close, self._handle)

    def takes_more(self) -> bool:
        """Return whether there is space; none for a process that has been forked since."""
        return not self._is_full and self._process == os.getpid()

    def write(self, content: bytes) -> int:
        """Write a block; return where it is.

        Raises:
            OSError: There is no space.
        """
        offset = next(self._offsets)  # at once, also where threads write
        self._is_full = offset + len(content) >= MOST_BYTES
        if os.pwrite(self._handle, content, offset) != len(content):
            raise OSError("no space for the whole block")
        return offset

    def read(self, offset: int, count: int) -> bytes:
        """Return what was written."""
        return os.pread(self._handle, count, offset)


_file: _File | None = None


def _present_file() -> _File:
    global _file
    if _file is None or not _file.takes_more():
        _file = _File()
    return _file
