"""Batches of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.data_iterators.base_iterator import Batch
from brainstorm.data_iterators.batches import PlannedBatches
from brainstorm.data_iterators.data_checks import NUMBERS, check_finite, remedy_for_steps
from brainstorm.errors import shown
from brainstorm.utils import Array, as_array

#: The masks that are created here: over T, and over S if there are such data.
MASKS = {"T": "mask", "S": "mask_s"}


class BucketedMinibatches(PlannedBatches):
    """Batches of sequences of different lengths, similar ones together, with a mask.

    Sequences are padded with zeros to the longest of their batch. The data called ``mask``
    (T, B, 1) are True within a sequence and False after its end. For pairs of sequences with
    lengths of their own, ``mask_s`` (S, B, 1) is the mask of the second ones.

    Args:
        batch_size: Number of sequences in a batch.
        shuffle: True draws an order of the sequences in every epoch, sorts them by length (T, and
            then S) within each `pool`, and draws the order of the batches; ``'batches'`` draws only
            the latter; False keeps the order of the sequences, and so mixes lengths. Weights draw
            sequences, see `Minibatches`.
        pool: Number of batches whose sequences are sorted together. A larger pool means less
            padding, but the same sequences are more often together.
        per_sequence: Names of the data that have no time steps: one array (features...), or one
            number, for each sequence. Batches have them as (B, features...).
        over_s: Names of the data that are the second sequences of pairs, (S, features...).
        drop_last: Whether an incomplete last batch is left out.
        **named_data: Lists with one array (T, features...) per sequence. All arrays of a sequence
            have the same T (or S), and all of a name the same features and dtype.

    Attributes:
        seq_lens: The lengths of the sequences.
        lengths: The same as ``lengths['T']``, and those of the second sequences as ``['S']``.

    Raises:
        IteratorValidationError: The arrays or arguments are not valid or do not fit together.
    """

    __constraints__ = {"pool": integer(1)}
    identity = ("pool", "lengths")

    def __init__(
        self,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        pool: int = 100,
        *,
        per_sequence: Collection[str] = (),
        over_s: Collection[str] = (),
        drop_last: bool = False,
        **named_data: Sequence[Array],
    ) -> None:
        self.pool = pool
        self._set_axes(named_data, per_sequence, over_s)
        for name in MASKS.values():
            if name in named_data:
                raise self._fail(
                    "expected another name, because this iterator adds its mask under this one",
                    name,
                )
        self.data = {name: self._listed(name, arrays) for name, arrays in named_data.items()}
        for name in self.per_sequence:
            self.data[name] = [np.atleast_1d(array) for array in self.data[name]]
        self.lengths = self._check_sequences()
        self.seq_lens = self.lengths["T"]
        shapes = {name: self._features(name, arrays[0]) for name, arrays in self.data.items()}
        self.padding_masks = {time: MASKS[time] for time in self.lengths}
        shapes.update(dict.fromkeys(self.padding_masks.values(), (1,)))
        super().__init__(shapes, len(self.seq_lens), batch_size, shuffle, drop_last)

    def _listed(self, name: str, arrays: Any) -> list[np.ndarray]:
        """Return the arrays of the sequences."""
        if isinstance(arrays, np.ndarray) and arrays.ndim > 2:
            raise self._fail(
                f"expected a list with one array for each sequence, got one array of shape "
                f"{arrays.shape}. Use Minibatches for (T, B, features...), or say which axis that "
                f"of the sequences is: list(x) if it is the first, list(x.swapaxes(0, 1)) if it is "
                f"the second.",
                name,
            )
        try:
            listed = list(arrays)
        except TypeError:
            raise self._fail(
                f"expected a list with one array for each sequence, got {shown(arrays)}. "
                f"{self._if_option(name)}",
                name,
            ) from None
        return [as_array(array, f"data {name!r}") for array in listed]

    def _features(self, name: str, array: np.ndarray) -> tuple[int, ...]:
        return array.shape[self.batch_axis(name) :]

    def _check_sequences(self) -> dict[str, np.ndarray]:
        """Return the lengths of the sequences, which must be equal for all names."""
        if not self.data:
            raise self._fail("expected at least one list of arrays, e.g. default=[x, y], got none")
        if not self.data.keys() - self.per_sequence - self.over_s:
            raise self._fail(
                "expected data with time steps, got only data of whole sequences. For data without "
                "time steps use Minibatches."
            )
        counts = {name: len(arrays) for name, arrays in self.data.items()}
        if not any(counts.values()):
            raise self._fail(f"expected at least one sequence, got {counts}")
        if len(set(counts.values())) > 1:
            raise self._fail(f"expected as many sequences under each name, got {counts}")
        rows = [self._check_sequence(number) for number in range(max(counts.values()))]
        return {time: np.array([row[time][0] for row in rows]) for time in rows[0]}

    def _check_sequence(self, number: int) -> dict[str, tuple[int, str]]:
        """Return the lengths of a sequence, each with the name of data that have it."""
        lengths: dict[str, tuple[int, str]] = {}
        for name, arrays in self.data.items():
            array, features = arrays[number], self._features(name, arrays[0])
            axis = self.batch_axis(name)
            if array.dtype.kind not in NUMBERS or array.ndim < 1 + axis or 0 in array.shape:
                feature = "For one number at each step add an axis: x[:, None]. " * array.ndim
                row = f"If there is one row for each sequence, say so: per_sequence=[{name!r}]"
                raise self._fail(
                    f"sequence {number}: expected numbers ({f'{self.axes(name)[0]}, ' * axis}"
                    f"features...), got shape {array.shape} and dtype {array.dtype}"
                    f"{f'. {feature}{row}' * (axis and array.ndim < 2)}",
                    name,
                )
            found, dtype = self._features(name, array), arrays[0].dtype
            if (found, array.dtype) != (features, dtype):
                raise self._fail(
                    f"sequence {number}: expected features {features} and dtype {dtype} as in the "
                    f"first one, got {found} and {array.dtype}",
                    name,
                )
            if axis:
                steps, reference = lengths.setdefault(self.axes(name)[0], (len(array), name))
                if steps != len(array):
                    remedy = f". {remedy_for_steps(type(self).__name__, name)}"
                    raise self._fail(
                        f"sequence {number}: expected {steps} time steps as in {reference!r}, got "
                        f"{len(array)}{remedy * (name not in self.over_s)}",
                        name,
                    )
            check_finite(self, name, np.expand_dims(array, axis), np.array([number]))
        return lengths

    def _draw_epoch(self) -> list[np.ndarray]:
        if not self.shuffle:
            return super()._draw_epoch()
        order = self._draw_order()
        if self.drop_last:  # before they are sorted: else the longest ones would always be left out
            order = order[: self.length * self.batch_size]
        for part in self._cut(order, self.pool * self.batch_size):
            # The last key counts first: T.
            part[:] = part[np.lexsort([self.lengths[time][part] for time in sorted(self.lengths)])]
        return self._shuffle(self._cut(order, self.batch_size))

    def _get_batch(self, indices: np.ndarray) -> Batch:
        most = {time: lengths[indices].max() for time, lengths in self.lengths.items()}
        indices = self.own(indices)
        lengths = {time: lengths[indices] for time, lengths in self.lengths.items()}
        batch: Batch = {
            MASKS[time]: (np.arange(steps)[:, None] < lengths[time])[:, :, None]
            for time, steps in most.items()
        }
        for name, arrays in self.data.items():
            if name in self.per_sequence:
                rows = [arrays[index] for index in indices]
                batch[name] = np.array(rows, arrays[0].dtype).reshape(-1, *arrays[0].shape)
                continue
            time = self.axes(name)[0]
            shape = (*batch[MASKS[time]].shape[:2], *self.data_shapes[name])
            padded = np.zeros(shape, arrays[0].dtype)
            for place, index in enumerate(indices):
                padded[: lengths[time][place], place] = arrays[index]
            batch[name] = padded
        return batch
