"""Files: the location of their parts, and the structure of groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from brainstorm.hdf5.data_sets import Chunk, DataSet
from brainstorm.hdf5.messages import (
    ATTRIBUTE,
    CONTINUATION,
    FILTERS,
    LAYOUT,
    LINK,
    LINK_INFO,
    SPACE,
    SYMBOLS,
    TYPE,
    UNDEFINED,
    Cursor,
    MalformedError,
    read_heap,
    read_link,
    read_space,
    read_type,
)

#: How many times the size of a file may be read, and how many bytes in addition.
MOST_TIMES, MOST_BESIDE = 4, 65536

#: Maximum nesting of groups; the package writes few levels.
MOST_DEPTH = 32


class Group(dict[str, Any]):
    """Name to `Group` or `DataSet`; the root group has its text attributes in ``attrs``."""

    def __init__(self) -> None:
        super().__init__()
        self.attrs: dict[str, str] = {}


class _File:
    """An open file: the parts of the format at given addresses."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self._left = MOST_TIMES * self.size + MOST_BESIDE
        self._seen: set[int] = set()
        self._heaps: dict[int, dict[int, bytes]] = {}

    def charge(self, size: int) -> None:
        """Count bytes; raise an error if there are too many."""
        self._left -= size
        if self._left < 0:
            raise MalformedError("its parts refer to the same bytes again and again")

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the file."""
        if address + size > self.size:
            raise MalformedError(
                f"expected {size} bytes at {address}, got a file of {self.size} bytes"
            )
        self.charge(size)
        self.stream.seek(address)
        data = self.stream.read(size)
        if len(data) != size:
            raise MalformedError("it became shorter while it was read")
        return data

    def root(self) -> Group:
        """Return all groups and data sets."""
        start = Cursor(self.read(0, min(self.size, 96)))
        start.expect(b"\x89HDF\r\n\x1a\n")
        version = start.number(1)
        if version in (0, 1):
            start.take(4)
            start.expect(b"\x08\x08")
            start.take(9 if version == 0 else 13)
        elif version in (2, 3):
            start.expect(b"\x08\x08")
            start.take(1)
        else:
            raise MalformedError(f"HDF5 superblocks of version {version} are not supported")
        base, _, end = start.number(8), start.number(8), start.number(8)
        if base != 0 or end > self.size:
            raise MalformedError(f"expected {end} bytes, got {self.size}")
        if version < 2:
            start.take(16)
        return self.node(start.number(8), 0)

    def node(self, address: int, depth: int) -> Any:
        """Return the group or data set at an address."""
        if address in self._seen or depth > MOST_DEPTH:
            raise MalformedError("a group contains itself, or an object has two names")
        self._seen.add(address)
        messages: dict[int, list[Cursor]] = {}
        for kind, body in self._messages(address):
            messages.setdefault(kind, []).append(Cursor(body))
        if LAYOUT in messages:
            return DataSet(self, messages)
        group = Group()
        if depth == 0:
            group.attrs = dict(map(self._attribute, messages.get(ATTRIBUTE, ())))
            group.attrs.pop("", None)
        for name, child in self._links(messages):
            if name in group or name in ("", ".") or "/" in name:
                raise MalformedError(f"a group has an invalid name {name!r}, or has it twice")
            group[name] = self.node(child, depth + 1)
        return group

    # -- headers of objects -----------------------------------------------------------------------

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        head = Cursor(self.read(address, 16))
        if is_new := head.data.startswith(b"OHDR"):
            head.take(5)
            flags = head.number(1)
            at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
            width = 1 << (flags & 3)
            size = int.from_bytes(self.read(address + at, width), "little")
            blocks = [(address + at + width, size)]
        else:
            head.expect(b"\x01")
            head.take(7)
            blocks = [(address + 16, head.number(4))]
        fixed, extra = (4, 2 if is_new and flags & 4 else 0) if is_new else (8, 0)
        for start, size in blocks:
            block = Cursor(self.read(start, size))
            while block.left >= fixed + extra:
                kind, length = block.number(1 if is_new else 2), block.number(2)
                shared = block.number(1) & 2
                block.take(extra if is_new else 3)
                body = block.take(length)
                if kind == CONTINUATION:
                    where = Cursor(body)
                    first, count = where.number(8), where.number(8)
                    # a new block has a signature before it and a checksum after it
                    blocks.append((first + 4, max(count - 8, 0)) if is_new else (first, count))
                elif shared and kind in (SPACE, TYPE, LAYOUT, FILTERS, ATTRIBUTE):
                    raise MalformedError("an object has parts in other places (a named type, say)")
                else:
                    yield kind, body

    def _attribute(self, message: Cursor) -> tuple[str, str]:
        """Return name and text of an attribute; empty texts if it is not a text."""
        version = message.number(1)
        message.take(1)
        sizes = [message.number(2) for _ in range(3)]
        message.take(1 if version == 3 else 0)
        name, kind, space = (message.padded(size, 8 if version == 1 else 1) for size in sizes)
        dtype, size = read_type(Cursor(kind))
        if math.prod(read_space(Cursor(space))) != 1 or (dtype is not None and dtype.kind != "S"):
            return "", ""
        text = self.text(message) if dtype is None else message.take(size).rstrip(b"\0").decode()
        return name.rstrip(b"\0").decode(), text

    def text(self, reference: Cursor) -> str:
        """Return the text in a global heap that a reference points to."""
        length, address, index = (reference.number(size) for size in (4, 8, 4))
        if length == 0:
            return ""
        if address not in self._heaps:
            head = Cursor(self.read(address, 16))
            head.expect(b"GCOL")
            head.take(4)
            self._heaps[address] = read_heap(Cursor(self.read(address, head.number(8))))
        self.charge(length)
        data = self._heaps[address].get(index, b"")
        if len(data) < length:
            raise MalformedError("a text is missing, or shorter than it should be")
        return data[:length].decode()

    # -- groups -----------------------------------------------------------------------------------

    def _links(self, messages: dict[int, list[Cursor]]) -> Iterator[tuple[str, int]]:
        """Yield the names in a group and the addresses of the objects."""
        if SYMBOLS in messages:
            table = messages[SYMBOLS][0]
            yield from self._symbols(table.number(8), table.number(8))
            return
        links = [read_link(message) for message in messages.get(LINK, ())]
        for info in messages.get(LINK_INFO, ()):
            info.take(1)
            info.take(8 if info.number(1) & 1 else 0)
            if (heap := info.number(8)) != UNDEFINED:
                links.extend(self._heap_links(heap))
        for _, name, address in sorted(links):
            yield name, address

    def _symbols(self, tree: int, heap: int) -> Iterator[tuple[str, int]]:
        head = Cursor(self.read(heap, 32))
        head.expect(b"HEAP")
        head.take(4)
        size, _, address = (head.number(8) for _ in range(3))
        names = self.read(address, size)
        for _, leaf in self._leaves(tree, 0, 8):
            count = Cursor(self.read(leaf, 8))
            count.expect(b"SNOD")
            count.take(2)
            number = count.number(2)
            entries = Cursor(self.read(leaf + 8, 40 * number))
            for _ in range(number):
                start, target, cached = (entries.number(size) for size in (8, 8, 4))
                entries.take(20)
                end = names.find(b"\0", start)
                if cached == 2 or end < 0:
                    raise MalformedError("a group has links to other places, or damaged names")
                self.charge(end - start)
                yield names[start:end].decode(), target

    def _leaves(self, root: int, kind: int, key_size: int) -> Iterator[tuple[Cursor, int]]:
        """Yield (first key, address) of all leaves of a B-tree of version 1."""
        nodes: list[tuple[int, int | None]] = [(root, None)]
        while nodes:
            address, expected = nodes.pop()
            head = Cursor(self.read(address, 24))
            head.expect(b"TREE")
            found, level, count = head.number(1), head.number(1), head.number(2)
            if found != kind or (expected is not None and level != expected):
                raise MalformedError("a B-tree is damaged")
            body = Cursor(self.read(address + 24, count * (key_size + 8)))
            pairs = [(Cursor(body.take(key_size)), body.number(8)) for _ in range(count)]
            if level == 0:
                yield from pairs
            else:
                nodes.extend((child, level - 1) for _, child in reversed(pairs))

    def _heap_links(self, address: int) -> Iterator[tuple[int, str, int]]:
        """Yield the links in a fractal heap, used by groups with many links and an order."""
        head = Cursor(self.read(address, 142))
        head.expect(b"FRHP")
        _, _, filters, flags = (head.number(size) for size in (1, 2, 2, 1))
        head.take(60)
        managed = head.number(8)
        others = [head.number(8) for _ in range(4)]
        width, first, largest, bits, _, root, rows = (
            head.number(size) for size in (2, 8, 8, 2, 2, 8, 2)
        )
        if filters or any(others) or first == 0:
            raise MalformedError("a group stores names in an unsupported way")
        offset = -(-bits // 8)
        blocks = [(root, first)]
        if rows:
            table = Cursor(self.read(root + 13 + offset, 8 * rows * width))
            sizes = [first << max(row - 1, 0) for row in range(min(rows, 64)) for _ in range(width)]
            blocks = [(table.number(8), size) for size in sizes]
        count = 0
        for block, size in blocks:
            if block == UNDEFINED:
                continue
            if size > largest:
                raise MalformedError("a group has more names than supported")
            body = Cursor(self.read(block, size))
            body.expect(b"FHDB")
            body.take(9 + offset + (4 if flags & 2 else 0))
            while body.left and body.data[body.position] == 1:
                yield read_link(body)
                count += 1
        if count != managed:
            raise MalformedError(f"a group has {count} names in place of {managed}")

    # -- chunks -----------------------------------------------------------------------------------

    def chunks(self, address: int, rank: int) -> Iterator[Chunk]:
        """Yield the chunks of a data set, whose total size is at most that of the file."""
        total = 0
        for key, leaf in self._leaves(address, 1, 8 + 8 * (rank + 1)):
            size, skipped = key.number(4), key.number(4)
            if skipped:
                raise MalformedError("a chunk leaves out filters")
            total += size
            if total > self.size:
                raise MalformedError("its chunks are larger than the file")
            yield Chunk(tuple(key.number(8) for _ in range(rank)), leaf, size)


def open_hdf5(stream: BinaryIO) -> Group:
    """Return the root group of an open file; its data sets can be read until it is closed.

    Raises:
        MalformedError: The file is not an HDF5 file, damaged, or has unsupported parts.
    """
    root = _File(stream).root()
    if not isinstance(root, Group):
        raise MalformedError("its root is not a group")
    return root
