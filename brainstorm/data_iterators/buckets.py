"""Batches of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from brainstorm.data_iterators.base_iterator import NUMBERS, Batch, check_finite
from brainstorm.data_iterators.batches import PlannedBatches
from brainstorm.utils import Array, as_array

__all__ = ["BucketedMinibatches"]


class BucketedMinibatches(PlannedBatches):
    """Batches of sequences of different lengths, similar ones together, with a mask.

    Sequences are padded with zeros to the longest one of their batch. The data called ``mask``
    (T, B, 1) are True within a sequence and False behind its end.

    Args:
        batch_size: Number of sequences in a batch.
        shuffle: True draws an order of the sequences in every epoch, sorts them by length within
            each `pool`, and draws the order of the batches; ``'batches'`` draws only the latter;
            False keeps the order of the sequences, and so mixes lengths. Weights draw sequences,
            see `Minibatches`.
        pool: For how many batches sequences are sorted together. A larger pool means less padding,
            and more often the same sequences together.
        per_sequence: Names of the data that have no time steps: one array (features...), or one
            number, for each sequence. Batches have them as (B, features...).
        drop_last: Whether a batch with what is left is left out.
        **named_data: Lists with one array (T, features...) per sequence. All arrays of a sequence
            have the same T, and all of a name the same features and dtype.

    Attributes:
        seq_lens: The lengths of the sequences.

    Raises:
        IteratorValidationError: The arrays or arguments are unfit or do not fit together.
    """

    def __init__(
        self,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        pool: int = 100,
        *,
        per_sequence: Collection[str] = (),
        drop_last: bool = False,
        **named_data: Sequence[Array],
    ) -> None:
        self._check_int("pool", pool)
        self._set_per_sequence(per_sequence, named_data)
        if "mask" in named_data:
            raise self._fail("expected data under other names: the mask is made here", "mask")
        self.data = {
            name: [as_array(array, f"data {name!r}") for array in arrays]
            for name, arrays in named_data.items()
        }
        for name in self.per_sequence:
            self.data[name] = [np.atleast_1d(array) for array in self.data[name]]
        self.seq_lens = self._check_sequences()
        shapes = {name: self._features(name, arrays[0]) for name, arrays in self.data.items()}
        count = len(self.seq_lens)
        super().__init__({**shapes, "mask": (1,)}, count, batch_size, shuffle, drop_last)
        self.pool = int(pool)

    def _describe_epoch(self) -> dict[str, Any]:
        return {**super()._describe_epoch(), "pool": self.pool, "steps": int(self.seq_lens.sum())}

    def _features(self, name: str, array: np.ndarray) -> tuple[int, ...]:
        return array.shape[self.batch_axis(name) :]

    def _check_sequences(self) -> np.ndarray:
        """Return the lengths of the sequences, which all names have in common."""
        if not self.data:
            raise self._fail("expected at least one list of arrays, e.g. default=[x, y], got none")
        if not self.data.keys() - self.per_sequence:
            raise self._fail(
                "expected data with time steps beside those of whole sequences, got none. Rows "
                "that are no sequences are for Minibatches."
            )
        counts = {name: len(arrays) for name, arrays in self.data.items()}
        if 0 in counts.values() or len(set(counts.values())) > 1:
            raise self._fail(f"expected as many sequences under each name, got {counts}")
        return np.array([self._check_sequence(number) for number in range(max(counts.values()))])

    def _check_sequence(self, number: int) -> int:
        """Return the length of a sequence."""
        steps, reference = 0, ""
        for name, arrays in self.data.items():
            array, features = arrays[number], self._features(name, arrays[0])
            axis = self.batch_axis(name)
            if array.dtype.kind not in NUMBERS or array.ndim < 1 + axis or 0 in array.shape:
                raise self._fail(
                    f"sequence {number}: expected numbers ({'T, ' * axis}features...), got shape "
                    f"{array.shape} and dtype {array.dtype}",
                    name,
                )
            found, dtype = self._features(name, array), arrays[0].dtype
            if (found, array.dtype) != (features, dtype):
                raise self._fail(
                    f"sequence {number}: expected features {features} and dtype {dtype} as in the "
                    f"first one, got {found} and {array.dtype}",
                    name,
                )
            if axis and reference and steps != len(array):
                raise self._fail(
                    f"sequence {number}: expected {steps} time steps as in {reference!r}, got "
                    f"{len(array)}",
                    name,
                )
            check_finite(self, name, np.expand_dims(array, axis), np.array([number]))
            if axis and not reference:
                steps, reference = len(array), name
        return steps

    def _draw_epoch(self) -> list[np.ndarray]:
        if not self.shuffle:
            return super()._draw_epoch()
        order = self._draw_order()
        size = self.pool * self.batch_size
        for start in range(0, len(order), size):
            part = order[start : start + size]
            part[:] = part[np.argsort(self.seq_lens[part], kind="stable")]
        return self._shuffle(self._cut(order))

    def _get_batch(self, indices: np.ndarray) -> Batch:
        steps = np.arange(self.seq_lens[indices].max())
        indices = self.own(indices)
        lengths = self.seq_lens[indices]
        batch = {"mask": (steps[:, None] < lengths)[:, :, None]}
        for name, arrays in self.data.items():
            if name in self.per_sequence:
                rows = [arrays[index] for index in indices]
                batch[name] = np.array(rows, arrays[0].dtype).reshape(-1, *arrays[0].shape)
                continue
            padded = np.zeros((*batch["mask"].shape[:2], *self.data_shapes[name]), arrays[0].dtype)
            for place, index in enumerate(indices):
                padded[: lengths[place], place] = arrays[index]
            batch[name] = padded
        return batch
