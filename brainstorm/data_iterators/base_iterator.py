"""The bases of data iterators: `DataIterator`, and `Wrapper`, which transforms another one's data.

A training can be continued in the middle of an epoch: `DataIterator.get_state` returns the state of
the random numbers, and `DataIterator.resume_epoch` skips the batches that were already given.

Every array is (T, B, features...): time steps, sequences of the batch, features. Images are
(T, B, rows, columns, channels); data without time steps use T = 1. Data with one row per sequence
(e.g. its class) may lack the time axis, if the iterator is told so (`per_sequence`).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from brainstorm.data_iterators.data_tree import data_tree
from brainstorm.display import ShownAsTree, Tree, safe_repr
from brainstorm.errors import DescriptionError, IteratorValidationError, unknown
from brainstorm.randomness import Seedable
from brainstorm.utils import Array

__all__ = [
    "DataIterator",
    "Wrapper",
    "check_data",
    "check_finite",
    "find_non_finite",
    "is_in_memory",
]

Batch = dict[str, Array]

#: Kinds of dtypes that are supported.
NUMBERS = "biuf"

T = TypeVar("T")


class DataIterator(ShownAsTree, Seedable):
    """Base of all data iterators; a subclass overrides ``__call__``.

    If its batches depend on more than ``rnd``, it overrides `get_state` and `set_state` too. If it
    can skip batches without creating them, it overrides `resume_epoch`.

    Args:
        data_shapes: Data name to feature shape, i.e. without T and B.
        length: Number of batches in one epoch; `None` if unknown.

    Attributes:
        rnd: The only source of random numbers: its state at the start of an epoch determines it.
        gives_sequences: Whether T is time, and not the number of rows; set by the class.
        per_sequence: Names of the data that are (B, features...).
    """

    __argument_error__ = IteratorValidationError
    gives_sequences = False
    per_sequence: frozenset[str] = frozenset()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # An inherited `resume_epoch` may not fit a new `__call__`.
        if "__call__" in vars(cls) and "resume_epoch" not in vars(cls):
            cls.resume_epoch = DataIterator.resume_epoch  # type: ignore[method-assign]

    def __init__(self, data_shapes: Mapping[str, tuple[int, ...]], length: int | None) -> None:
        super().__init__()
        self.data_shapes = dict(data_shapes)
        self.length = length

    @safe_repr
    def __repr__(self) -> str:
        count = "batches" if self.length is None else f"{self.length} batches"
        data = ", ".join(f"{name} {shape}" for name, shape in self.data_shapes.items())
        return f"{type(self).__name__}: {count} of {data}"

    def tree(self, values: bool = False) -> Tree:
        """Return the data with their shapes, and the iterator that is wrapped, as a tree.

        Args:
            values: Whether to look at the values of arrays in memory, too.
        """
        return data_tree(self, values)

    def __describe__(self) -> dict[str, Any]:
        raise DescriptionError(
            f"a {type(self).__name__} has no description: its data are not part of one. Name the "
            f"attribute in __undescribed__."
        )

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Args:
            handler: The handler that will receive the data. The iterators of this package ignore it
                and yield NumPy arrays, which the network copies into its memory.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches of an epoch except the first `given` ones.

        Random numbers for the whole epoch, drawn before its first batch, are drawn before this
        returns, so the state of later batches can then be set by `set_state`.

        Args:
            given: How many batches to skip. This implementation creates and drops them.
            handler: See ``__call__``.

        Raises:
            IteratorValidationError: The epoch has fewer batches.
        """
        batches = iter(self(handler))
        dropped = sum(1 for _ in itertools.islice(batches, given))
        if dropped < given:
            raise self._fail(
                f"expected an epoch of at least {given} batches to be continued, got {dropped}. "
                f"Give the data that the run began with."
            )
        return batches

    def batch_axis(self, name: str) -> int:
        """Return the axis of the sequences in the data called `name`."""
        return 0 if name in self.per_sequence else 1

    def feature_shape(self, name: str, array: Any) -> tuple[int, ...]:
        """Return the shape of the data called `name` without T and B."""
        return tuple(array.shape[self.batch_axis(name) + 1 :])

    def _set_per_sequence(self, names: str | Collection[str], choices: Collection[str]) -> None:
        """Set the names of the data that are (B, features...), after checking them."""
        self.per_sequence = self._chosen("per_sequence", names, choices)

    def _chosen(
        self, what: str, names: str | Collection[str], choices: Collection[str]
    ) -> frozenset[str]:
        """Return names of data as a set, after checking them."""
        chosen = frozenset([names] if isinstance(names, str) else names)
        for name in sorted(chosen - set(choices)):
            raise self._fail(f"{what}: {unknown('data name', name, choices)}")
        return chosen

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes that share each batch: here, of this one alone."""
        return [value]

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of the random numbers, and what identifies the iterator."""
        return {
            "type": type(self).__name__,
            "epoch": self._describe_epoch(),
            "rnd": self.rnd.__getstate__(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called, in an iterator created in the same way.

        Raises:
            IteratorValidationError: The state belongs to an iterator of another kind or other data.
        """
        if state["type"] != type(self).__name__:
            raise self._fail(f"expected a {state['type']}, as in the run that is continued")
        for name, value in self._describe_epoch().items():
            expected = state["epoch"].get(name)
            if value != expected:
                raise self._fail(
                    f"expected {name} = {expected!r}, as in the run that is continued, got "
                    f"{value!r}. Give the data and arguments that the run began with."
                )
        self.rnd.__setstate__(state["rnd"])

    def _describe_epoch(self) -> dict[str, Any]:
        """Return the values that define an epoch, numbers and texts by name."""
        return {"length": self.length}

    def _check_int(self, what: str, value: Any, low: int = 1, name: str | None = None) -> None:
        if not isinstance(value, (int, np.integer)) or value < low:
            raise self._fail(f"expected an int {what} >= {low}, got {value!r}", name)

    def _fail(self, what: str, name: str | None = None) -> IteratorValidationError:
        where = type(self).__name__ + ("" if name is None else f", data {name!r}")
        return IteratorValidationError(f"{where}: {what}")


class Wrapper(DataIterator):
    """Base class of iterators that change some of the data of another one.

    The wrapped iterator's arrays are never written to: a subclass returns new ones from
    `transform`, for each name in `settings`. It gets all data as (T, B, features...); data of
    whole sequences have T = 1.

    Args:
        iter: The iterator to wrap.
        settings: Data name to an argument for `transform`.

    Raises:
        IteratorValidationError: `iter` is not an iterator, or has no data of such a name.
    """

    def __init__(self, iter: DataIterator, settings: Mapping[str, Any]) -> None:
        if not isinstance(iter, DataIterator):
            raise self._fail(f"expected a DataIterator to wrap, got {type(iter).__name__}")
        self._check_names(settings, iter.data_shapes)
        super().__init__(iter.data_shapes, iter.length)
        self.per_sequence = iter.per_sequence
        self.iter = iter
        self.gives_sequences = iter.gives_sequences
        self.settings = dict(settings)

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        return Wrapper.resume_epoch(self, 0, handler)  # even if a subclass overrides it

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches after the first `given` ones, which are not transformed."""
        return self._change(self.iter.resume_epoch(given, handler))

    def _change(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            changed = copy.copy(batch)  # it may be a subclass of dict
            alone = self.per_sequence
            seen = {name: array[None] if name in alone else array for name, array in batch.items()}
            for name, array in self.transform_batch(seen).items():
                changed[name] = array[0] if name in alone else array
            yield changed

    def transform_batch(self, batch: Batch) -> Batch:
        """Return the changed arrays of a batch, by name."""
        return {name: self.transform(name, batch[name]) for name in self.settings}

    def transform(self, name: str, array: Array) -> Array:
        """Return the changed `array` called `name`, without writing to it."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform")

    def gather(self, value: T) -> list[T]:
        return self.iter.gather(value)

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "iter": self.iter.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.iter.set_state(state["iter"])

    def _describe_epoch(self) -> dict[str, Any]:
        return {}  # the wrapped iterator has it

    def _check_names(self, given: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise self._fail(
                f"expected a dictionary with data names as keys, got {given!r}. "
                f"For all names: {{{', '.join(f'{name!r}: ...' for name in choices)}}}"
            )
        for name in given:
            if name not in choices:
                raise self._fail(unknown("data name", name, choices))

    def _check_number(
        self,
        name: str | None,
        what: str,
        value: Any,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> None:
        if (
            not isinstance(value, (int, float, np.number))
            or isinstance(value, bool)
            or not low <= value <= high
            or math.isinf(value)
        ):
            limits = f" from {low} to {high}" if high < math.inf else f" >= {low}"
            limits = "" if low == -math.inf else limits
            raise self._fail(f"expected a number{limits} as {what}, got {value!r}", name)

    def _check_images(self) -> None:
        for name in self.settings:
            shape = self.data_shapes[name]
            if len(shape) != 3:
                raise self._fail(
                    f"expected images of shape (T, B, rows, columns, channels), got "
                    f"{_format_data_shape(shape)}",
                    name,
                )


#: Larger numbers become infinite where a handler computes in float32.
LARGEST = np.float64(np.finfo(np.float32).max)


def check_data(owner: DataIterator, named_data: Mapping[str, Any]) -> tuple[int, int]:
    """Return the (T, B) of all arrays; T is 1 if none has a time axis.

    Raises:
        IteratorValidationError: There are no arrays, or one is not a numeric array
            (T, B, features...), or (B, features...) if in ``per_sequence``, or is empty, or differs
            from the first in T or B, or is in memory and holds a number that is not finite.
    """
    if not named_data:
        raise owner._fail("expected at least one named array, e.g. default=x, got none")
    for name, array in named_data.items():
        _check_array(owner, name, array)
    first = max(named_data, key=owner.batch_axis)  # one with a time axis, if possible
    axis = owner.batch_axis(first)
    sizes = tuple(map(int, named_data[first].shape[: axis + 1]))
    for name, array in named_data.items():
        shape = tuple(array.shape)
        if shape[: owner.batch_axis(name) + 1] != sizes[axis - owner.batch_axis(name) :]:
            expected = f"(T, B) = {sizes}" if owner.batch_axis(name) else f"B = {sizes[-1]}"
            raise owner._fail(
                f"expected {expected} as {first!r} has, got shape {shape}. All arrays need the "
                f"same number of time steps and of sequences.",
                name,
            )
        if is_in_memory(array):
            check_finite(owner, name, array)
    return sizes[0] if axis else 1, sizes[-1]


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

    One of them spreads to all parameters in a single update.

    Args:
        owner: The iterator.
        name: Name of the data.
        array: Numbers (T, B, features...), or (B, features...) if in ``per_sequence``.
        numbers: The numbers (B,) of the sequences; `None`: 0, 1, ...
        start: The number of the first time step.

    Raises:
        IteratorValidationError: There is such a number.
    """
    is_alone = name in owner.per_sequence
    if found := find_non_finite(array[None] if is_alone else array):
        value, step, place = found
        number = place if numbers is None else numbers[place]
        where = f"sequence {number}"
        where = where if is_alone else f"time step {start + step} of {where}"
        raise owner._fail(
            f"expected finite numbers, got {value} in {where}. Fill in what is missing, or leave "
            f"the sequence out.",
            name,
        )


def find_non_finite(array: np.ndarray) -> tuple[str, int, int] | None:
    """Return the first number that is not finite in float32, its time step and its sequence.

    Allocates a second array of that size only if there is such a number.
    """
    with np.errstate(invalid="ignore"):
        if array.size == 0 or (array.min() >= -LARGEST and array.max() <= LARGEST):
            return None
        wrong = ~(np.abs(array) <= LARGEST)
    step, place = np.argwhere(wrong)[0][:2].tolist()
    value = array[step, place][wrong[step, place]][0]
    return f"{value} (infinite in float32)" if np.isfinite(value) else str(value), step, place


def _check_array(owner: DataIterator, name: str, array: Any) -> None:
    is_alone = name in owner.per_sequence
    expected = f"expected a numeric array ({'' if is_alone else 'T, '}B, features...)"
    try:
        kind = np.dtype(array.dtype).kind
        shape = tuple(array.shape)
    except (AttributeError, TypeError):
        raise owner._fail(
            f"{expected}, got a {type(array).__name__}. Convert it with numpy.asarray.", name
        ) from None
    if kind not in NUMBERS:
        remedy = "Convert it to float32."
        if kind in "SU":
            remedy = "Number the words: words, numbers = numpy.unique(array, return_inverse=True)."
        raise owner._fail(f"{expected}, got dtype {array.dtype}. {remedy}", name)
    if isinstance(array, np.ma.MaskedArray):
        raise owner._fail(
            f"{expected}, got a masked array. Fill it, x.filled(0), and give the mask as data.",
            name,
        )
    if len(shape) < 2 + owner.batch_axis(name):
        remedy = {
            1: "Add a time axis and a feature axis: x[None, :, None].",
            2: f"Add a time axis for rows that are not sequences: x[None]. If there is one row for "
            f"each sequence, say so: per_sequence=[{name!r}].",
        }.get(len(shape), "")
        if (len(shape) == 2 and shape[0] == 1) or (len(shape) == 1 and is_alone):
            remedy = "Add a feature axis: x[..., None]."
        raise owner._fail(f"{expected}, got shape {shape}. {remedy}".rstrip(), name)
    if 0 in shape:
        raise owner._fail(f"{expected} that is not empty, got shape {shape}", name)


def _format_data_shape(features: tuple[int, ...]) -> str:
    return f"(T, B, {', '.join(map(str, features))})"
