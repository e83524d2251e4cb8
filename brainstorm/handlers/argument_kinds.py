"""The kinds of arguments of operations, and functions for the conditions of their contracts."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from brainstorm.constraints import is_int
from brainstorm.optree.shapes import Shape, reduction


def _is_ints(value: Any, count: int) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == count and all(map(is_int, value))


def _is_margin(value: Any, axes: int) -> bool:
    return is_int(value) or (
        isinstance(value, (tuple, list))
        and len(value) == axes
        and all(is_int(item) or _is_ints(item, 2) for item in value)
    )


def _is_shape(value: Any) -> bool:
    sizes = value if isinstance(value, (tuple, list)) else (value,)
    return all(is_int(size) and size >= 0 for size in sizes)


#: kind -> (description, test). Scalars in memory and arrays are recognized by the handler.
KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "scalar": ("a number or an array of one element", lambda v: isinstance(v, numbers.Real)),
    "int": ("an integer", is_int),
    "bool": ("True or False", lambda v: isinstance(v, (bool, np.bool_))),
    "activation": ("the name of an activation function", lambda v: isinstance(v, str)),
    "axis": ("None or an integer", lambda v: v is None or is_int(v)),
    "pair": ("two integers", lambda v: _is_ints(v, 2)),
    "triple": ("three integers", lambda v: _is_ints(v, 3)),
    "margin": (
        "an integer, or for each of two axes one or two (before, after)",
        lambda v: _is_margin(v, 2),
    ),
    "margin3d": (
        "an integer, or for each of three axes one or two (before, after)",
        lambda v: _is_margin(v, 3),
    ),
    "shape": ("a size or a tuple of sizes", _is_shape),
    "stream": (
        "None or a stream from create_random_stream",
        lambda v: v is None or hasattr(v, "get_state"),
    ),
    "any": ("an array of any dtype", lambda v: True),
    "unread": ("an array of which only the shape matters", lambda v: True),
    "host": ("a NumPy array", lambda v: isinstance(v, np.ndarray)),
}


def kept(shape: Shape, axis: int | None) -> Shape:
    """Return `shape` with size 1 on `axis` (on every axis for `None`).

    >>> kept((2, 3, 4), 1)
    (2, 1, 4)
    """
    if axis is None:
        return (1,) * len(shape)
    return tuple(1 if i == axis % len(shape) else size for i, size in enumerate(shape))


def reduces(shape: Shape, axis: int | None, out: Shape) -> bool:
    """Return whether `out` is `shape` reduced over `axis`, with or without that axis kept."""
    if axis is None:
        return np.prod(out, dtype=int) == 1
    is_axis = -len(shape) <= axis < len(shape)
    return is_axis and out in [reduction(shape, axis, keepdims)[0] for keepdims in (True, False)]


#: One number for all sides; or for each axis one for both of its sides, or (before, after).
Margin: TypeAlias = int | Sequence[int | Sequence[int]]


def sides(margin: Margin, axes: int) -> tuple[tuple[int, int], ...]:
    """Return the padding (before, after) on each axis.

    >>> sides(1, 2), sides((2, (0, 1)), 2)
    (((1, 1), (1, 1)), ((2, 2), (0, 1)))
    """
    items = margin if isinstance(margin, Sequence) else (margin,) * axes
    pairs = (item if isinstance(item, Sequence) else (item, item) for item in items)
    return tuple((before, after) for before, after in pairs)


def around(margin: Margin, axis: int) -> int:
    """Return the padding on both sides of one axis.

    >>> around(2, 1), around((2, (0, 1)), 1)
    (4, 1)
    """
    return sum(sides(margin, axis + 1)[axis])
