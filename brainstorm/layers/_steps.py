"""The rows of sequences: views that stay the same objects from pass to pass."""

from __future__ import annotations

import weakref
from typing import Any

from brainstorm.utils import Array

__all__ = ["rows_by_step"]

_rows: dict[int, tuple[weakref.ref[Any], list[Array]]] = {}


def rows_by_step(*arrays: Array) -> list[tuple[Array, ...]]:
    """Return the rows of all arrays for each time step; as many as the shortest array has.

    They are the same objects from call to call: handlers recognize arrays that they have seen
    before, and do what they did with these.
    """
    return list(zip(*map(_rows_of, arrays), strict=False))


def _rows_of(array: Array) -> list[Array]:
    key, rows = id(array), _rows  # when Python ends, the name is gone before the arrays are
    entry = rows.get(key)
    if entry is None:
        reference = weakref.ref(array, lambda _: rows.pop(key, None))
        entry = rows[key] = reference, [array[t] for t in range(array.shape[0])]
    return entry[1]
