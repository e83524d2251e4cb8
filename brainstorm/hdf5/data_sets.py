"""Data sets: arrays and texts in HDF5 files."""

from __future__ import annotations

import itertools
import math
import zlib
from typing import Any, NamedTuple

import numpy as np

from brainstorm.hdf5.messages import (
    EXTERNAL,
    FILTERS,
    LAYOUT,
    SPACE,
    TYPE,
    UNDEFINED,
    Cursor,
    MalformedError,
    read_filters,
    read_space,
    read_type,
    the_one,
)

#: A deflate stream cannot expand by more than this factor.
MOST_DEFLATED = 1032


#: Bytes counted for a text beside its content: references to it may be compressed, lists are not.
TEXT_BYTES = 40


class Chunk(NamedTuple):
    """The location of a chunk of a data set."""

    offset: tuple[int, ...]
    address: int
    size: int


class DataSet:
    """An array (or texts) in the file, not yet read.

    Attributes:
        shape: Its shape.
        dtype: Its NumPy dtype; `None` for texts.
    """

    def __init__(self, file: Any, messages: dict[int, list[Cursor]]) -> None:
        self._file = file
        if EXTERNAL in messages:
            raise MalformedError("a data set lies in other files")
        self.shape = read_space(the_one(messages, SPACE))
        self.dtype, self._item_size = read_type(the_one(messages, TYPE))
        self._layout = the_one(messages, LAYOUT)
        self._filters = read_filters(messages[FILTERS][0]) if FILTERS in messages else []
        self._bytes = math.prod(self.shape) * self._item_size

    def __repr__(self) -> str:
        return f"DataSet({self.dtype or 'texts'}, {self.shape})"

    def read(self) -> Any:
        """Return the array (a number for shape ``()``), or nested lists of texts."""
        rows = math.prod(itertools.takewhile(bool, self.shape))  # those without elements, too
        if self.dtype is not None:
            self._file.charge(0 if self._bytes else rows)
            return self._read_array()[()]
        self._file.charge(TEXT_BYTES * rows)
        array = self._read_array()
        cursor = Cursor(array.tobytes())
        texts = [self._file.text(cursor) for _ in range(array.size)]
        return np.array(texts, object).reshape(self.shape).tolist()

    def map(self) -> np.ndarray:
        """Return the array; if it is contiguous, it is memory-mapped and read-only."""
        layout = Cursor(self._layout.data)
        in_one_piece = layout.take(2) in (b"\x03\x01", b"\x04\x01") and not self._filters
        if not in_one_piece or self.dtype is None or self._bytes == 0:
            return np.asarray(self.read())
        address = layout.number(8)
        if address + self._bytes > self._file.size:
            raise MalformedError("a data set ends beyond the end of the file")
        return np.memmap(self._file.stream, self.dtype, "r", address, self.shape)

    def _read_array(self) -> np.ndarray:
        layout = Cursor(self._layout.data)
        version, kind = layout.number(1), layout.number(1)
        dtype = np.dtype("V16") if self.dtype is None else self.dtype
        if (version, kind) == (3, 2):
            return self._read_chunks(layout, dtype)
        if version not in (3, 4) or kind not in (0, 1) or self._filters:
            raise MalformedError("a data set is virtual, or stored in an unsupported way")
        if kind == 0:
            data = layout.take(layout.number(2))
        else:
            data = self._file.read(layout.number(8), self._bytes) if self._bytes else b""
        if len(data) != self._bytes:
            raise MalformedError(f"a data set has {len(data)} bytes in place of {self._bytes}")
        return np.frombuffer(data, dtype).reshape(self.shape).copy()

    def _read_chunks(self, layout: Cursor, dtype: np.dtype[Any]) -> np.ndarray:
        rank = layout.number(1) - 1
        address = layout.number(8)
        sizes = tuple(layout.number(4) for _ in range(rank + 1))
        if rank != len(self.shape) or sizes[-1] != dtype.itemsize or 0 in sizes:
            raise MalformedError("the chunks of a data set do not have its shape")
        chunks = [] if address == UNDEFINED else list(self._file.chunks(address, rank))
        grid = [range(0, n, size) for n, size in zip(self.shape, sizes, strict=False)]
        if {chunk.offset for chunk in chunks} != _corners(grid, len(chunks)):
            raise MalformedError("a data set lacks chunks, or has too many")
        full, most = math.prod(sizes), MOST_DEFLATED if "deflate" in self._filters else 1
        if any(chunk.size * most < full for chunk in chunks):
            raise MalformedError("a chunk has fewer bytes than its shape says")
        array = np.empty(self.shape, dtype)
        for chunk in chunks:
            data = self._decode(self._file.read(chunk.address, chunk.size), full)
            block = np.frombuffer(data, dtype).reshape(sizes[:-1])
            target = array[
                tuple(slice(o, o + s) for o, s in zip(chunk.offset, sizes, strict=False))
            ]
            target[...] = block[tuple(slice(n) for n in target.shape)]
        return array

    def _decode(self, data: bytes, size: int) -> bytes:
        """Undo the filters; the result must have `size` bytes."""
        for name in reversed(self._filters):
            if name == "deflate":
                stream = zlib.decompressobj()
                try:
                    data = stream.decompress(data, size + 1)
                except zlib.error as error:
                    raise MalformedError(f"a chunk cannot be unpacked: {error}") from None
                if not stream.eof:
                    raise MalformedError("a chunk cannot be unpacked: it is cut off")
            else:
                data = np.frombuffer(data, "u1").reshape(self._item_size, -1).T.tobytes()
        if len(data) != size:
            raise MalformedError(f"a chunk has {len(data)} bytes in place of {size}")
        return data


def _corners(grid: list[range], count: int) -> set[tuple[int, ...]] | None:
    """Return the start indices of all chunks; `None` if their number is not `count`."""
    if math.prod(map(len, grid)) != count:
        return None
    return set(itertools.product(*grid))
