"""The bases of data iterators: `DataIterator`, and `Wrapper`, which transforms another one's data.

A training can be continued in the middle of an epoch: `DataIterator.get_state` returns the state of
the random numbers, and `DataIterator.resume_epoch` skips the batches that were already given.

Every array is (T, B, features...): time steps, sequences of the batch, features. Images are
(T, B, rows, columns, channels); data without time steps use T = 1. Data with one row per sequence
(e.g. its class) may lack the time axis, if the iterator is told so (`per_sequence`).
"""

from __future__ import annotations

import copy
import inspect
import itertools
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from brainstorm.attributes import merged_names
from brainstorm.constraints import Constraint
from brainstorm.display import Node, ShownAsTree, Statistics, Tree, safe_repr
from brainstorm.errors import DescriptionError, IteratorValidationError, kind_of, shown, unknown
from brainstorm.randomness import Seedable
from brainstorm.utils import Array

Batch = dict[str, Array]

T = TypeVar("T")

#: What to do if data or arguments differ from those of the run that is continued.
_OTHERS = (
    "Give the data and arguments that the run began with; or, to go on with others, give stepper "
    "and network to a new trainer: Trainer(resumed.stepper).train(resumed.net, ...)."
)


class DataIterator(ShownAsTree, Seedable):
    """Base of all data iterators; a subclass overrides ``__call__``.

    If its batches depend on more than ``rnd``, it overrides `get_state` and `set_state` too. If it
    can skip batches without creating them, it overrides `resume_epoch`.

    Args:
        data_shapes: Data name to feature shape, i.e. without T and B.
        length: Number of batches in one epoch; `None` if unknown.

    Attributes:
        rnd: The only source of random numbers: its state at the start of an epoch determines it.
        identity: The names of the attributes that must be the same when a run is continued:
            numbers, texts, `None`, and arrays, which are compared by their checksums. Set by the
            class; those of the base classes are added.
        gives_sequences: Whether each batch says if it continues the sequences of the one before, as
            a `Chunk` does. Then T is time, and not the number of rows. Set by the class.
        per_sequence: Names of the data that are (B, features...).
        over_s: Names of the data that are (S, B, features...), with a length of their own.
        padding_masks: 'T' and 'S' to the name of the mask of the padding that this iterator adds.
    """

    __argument_error__ = IteratorValidationError
    identity: ClassVar[tuple[str, ...]] = ("length",)
    gives_sequences = False
    per_sequence: frozenset[str] = frozenset()
    over_s: frozenset[str] = frozenset()
    padding_masks: Mapping[str, str] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.identity = merged_names(cls, "identity")
        # An inherited `resume_epoch` may not fit a new `__call__`.
        if "__call__" in vars(cls) and "resume_epoch" not in vars(cls):
            cls.resume_epoch = DataIterator.resume_epoch  # type: ignore[method-assign]
        if "get_state" in vars(cls) and "set_state" not in vars(cls):
            raise IteratorValidationError(
                f"{cls.__name__}: expected also a method set_state, to restore what its get_state "
                f"saves."
            )

    def __init__(self, data_shapes: Mapping[str, tuple[int, ...]], length: int | None) -> None:
        super().__init__()
        self.data_shapes = dict(data_shapes)
        self._length = length

    @property
    def length(self) -> int | None:
        """Number of batches in one epoch; `None` if unknown."""
        return self._length

    @length.setter
    def length(self, length: int | None) -> None:
        self._length = length

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
        held = vars(self).get("data")
        arrays = held if isinstance(held, Mapping) else {}
        nodes = []
        for name, shape in self.data_shapes.items():
            cells = {"template": f"({', '.join(map(str, (*self.axes(name), *shape)))})"}
            array = arrays.get(name)
            if isinstance(array, np.ndarray):
                cells["array"] = f"{array.dtype}{list(array.shape)}"
                if values and not _is_mapped(array):
                    cells.update(Statistics.of(array).as_cells())
            nodes.append(Node(name, name, cells))
        return Tree(nodes, repr(self).partition(" of ")[0])

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
        batches = begin_epoch(self, handler)
        dropped = sum(1 for _ in itertools.islice(batches, given))
        self._check_given(given, dropped)
        return batches

    def _check_given(self, given: int, length: int | None) -> None:
        if length is not None and given > length:
            raise self._fail(
                f"expected an epoch of at least {given} batches to be continued, got {length}. "
                f"Give the data that the run began with."
            )

    def batch_axis(self, name: str) -> int:
        """Return the axis of the sequences in the data called `name`."""
        return len(self.axes(name)) - 1

    def axes(self, name: str) -> str:
        """Return the axes before the features of the data called `name`: 'TB', 'SB' or 'B'."""
        return "B" if name in self.per_sequence else "SB" if name in self.over_s else "TB"

    def feature_shape(self, name: str, array: Any) -> tuple[int, ...]:
        """Return the shape of the data called `name` without T and B."""
        return tuple(array.shape[self.batch_axis(name) + 1 :])

    def _set_axes(
        self,
        choices: Collection[str],
        per_sequence: str | Collection[str],
        over_s: str | Collection[str] = (),
    ) -> None:
        """Set the names of the data that have no T, after checking them."""
        for what, names in (("per_sequence", per_sequence), ("over_s", over_s)):
            chosen = frozenset([names] if isinstance(names, str) else names)
            for name in sorted(chosen - set(choices)):
                raise self._fail(f"{what}: {unknown('data name', name, choices)}")
            setattr(self, what, chosen)
        for name in sorted(self.over_s & self.per_sequence):
            raise self._fail("expected a name of over_s or of per_sequence, got one of both", name)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes that share each batch: here, of this one alone."""
        return [value]

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of the random numbers, and what identifies the iterator."""
        return {
            "type": type(self).__name__,
            "identity": {name: _plain(getattr(self, name)) for name in self.identity},
            "rnd": self.rnd.__getstate__(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to where `get_state` was called, in an iterator created in the same way.

        Raises:
            IteratorValidationError: The state belongs to an iterator of another kind or other data.
        """
        if state["type"] != type(self).__name__:
            raise self._fail(
                f"expected a {state['type']}, as in the run that is continued. {_OTHERS}"
            )
        saved = state["identity" if "identity" in state else "epoch"]  # its name in older files
        for name in self.identity:
            value, expected = _plain(getattr(self, name)), saved.get(name)
            if name in saved and value != expected:  # older files lack some names
                raise self._fail(
                    f"expected {name} = {expected!r}, as in the run that is continued, got "
                    f"{value!r}. {_OTHERS}"
                )
        self.rnd.__setstate__(state["rnd"])

    def _if_option(self, name: str) -> str:
        """Return advice for the case that data of some name should have been an option."""
        arguments = inspect.signature(type(self)).parameters.values()
        options = [argument.name for argument in arguments if argument.kind != argument.VAR_KEYWORD]
        return f"If it is an option: {unknown('option', name, options)}"

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

    Attributes:
        draws_per_sequence: Whether all chunks of long sequences get the same random numbers; set by
            the class.
    """

    draws_per_sequence = False
    _drawn_from: Any = None  # the state of the random numbers before those of these sequences

    def __init__(self, iter: DataIterator, settings: Mapping[str, Any]) -> None:
        if not isinstance(iter, DataIterator):
            raise self._fail(f"expected a DataIterator to wrap, got {kind_of(iter)}")
        self._check_names(settings, iter.data_shapes)
        super().__init__(iter.data_shapes, None)
        self.per_sequence, self.over_s = iter.per_sequence, iter.over_s
        self.iter = iter
        self.gives_sequences, self.padding_masks = iter.gives_sequences, iter.padding_masks
        self.settings = dict(settings)

    @property  # type: ignore[misc]
    def length(self) -> int | None:
        """That of the wrapped iterator."""
        return self.iter.length

    def tree(self, values: bool = False) -> Tree:
        own, below = super().tree(values), self.iter.tree(values)
        wrapped = Node("iter", "iter", note=below.title, children=below.nodes)
        return Tree([*own.nodes, wrapped], own.title)

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        return Wrapper.resume_epoch(self, 0, handler)  # even if a subclass overrides it

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches after the first `given` ones, which are not transformed."""
        return self._change(self.iter.resume_epoch(given, handler))

    def _change(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        before = drawn_from = self._drawn_from
        try:
            for batch in batches:
                with self.rnd.lock:  # another thread may change a batch of its own
                    if self.draws_per_sequence:
                        if drawn_from is not None and getattr(batch, "continues", False):
                            self.rnd.__setstate__(drawn_from)
                        self._drawn_from = drawn_from = self.rnd.__getstate__()
                    changed = self._changed(batch)
                yield changed
        finally:  # an epoch in which this one was done, for an evaluation, goes on
            if self._drawn_from is drawn_from:  # unless it has gone on already
                self._drawn_from = before

    def _changed(self, batch: Batch) -> Batch:
        changed, alone = copy.copy(batch), self.per_sequence  # it may be a subclass of dict
        seen = {name: array[None] if name in alone else array for name, array in batch.items()}
        with np.errstate(under="ignore"):  # as by default
            found = self.transform_batch(seen)
        self._check_names(found, {**self.data_shapes, **seen})
        for name, array in found.items():
            changed[name] = array[0] if name in alone else array
        return changed

    def transform_batch(self, batch: Batch) -> Batch:
        """Return the changed arrays of a batch, by name."""
        return {name: self.transform(name, batch[name]) for name in self.settings}

    def transform(self, name: str, array: Array) -> Array:
        """Return the changed `array` called `name`, without writing to it."""
        raise NotImplementedError(f"{type(self).__name__} does not define transform")

    def gather(self, value: T) -> list[T]:
        return self.iter.gather(value)

    def get_state(self) -> dict[str, Any]:
        drawn = {} if self._drawn_from is None else {"drawn_from": self._drawn_from}
        state = {**super().get_state(), **drawn, "iter": self.iter.get_state()}
        del state["identity"]["length"]  # the wrapped iterator's
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._drawn_from = state.get("drawn_from")
        self.iter.set_state(state["iter"])

    def _check_names(self, given: Mapping[str, Any], choices: Mapping[str, Any]) -> None:
        if not isinstance(given, Mapping):
            raise self._fail(
                f"expected a dictionary with data names as keys, got {given!r}. "
                f"For all names: {{{', '.join(f'{name!r}: ...' for name in choices)}}}"
            )
        for name in given:
            if name not in choices:
                raise self._fail(unknown("data name", name, choices))

    def _optional(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return further arguments, for some of the names in `settings`."""
        found = dict(given or {})
        self._check_names(found, self.settings)
        return found

    def _check_values(self, what: str, values: Mapping[str, Any], allowed: Constraint) -> None:
        for name, value in values.items():
            if value not in allowed:
                raise self._fail(f"{what}: expected {allowed.expected}, got {shown(value)}", name)


def begin_epoch(iterator: Any, handler: Any) -> Iterator[Batch]:
    """Return the batches of one epoch of an iterator, which may be the user's own.

    Raises:
        IteratorValidationError: It does not take a handler, yields nothing that can be iterated
            over, or (while iterating) something other than dictionaries, or other than chunks if it
            ``gives_sequences``.
    """
    method = f"{type(iterator).__name__}.__call__"
    place = f"{method}: expected it to yield"
    try:
        inspect.signature(iterator).bind(handler=handler)
    except TypeError as error:
        text = f"{method}: expected the signature __call__(self, handler=None): {error}."
        raise IteratorValidationError(text) from None

    def checked(batch: Any) -> Batch:
        if not isinstance(batch, Mapping):
            text = f"{place} dictionaries of arrays by data name, got a {type(batch).__name__}."
            raise IteratorValidationError(text)
        if getattr(iterator, "gives_sequences", False) and not hasattr(batch, "continues"):
            raise IteratorValidationError(
                f"{place} chunks, because it gives_sequences, got a {type(batch).__name__}. Yield "
                f"Chunk(data, continues=...), for a chunk that was changed chunk.continues."
            )
        return batch  # type: ignore[return-value]

    if not isinstance(batches := iterator(handler=handler), Iterable):
        raise IteratorValidationError(f"{place} batches, got {shown(batches)}. Is a yield missing?")
    return map(checked, batches)


def _plain(value: Any) -> Any:
    """Return a value as a run file holds it, with checksums in place of arrays."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (np.ndarray, list, tuple)):
        return zlib.crc32(np.ascontiguousarray(value).tobytes())
    return value


def _is_mapped(array: Any) -> bool:
    """Return whether an array, or what it is a view of, lies in a file."""
    return isinstance(array, np.memmap) or (
        isinstance(array, np.ndarray) and _is_mapped(array.base)
    )
