"""Checks of the arrays that iterators get: their shapes and dtypes, and finite numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import LARGEST
from brainstorm.data_iterators.base_iterator import DataIterator
from brainstorm.utils import UNMASK, is_masked

#: Kinds of dtypes that are supported.
NUMBERS = "biuf"


def check_data(
    owner: DataIterator, named_data: Mapping[str, Any]
) -> tuple[dict[str, tuple[int, ...]], int, int]:
    """Return the feature shapes by name, and T and B; T is 1 if no array has a time axis.

    Raises:
        IteratorValidationError: There are no arrays, or one is not a numeric array
            (T, B, features...), or (B, features...) if in ``per_sequence``, or is empty, or differs
            from the first in T (or S, if in ``over_s``) or B, or is in memory and holds a number
            that is not finite.
    """
    if not named_data:
        raise owner._fail("expected at least one named array, e.g. default=x, got none")
    for name, array in named_data.items():
        _check_array(owner, name, array)
    known: dict[str, tuple[int, str]] = {}
    for name in sorted(named_data, key=owner.batch_axis, reverse=True):
        array, axes = named_data[name], owner.axes(name)
        found = {
            axis: known.setdefault(axis, (int(n), name))
            for axis, n in zip(axes, array.shape, strict=False)
        }
        wrong = [axis for axis, n in zip(axes, array.shape, strict=False) if n != found[axis][0]]
        if wrong:
            sizes = tuple(size for size, _ in found.values())
            expected = f"({', '.join(axes)}) = {sizes}" if len(axes) > 1 else f"B = {sizes[0]}"
            remedy = f" {remedy_for_steps('Minibatches', name)}"
            raise owner._fail(
                f"expected {expected} as {found[wrong[0]][1]!r} has, got shape "
                f"{tuple(array.shape)}. All arrays need the same number of time steps and of "
                f"sequences.{remedy * (wrong == ['T'])}",
                name,
            )
        if is_in_memory(array):
            check_finite(owner, name, array)
    shapes = {name: owner.feature_shape(name, array) for name, array in named_data.items()}
    return shapes, known.get("T", (1,))[0], known["B"][0]


def remedy_for_steps(iterator: str, name: str) -> str:
    """Return advice about data with another number of time steps, for a type of iterator."""
    return (
        f"Labels of CTC are filled up with zeros; inputs of a second length, S, are for "
        f"{iterator}(over_s=[{name!r}])."
    )


def is_in_memory(array: Any) -> bool:
    """Return whether an array can be checked without reading a file."""
    return isinstance(array, np.ndarray) and not isinstance(array, np.memmap)


def check_finite(
    owner: DataIterator,
    name: str,
    array: np.ndarray,
    numbers: np.ndarray | None = None,
    start: int = 0,
) -> None:
    """Raise an error for NaN, infinity, and numbers that become infinite in float32.

    One of them spreads to all parameters in a single update. The text counts sequences by
    `numbers` (B,), if given, and time steps from `start`.
    """
    if found := find_non_finite(owner, name, array, numbers, start):
        remedy = "Fill in what is missing, or leave the sequence out."
        raise owner._fail(f"{found}. {remedy}", name)


def find_non_finite(
    owner: DataIterator,
    name: str,
    array: np.ndarray,
    numbers: np.ndarray | None = None,
    start: int = 0,
) -> str | None:
    """Return a text about the first number that is not finite in float32, if there is one.

    For the arguments see `check_finite`.
    """
    if _is_finite(array):
        return None
    index, value = [], array
    while value.ndim:  # halve each axis: no other array of this size might fit
        low, high = 0, len(value)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _is_finite(value[low:middle]) else (low, middle)
        index.append(low)
        value = value[low]
    *steps, place = index[: owner.batch_axis(name) + 1]
    got = f"{value} (infinite in float32)" if np.isfinite(value) else str(value)
    where = "".join(f"time step {start + step} of " for step in steps)
    number = place if numbers is None else numbers[place]
    return f"expected finite numbers, got {got} in {where}sequence {number}"


def _is_finite(array: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(array.size == 0 or (array.min() >= -LARGEST and array.max() <= LARGEST))


def _check_array(owner: DataIterator, name: str, array: Any) -> None:
    is_alone = name in owner.per_sequence
    expected = f"expected a numeric array ({'' if is_alone else 'T, '}B, features...)"
    try:
        kind = np.dtype(array.dtype).kind
        shape = tuple(array.shape)
    except (AttributeError, TypeError):
        remedy = "Convert it with numpy.asarray."
        if isinstance(array, list) and len({getattr(x, "shape", ()) for x in array}) > 1:
            remedy = "Sequences of different lengths are for BucketedMinibatches."
        raise owner._fail(
            f"{expected}, got a {type(array).__name__}. {remedy} {owner._if_option(name)}", name
        ) from None
    if kind not in NUMBERS:
        remedy = "Number words: words, numbers = numpy.unique(array, return_inverse=True)."
        if kind not in "SU":
            remedy = f"Convert it to float32.{f' {remedy}' * (kind == 'O')}"
        raise owner._fail(f"{expected}, got dtype {array.dtype}. {remedy}", name)
    if is_masked(array):
        raise owner._fail(f"{expected}, got a masked array. {UNMASK}", name)
    if len(shape) < 2 + owner.batch_axis(name):
        remedy = {
            1: "Add a time axis and a feature axis: x[None, :, None].",
            2: f"Add an axis: x[None] for rows that are not sequences, x[:, None] for the steps of "
            f"one. If there is one row for each sequence, say so: per_sequence=[{name!r}].",
        }.get(len(shape), "")
        if (len(shape) == 2 and shape[0] == 1) or (len(shape) == 1 and is_alone):
            remedy = "Add a feature axis: x[..., None]."
        raise owner._fail(f"{expected}, got shape {shape}. {remedy}".rstrip(), name)
    if 0 in shape:
        raise owner._fail(f"{expected} that is not empty, got shape {shape}", name)
