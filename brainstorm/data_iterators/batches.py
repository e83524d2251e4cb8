"""Iterators that hold data: all at once, in batches, or one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import h5py
import numpy as np

from brainstorm.constraints import Constraint, integer, is_among, is_flag
from brainstorm.data_iterators.base_iterator import Batch, DataIterator
from brainstorm.data_iterators.data_checks import check_data, check_finite, is_in_memory
from brainstorm.data_iterators.watched_files import WatchedFile
from brainstorm.errors import shown, unknown
from brainstorm.utils import Array


class Shared(dict[str, Any]):
    """Data by name, which copies of an iterator share: they may be on disk, and are not changed."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared:
        return Shared(self)


class Undivided(DataIterator):
    """All data in one batch, the same one in every epoch.

    Args:
        per_sequence: Names of the data that are (B, features...), one row for each sequence.
        **named_data: Arrays (T, B, features...) with the same T and B. They are not copied, and
            are yielded as read-only; HDF5 data sets are read once.

    Attributes:
        data: The batch.
        total_size: Number of elements of all arrays.

    Raises:
        IteratorValidationError: The arrays are not valid or do not fit together, or a number is not
            finite.
    """

    identity = ("total_size",)

    def __init__(self, *, per_sequence: Collection[str] = (), **named_data: Array) -> None:
        self._set_axes(named_data, per_sequence)
        shapes, _, _ = check_data(self, named_data)
        super().__init__(shapes, 1)
        self.data = Shared({name: _read_only(array) for name, array in named_data.items()})
        for name, array in self.data.items():
            if not is_in_memory(named_data[name]):
                check_finite(self, name, array)
        self.total_size = sum(array.size for array in self.data.values())

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        yield self.data


class PlannedBatches(DataIterator):
    """Base class of iterators over numbered sequences that draw an epoch before its first batch.

    A subclass creates the batches in `_get_batch`, and may order them in `_draw_epoch`. For the
    arguments see `Minibatches`.

    Attributes:
        weights: The probability of each sequence in a draw, if weights were given.
        own: Maps the indices of a batch's sequences to those to create here, perhaps none. Values
            that depend on the whole batch (e.g. its number of time steps) are not affected.
    """

    __constraints__: Any = {
        "batch_size": integer(1),
        "shuffle": Constraint(
            "True, False, 'batches' or, at first, weights",
            lambda v: is_flag(v) or is_among(v, ("batches",)),
            convert=lambda v: v if isinstance(v, str) else bool(v),
        ),
    }

    identity: ClassVar[tuple[str, ...]] = (
        "sample_size", "batch_size", "shuffle", "drop_last", "weights",
    )  # fmt: skip

    own: Callable[[np.ndarray], np.ndarray]

    def __init__(
        self,
        data_shapes: Mapping[str, tuple[int, ...]],
        sample_size: int,
        batch_size: int,
        shuffle: bool | str | Sequence[float],
        drop_last: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.weights: np.ndarray | None = None
        if isinstance(shuffle, (list, tuple, np.ndarray)):
            self.weights, shuffle = self._check_weights(shuffle, sample_size), True
        self.shuffle = shuffle
        super().__init__(data_shapes, None)
        self.own = np.asarray
        self.sample_size = sample_size
        self.drop_last = drop_last
        if not self.length:
            raise self._fail(
                f"expected at least {batch_size} sequences for one batch, got {sample_size}. Take "
                f"a smaller batch_size, or drop_last=False."
            )

    @property  # type: ignore[misc]
    def length(self) -> int:
        """Number of batches in one epoch."""
        whole, left = divmod(self.sample_size, self.batch_size)
        return whole + (left > 0 and not self.drop_last)

    def _check_weights(self, weights: Any, count: int) -> np.ndarray:
        """Return weights as probabilities."""
        values = np.asarray(weights)
        fits = values.shape == (count,) and values.dtype.kind in "biuf"
        if not fits or not np.isfinite(values).all() or (values < 0).any() or not values.any():
            raise self._fail(
                f"shuffle: expected {count} weights >= 0 (one for each sequence), not all 0, got "
                f"{shown(weights)}"
            )
        shares = values / values.max()  # so that the sum cannot overflow
        return shares / shares.sum(dtype=float)

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        """Return the batches of one epoch; their arrays are new."""
        return PlannedBatches.resume_epoch(self, 0, handler)  # even if a subclass overrides it

    def resume_epoch(self, given: int, handler: Any = None) -> Iterator[Batch]:
        """Return the batches after the first `given` ones, whose data are not read."""
        self._check_given(given, self.length)
        epoch = self._draw_epoch()
        if self.drop_last:
            epoch = [indices for indices in epoch if len(indices) == self.batch_size]
        return self._make_batches(epoch, given)

    def _make_batches(self, epoch: list[np.ndarray], given: int) -> Iterator[Batch]:
        """Return the batches of these sequences except the first `given` ones."""
        return map(self._get_batch, epoch[given:])

    def _get_batch(self, indices: np.ndarray) -> Batch:
        """Return the batch of these sequences."""
        raise NotImplementedError(f"{type(self).__name__} does not define _get_batch")

    def _draw_epoch(self) -> list[np.ndarray]:
        """Draw a new epoch; return for each batch the indices of its sequences."""
        batches = self._cut(self._draw_order(), self.batch_size)
        return self._shuffle(batches) if self.shuffle == "batches" else batches

    def _draw_order(self) -> np.ndarray:
        """Return the sequences of a new epoch in their order, as many as there are."""
        if self.weights is not None:
            return self.rnd.choice(self.sample_size, self.sample_size, p=self.weights)
        order = np.arange(self.sample_size)
        if self.shuffle is True:
            self.rnd.shuffle(order)
        return order

    @staticmethod
    def _cut(whole: Any, size: int) -> list[Any]:
        """Return slices of an array or list; the last one may be shorter."""
        return [whole[start : start + size] for start in range(0, len(whole), size)]

    def _shuffle(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        return [parts[i] for i in self.rnd.permutation(len(parts))]


class Minibatches(PlannedBatches):
    """Batches of sequences; the last one is smaller if the sequences do not divide evenly.

    Data sets of h5py and memory-mapped arrays are read batch by batch; see `Hdf5Minibatches` for a
    faster way to shuffle a file that is larger than memory.

    Args:
        batch_size: Number of sequences in a batch.
        shuffle: True draws the sequences in a new order in every epoch; ``'batches'`` keeps
            neighbouring sequences together and shuffles only the order of the batches (faster for
            data on disk); False keeps the order. An array of B weights draws B sequences in every
            epoch, each with a probability in proportion to its weight, so some occur repeatedly.
        cut_according_to: Cuts each batch to the time steps of its longest sequence. The name of a
            mask (T, B, 1), in which a sequence ends at its last non-zero; or a list of B lengths;
            or `None` for no cut. The default has no effect without data called ``mask``.
        per_sequence: Names of the data that are (B, features...), one row for each sequence.
        over_s: Names of the data that are (S, B, features...), with a second length S.
        drop_last: Whether a smaller last batch is left out.
        **named_data: Arrays (T, B, features...) with the same T and B.

    Attributes:
        sample_size: Number of sequences.
        time_size: Number of time steps, before any cut.
        seq_lens: Their lengths; `None` if nothing is cut.

    Raises:
        IteratorValidationError: The arrays or arguments are not valid or do not fit together, or a
            number is not finite (found while iterating, for data on disk).
        FileFormatError: While iterating, if a mapped file was changed.
    """

    identity: ClassVar[tuple[str, ...]] = ("time_size", "seq_lens")

    def __init__(
        self,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        cut_according_to: str | Sequence[int] | None = "mask",
        *,
        per_sequence: Collection[str] = (),
        over_s: Collection[str] = (),
        drop_last: bool = False,
        **named_data: Array,
    ) -> None:
        self._set_axes(named_data, per_sequence, over_s)
        shapes, self.time_size, sample_size = check_data(self, named_data)
        super().__init__(shapes, sample_size, batch_size, shuffle, drop_last)
        self._on_disk = [name for name, array in named_data.items() if not is_in_memory(array)]
        mapped = [a for a in named_data.values() if isinstance(a, np.memmap) and a.mode == "r"]
        # Reading beyond the end of a file that was shortened would crash the interpreter. A removed
        # or replaced file stays as long as it is mapped.
        names = {array.filename for array in mapped if array.filename}
        self._files = [WatchedFile(name, refused=("changed",)) for name in names]
        # asarray turns memory-mapped arrays into plain ones, without reading them
        self.data = Shared(
            {
                name: np.asarray(array) if isinstance(array, np.ndarray) else array
                for name, array in named_data.items()
            }
        )
        self.seq_lens = self._get_seq_lens(cut_according_to)

    def _get_batch(self, indices: np.ndarray) -> Batch:
        return self._get_part(indices, slice(0, self._count_steps(indices)))

    def _get_part(self, indices: np.ndarray, steps: slice) -> Batch:
        indices = self.own(indices)
        for file in self._files:
            file.check()
        batch = {}
        for name in self.data:
            own = slice(None) if name in self.over_s else steps
            batch[name] = self._take(name, (own,)[: self.batch_axis(name)], indices)
        for name in self._on_disk:  # the others were checked before
            check_finite(self, name, batch[name], indices, steps.start)
        return batch

    def _take(self, name: str, steps: tuple[slice, ...], indices: np.ndarray) -> np.ndarray:
        try:
            return take(self.data[name], steps, indices)
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            if not isinstance(self.data[name], h5py.Dataset):
                raise
            raise self._fail(
                f"expected a data set that stays as it was, got one that cannot be read: {error}. "
                f"Keep its file open and unchanged.",
                name,
            ) from error

    def _count_steps(self, indices: np.ndarray) -> int:
        """Return the number of time steps of a batch of these sequences."""
        if self.seq_lens is None:
            return self.time_size
        return max(1, int(self.seq_lens[indices].max()))

    def _get_seq_lens(self, cut_according_to: Any) -> np.ndarray | None:
        if cut_according_to is None:
            return None
        if isinstance(cut_according_to, str):
            named = find_mask(self, cut_according_to, self.data)
            return None if named is None else lengths_from_mask(self.data[named])
        if not _are_lengths(cut_according_to, self.sample_size, self.time_size):
            raise self._fail(
                f"cut_according_to: expected a data name, None or {self.sample_size} ints from 1 "
                f"to {self.time_size} (one length for each sequence), got {cut_according_to!r}"
            )
        return np.array(cut_according_to, np.int64)


class Online(Minibatches):
    """Batches of a single sequence.

    Args:
        shuffle: Whether every epoch has a new order; or weights, as in `Minibatches`.
        cut_according_to: See `Minibatches`.
        per_sequence: See `Minibatches`.
        **named_data: Arrays (T, B, features...) with the same T and B.
    """

    def __init__(
        self,
        shuffle: bool | Sequence[float] = True,
        cut_according_to: str | Sequence[int] | None = "mask",
        *,
        per_sequence: Collection[str] = (),
        **named_data: Array,
    ) -> None:
        super().__init__(1, shuffle, cut_according_to, per_sequence=per_sequence, **named_data)


def _read_only(array: Any) -> np.ndarray:
    view = np.asarray(array if isinstance(array, np.ndarray) else array[...]).view()
    view.flags.writeable = False
    return view


def take(array: Any, steps: tuple[Any, ...], indices: np.ndarray) -> np.ndarray:
    """Return a copy of ``array[*steps, indices]``, also for other arrays than NumPy's."""
    if isinstance(array, np.ndarray):
        # not np.take, which copies all of an array that is not contiguous
        return np.ascontiguousarray(array[(*steps, indices)])
    if len(indices) == 0:
        return array[(*steps, slice(0))]
    # h5py requires increasing indices, and reads a slice much faster than a list
    wanted, places = np.unique(indices, return_inverse=True)
    contiguous = wanted[-1] - wanted[0] + 1 == len(wanted)
    block = array[(*steps, slice(wanted[0], wanted[-1] + 1) if contiguous else wanted)]
    return np.take(block, places, axis=len(steps))


def _are_lengths(value: Any, count: int, limit: int) -> bool:
    if not isinstance(value, (list, tuple, np.ndarray)) or len(value) != count:
        return False
    return all(isinstance(length, (int, np.integer)) and 1 <= length <= limit for length in value)


def find_mask(owner: DataIterator, name: str, choices: Collection[str]) -> str | None:
    """Return the name of the mask that cuts sequences; `None` if there is no ``'mask'``.

    Raises:
        IteratorValidationError: There are no data of another given name, or without time axis.
    """
    choices = [choice for choice in choices if choice not in owner.per_sequence | owner.over_s]
    if name in choices:
        return name
    if name == "mask":
        return None
    raise owner._fail(f"cut_according_to: {unknown('data name', name, choices)}")


def lengths_from_mask(mask: Any) -> np.ndarray:
    """Return the lengths (B,) of sequences: up to the last non-zero of a mask (T, B, ...)."""
    on = np.any(np.asarray(mask[...]) != 0, axis=tuple(range(2, len(mask.shape))))
    return np.where(on.any(axis=0), len(on) - on[::-1].argmax(axis=0), 0)
