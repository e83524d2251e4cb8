"""Small pure helpers: names, dotted paths, nested containers, and shapes of arrays."""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import os
import re
import sys
import time
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import numpy as np

from brainstorm._version import __version__
from brainstorm.errors import (
    InitializationError,
    IteratorValidationError,
    LayerValidationError,
    NetworkValidationError,
    StructureValidationError,
    UnknownPathError,
    ValidationError,
    unknown,
)

__all__ = [
    "NAME_BLACKLIST",
    "PYTHON_IDENTIFIER",
    "Array",
    "Arrays",
    "InitializationError",
    "IteratorValidationError",
    "LayerValidationError",
    "Named",
    "NetworkValidationError",
    "StructureValidationError",
    "ValidationError",
    "as_array",
    "check_nesting",
    "convert_to_nested_indices",
    "copy_containers",
    "flatten",
    "flatten_all_but_last",
    "flatten_features",
    "flatten_items",
    "flatten_keys",
    "flatten_time",
    "flatten_time_and_features",
    "format_bytes",
    "get_brainstorm_info",
    "get_by_path",
    "get_inheritors",
    "get_normalized_path",
    "is_masked",
    "is_number",
    "is_valid_layer_name",
    "is_whole",
    "product",
    "progress_bar",
    "silence",
    "sort_by_index_key",
    "warn_once",
]

#: An array of the type of the handler in use.
Array: TypeAlias = Any
Arrays: TypeAlias = Sequence[Array]

T = TypeVar("T")
V = TypeVar("V")

PYTHON_IDENTIFIER = re.compile(r"^[_a-zA-Z][_a-zA-Z0-9]*\Z")

#: Words with a special meaning in references; not allowed as names of layers.
NAME_BLACKLIST = {"default", "fallback"}


def product(factors: Iterable[int]) -> int:
    """Return the product of the factors (1 for none)."""
    return math.prod(factors)


def is_number(value: Any) -> bool:
    """Return whether a value is a real number that a float can represent, and not a bool."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: Any, least: int = 1) -> bool:
    """Return whether a value is a whole number (of any type) of at least `least`."""
    return is_number(value) and value >= least and value % 1 == 0


def is_valid_layer_name(name: str) -> bool:
    """Return whether `name` is an identifier that is allowed as the name of a layer."""
    return bool(PYTHON_IDENTIFIER.match(name)) and name not in NAME_BLACKLIST


def get_inheritors(cls: type[T]) -> set[type[T]]:
    """Return all direct and indirect subclasses of `cls`."""
    found = set(cls.__subclasses__())
    return found.union(*(get_inheritors(subclass) for subclass in found))


# -- nested containers and paths ----------------------------------------------------------------


def flatten(nested: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of nested lists and tuples from left to right."""
    for item in nested:
        if isinstance(item, (list, tuple)):
            yield from flatten(item)
        else:
            yield item


class Named(dict[str, V]):
    """A dictionary that lists its names if another one is looked up."""

    def __missing__(self, name: str) -> V:
        raise UnknownPathError(unknown("name", name, self))


def convert_to_nested_indices(
    nested: Iterable[Any], start_idx: list[int] | None = None
) -> Iterator[Any]:
    """Yield the same nesting with every item replaced by its running index."""
    counter = [0] if start_idx is None else start_idx
    for item in nested:
        if isinstance(item, (list, tuple)):
            yield list(convert_to_nested_indices(item, counter))
        else:
            yield counter[0]
            counter[0] += 1


def copy_containers(value: Any) -> Any:
    """Return `value` with copies of its dicts, lists and tuples, and with Python numbers."""
    if isinstance(value, Mapping):
        return {key: copy_containers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        copied = [copy_containers(item) for item in value]
        return tuple(copied) if isinstance(value, tuple) else copied
    return value.item() if isinstance(value, np.generic) else value


def sort_by_index_key(item: tuple[str, Any]) -> int:
    """Return the sort key of a ``(name, node)`` pair of a layout: the node's ``@index``, or -1."""
    node = item[1]
    return node.get("@index", -1) if isinstance(node, Mapping) else -1


#: Lists and dicts in lists and dicts, in descriptions and states.
MOST_NESTED = 64

#: Digits of the longest integer in a description: those of 64 bits without a sign.
MOST_DIGITS = 20

#: Maximum number of lists and dicts in a description or state.
MOST_CONTAINERS = 1_000_000


def check_nesting(name: str, value: Any) -> None:
    """Check that nested dicts and lists do not contain themselves, and are not too large.

    Raises:
        ValidationError: They are nested too deeply, or there are too many of them.
    """
    level, containers = [value], 0
    for _ in range(MOST_NESTED):
        level = [
            item
            for item in level
            if not isinstance(item, (int, float, str)) and isinstance(item, (Mapping, list, tuple))
        ]
        containers += len(level)
        if not level or containers > MOST_CONTAINERS:
            break
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, Mapping) else container)
        ]
    else:
        raise ValidationError(
            f"{name}: expected at most {MOST_NESTED} levels of lists and dicts, got more. Does one "
            f"contain itself?"
        )
    if containers > MOST_CONTAINERS:
        raise ValidationError(f"{name}: expected at most {MOST_CONTAINERS} lists and dicts.")


def get_by_path(mapping: Mapping[str, Any], path: str) -> Any:
    """Follow a dotted path into nested mappings.

    Raises:
        UnknownPathError: A part does not exist; the message lists the names that do.
    """
    current: Any = mapping
    for position, part in enumerate(parts := path.split(".")):
        if not isinstance(current, Mapping) or part not in current:
            where = ".".join(parts[:position]) or "the top"
            choices = current.keys() if isinstance(current, Mapping) else ()
            raise UnknownPathError(f"path {path!r}, at {where}: {unknown('name', part, choices)}")
        current = current[part]
    return current


def get_normalized_path(*args: str) -> str:
    """Join dotted paths; a part that starts with ``..`` steps out of the one before it."""
    path: list[str] = []
    for arg in args:
        rest = arg
        if rest.startswith(".."):
            path = path[:-1]
            rest = rest[2:]
        path.extend(rest.split("."))
    return ".".join(path)


def flatten_items(nested: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, leaf) of all leaves of nested mappings; paths begin with `start`."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from flatten_items(value, f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def flatten_keys(nested: Mapping[str, Any]) -> list[str]:
    """Return the dotted paths of all leaves of nested mappings."""
    return [path for path, _ in flatten_items(nested)]


# -- arrays ---------------------------------------------------------------------------------------


#: What to do with a masked array, whose mask NumPy would drop.
UNMASK = "Fill it, x.filled(0), and give the mask as data."


def is_masked(value: Any) -> bool:
    """Return whether something is a masked array.

    Without an import of `numpy.ma`, which NumPy does when it is first named: a process that is
    forked while another thread imports a module would wait for that module for ever.
    """
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def as_array(value: Any, what: str) -> np.ndarray:
    """Return an array or tensor of another library as a NumPy array.

    Args:
        value: Anything that `numpy.asarray` accepts.
        what: What it is, for the message.

    Raises:
        ValidationError: NumPy cannot convert it, or it is a masked array.
    """
    if is_masked(value):
        raise ValidationError(f"{what}: expected a plain array, got a masked one. {UNMASK}")
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        remedy = "Pass x.detach().cpu().float().numpy() of a tensor x of PyTorch."
        if "inhomogeneous" in str(error):
            remedy = "Its items need equal shapes; BucketedMinibatches pads sequences."
        raise ValidationError(
            f"{what}: expected data for numpy.asarray, got a {type(value).__name__} ({error}). "
            f"{remedy}"
        ) from error


# -- shapes: these use only `.shape` and `.reshape`, so they work on every handler's arrays ------


def _at_least(array: Array, dims: int, what: str) -> Sequence[int]:
    if len(array.shape) < dims:
        raise ValidationError(f"{what} needs at least {dims} dimensions, got shape {array.shape}")
    return array.shape


def flatten_time(array: Array) -> Array:
    """Return the view (T*B, features...) of an array (T, B, features...)."""
    shape = _at_least(array, 3, "flatten_time")
    return array.reshape((shape[0] * shape[1], *shape[2:]))


def flatten_time_and_features(array: Array) -> Array:
    """Return the view (T*B, n) of an array (T, B, features...)."""
    shape = _at_least(array, 3, "flatten_time_and_features")
    return array.reshape((shape[0] * shape[1], product(shape[2:])))


def flatten_features(array: Array, start_idx: int = 2) -> Array:
    """Return the view with all dimensions from `start_idx` on merged into one."""
    shape = array.shape
    return array.reshape((*shape[:start_idx], product(shape[start_idx:])))


def flatten_all_but_last(array: Array) -> Array:
    """Return the view (everything else, last dimension)."""
    shape = array.shape
    return array.reshape((product(shape[:-1]), shape[-1]))


# -- texts ---------------------------------------------------------------------------------------


def format_bytes(number: int) -> str:
    """Return a number of bytes in the unit that keeps it short, e.g. ``'1.5 MiB'``."""
    if number < 1024:
        return f"{number} B"
    value = min(number, 10**300) / 1024  # more is no float
    for unit in ("KiB", "MiB"):
        if value < 1024:
            return f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB" if value < 1e9 else f"{value:.3g} GiB"


_warnings_given: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()


def warn_once(about: Any, text: str) -> None:
    """Log a warning about an object, unless it was logged for this object before."""
    given = _warnings_given.setdefault(about, set())
    if text not in given:
        given.add(text)
        logging.getLogger("brainstorm").warning(text)


def get_brainstorm_info() -> bytes:
    """Return the line about the version that wrote a file."""
    return f"Created with brainstorm {__version__}".encode()


def progress_bar(
    maximum: float,
    prefix: str = "[",
    bar: str = "====1====2====3====4====5====6====7====8====9====0",
    suffix: str = "] Took: {0}\n",
) -> Generator[str, float, None]:
    """Yield the pieces of a progress bar: ``next()`` the prefix, ``send(x)`` what `x` adds to it.

    Args:
        maximum: The `x` at which the bar is full; the generator ends after that piece.
        prefix: The first piece.
        bar: The full bar.
        suffix: Follows the last piece; ``{0}`` is replaced by the time since the first one.
    """
    start = time.monotonic()
    shown, piece = 0, prefix
    while shown < len(bar):
        x = yield piece
        reached = max(shown, min(len(bar), int(len(bar) * (x / maximum))))
        shown, piece = reached, bar[shown:reached]
    yield piece + suffix.format(timedelta(seconds=round(time.monotonic() - start)))


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppress the standard output inside the ``with`` block."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
