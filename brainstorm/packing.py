"""Nested state and descriptions as JSON, beside which their arrays and long lists are kept."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import TrainingError, ValidationError
from brainstorm.hdf5 import MalformedError
from brainstorm.utils import check_nesting

__all__ = ["Take", "pack", "pack_description", "unpack"]

#: Lists of more numbers of one type, also as rows of rows, are written as arrays.
LONG_LIST = 64

ARRAY, LIST, TUPLE = "@array", "@list", "@tuple"
#: Keys that nothing else may have.
MARKS = {ARRAY, LIST, TUPLE}

#: Returns an array by its name, which must be used only once.
Take: TypeAlias = Callable[[Any], np.ndarray]


def pack(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as JSON-able data; arrays and long lists of numbers go to `arrays`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    is_array = isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc"
    if is_array and value.dtype.char not in "gG":
        return {ARRAY: _put(np.asarray(value), path, arrays)}
    if isinstance(value, Mapping) and all(
        isinstance(key, str) and key not in MARKS for key in value
    ):
        start = f"{path}." if path else ""
        return {key: pack(item, f"{start}{key}", arrays) for key, item in value.items()}
    if (array := _long_list(value)) is not None:
        return {LIST: _put(array, path, arrays)}
    if isinstance(value, (list, tuple)):
        items = [pack(item, f"{path}[{i}]", arrays) for i, item in enumerate(value)]
        return {TUPLE: items} if isinstance(value, tuple) else items
    raise TrainingError(
        f"run file, {path}: expected numbers, texts, None, NumPy arrays of numbers, or lists, "
        f"tuples and dicts (with texts as keys) of these, got {value!r}."
    )


def pack_description(description: Any, name: str, arrays: dict[str, np.ndarray]) -> bytes:
    """Return a description as JSON; its long lists of numbers go to `arrays`."""
    packed = _without_long_lists(description, name, arrays)
    check_nesting(name, packed)
    return json.dumps(packed, allow_nan=False).encode()


def _without_long_lists(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    if (array := _long_list(value)) is not None and np.isfinite(array).all():
        return {LIST: _put(array, path, arrays)}
    if isinstance(value, (list, tuple)):
        return [_without_long_lists(x, f"{path}[{i}]", arrays) for i, x in enumerate(value)]
    if isinstance(value, Mapping):
        if not MARKS.isdisjoint(value):
            raise ValidationError(f"{path}: expected no key of {sorted(MARKS)}. Rename it.")
        return {k: _without_long_lists(x, f"{path}.{k}", arrays) for k, x in value.items()}
    return value


def _long_list(value: Any) -> np.ndarray | None:
    """Return the array of a long list of numbers of one type, or of lists of such lists."""
    if type(value) is not list:
        return None
    shape, items, seen = [len(value)], value, {id(value)}
    while set(map(type, items)) == {list} and len(set(map(len, items))) == 1:
        if id(items[0]) in seen:  # it contains itself
            return None
        seen.add(id(items[0]))
        shape.append(len(items[0]))
        items = list(itertools.chain.from_iterable(items))
    kinds = set(map(type, items))
    if len(items) <= LONG_LIST or kinds not in ({bool}, {int}, {float}):
        return None
    array = np.array(items)
    exact = {bool: np.bool_, int: np.int64, float: np.float64}[kinds.pop()]
    return array.reshape(shape) if array.dtype == exact else None


def _put(array: np.ndarray, path: str, arrays: dict[str, np.ndarray]) -> str:
    name = path.replace("/", "|").replace("\0", "|")  # not allowed in names
    while name in arrays or name in ("", "."):  # names may contain dots; "." is the group
        name += "'"
    arrays[name] = array
    return name


def unpack(value: Any, take: Take, is_description: bool = False) -> Any:
    """Return what was packed; descriptions hold finite numbers only."""
    again = functools.partial(unpack, take=take, is_description=is_description)
    if isinstance(value, list):
        return list(map(again, value))
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        return take(value[ARRAY])
    if LIST in value:
        array = take(value[LIST])
        if is_description and not np.isfinite(array).all():
            raise MalformedError(f"arrays/{value[LIST]}: expected finite numbers")
        return array.tolist()
    if TUPLE in value:
        return tuple(map(again, value[TUPLE]))
    return {key: again(item) for key, item in value.items()}
