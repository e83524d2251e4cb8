"""The messages of HDF5 objects (types, spaces, filters, links), and what they contain."""

from __future__ import annotations

import functools
from typing import Any

import h5py
import numpy as np

#: The undefined address.
UNDEFINED = 2**64 - 1

#: Kinds of messages.
SPACE, LINK_INFO, TYPE, LINK, EXTERNAL, LAYOUT, FILTERS, ATTRIBUTE, CONTINUATION, SYMBOLS = (
    0x1, 0x2, 0x3, 0x6, 0x7, 0x8, 0xB, 0xC, 0x10, 0x11,
)  # fmt: skip

#: Supported types of elements.
NUMBERS = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


class MalformedError(ValueError):
    """A file is not an HDF5 file, or has a part that is damaged or not supported."""


class Cursor:
    """Bytes that are consumed from the front to the back."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        start, self.position = self.position, self.position + size
        if self.position > len(self.data):
            raise MalformedError(f"a part of {len(self.data)} bytes is too short")
        return self.data[start : self.position]

    def number(self, size: int) -> int:
        """Return the next number of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def padded(self, size: int, multiple: int) -> bytes:
        """Return the next `size` bytes, and skip the padding to a multiple."""
        part = self.take(size)
        self.take(-size % multiple)
        return part

    def expect(self, wanted: bytes) -> None:
        """Take the next bytes, which must be these."""
        if (found := self.take(len(wanted))) != wanted:
            raise MalformedError(f"expected {wanted!r}, got {found!r}")

    @property
    def left(self) -> int:
        """How many bytes follow."""
        return len(self.data) - self.position


def the_one(messages: dict[int, list[Cursor]], kind: int) -> Cursor:
    """Return the message of a kind that a data set must have exactly once."""
    if len(messages.get(kind, ())) != 1:
        raise MalformedError("a data set lacks its shape, type or place, or has several")
    return messages[kind][0]


def read_space(message: Cursor) -> tuple[int, ...]:
    """Return the shape of a data set or attribute."""
    version, rank, _, kind = (message.number(1) for _ in range(4))
    if version == 1:
        message.take(4)
    elif version != 2 or kind > 1:
        raise MalformedError("a data set has an unsupported shape")
    shape = tuple(message.number(8) for _ in range(rank))
    if rank > 32 or max(shape, default=0) >= 2**62:
        raise MalformedError(f"a data set has the invalid shape {shape}")
    return shape


@functools.cache
def _known_types() -> dict[bytes, np.dtype[Any]]:
    """Return the types of numbers as encoded in files, with their NumPy dtypes."""
    dtypes = {np.dtype(order + code) for code in NUMBERS for order in "<>"}
    return {h5py.h5t.py_create(d, logical=True).encode()[2:]: d for d in dtypes}


def read_type(message: Cursor) -> tuple[np.dtype[Any] | None, int]:
    """Return dtype and size of the elements; no dtype for texts of any length."""
    data, size = message.data, Cursor(message.data[4:8]).number(4)
    if data[0] & 15 == 9 and data[1] & 15 == 1 and size == 16:
        return None, size
    if data[0] & 15 == 3 and 0 < size < 2**31:
        return np.dtype(f"S{size}"), size
    for written, dtype in _known_types().items():
        if data.startswith(written):
            return dtype, dtype.itemsize
    raise MalformedError("the elements of a data set are neither numbers nor texts")


def read_filters(message: Cursor) -> list[str]:
    """Return the names of the filters that were applied to chunks, in order."""
    names = {1: "deflate", 2: "shuffle"}
    version, count = message.number(1), message.number(1)
    message.take(6 if version == 1 else 0)
    filters = []
    for _ in range(count):
        number = message.number(2)
        if number not in names or version not in (1, 2):
            raise MalformedError(f"a data set has passed filter {number}, not gzip or shuffle")
        if names[number] in filters:
            raise MalformedError(f"a data set has passed the filter {names[number]} twice")
        length = message.number(2) if version == 1 else 0
        message.take(2)
        values = message.number(2)
        message.take(length + -length % 8 + 4 * values + (4 * (values % 2) if version == 1 else 0))
        filters.append(names[number])
    return filters


def read_link(message: Cursor) -> tuple[int, str, int]:
    """Return (order, name, address) of a link to an object of the file."""
    message.expect(b"\x01")
    flags = message.number(1)
    kind = message.number(1) if flags & 8 else 0
    order = message.number(8) if flags & 4 else 0
    message.take(1 if flags & 16 else 0)
    name = message.take(message.number(1 << (flags & 3))).decode()
    if kind:
        raise MalformedError(f"{name!r} is a link to another place or file")
    return order, name, message.number(8)


def read_heap(collection: Cursor) -> dict[int, bytes]:
    """Return the objects of a global heap collection by number."""
    collection.take(16)
    objects: dict[int, bytes] = {}
    while collection.left >= 16 and (index := collection.number(2)):
        collection.take(6)
        objects[index] = collection.padded(collection.number(8), 8)
    return objects
