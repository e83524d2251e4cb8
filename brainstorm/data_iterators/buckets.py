"""Batches of sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
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
            False keeps the order of the sequences, and so mixes lengths.
        pool: For how many batches sequences are sorted together. A larger pool means less padding,
            and more often the same sequences together.
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
        shuffle: bool | str = True,
        pool: int = 100,
        **named_data: Sequence[Array],
    ) -> None:
        self._check_int("pool", pool)
        if "mask" in named_data:
            raise self._fail("expected data under other names: the mask is made here", "mask")
        self.data = {
            name: [as_array(array, f"data {name!r}") for array in arrays]
            for name, arrays in named_data.items()
        }
        self.seq_lens = self._check_sequences()
        shapes = {name: arrays[0].shape[1:] for name, arrays in self.data.items()}
        super().__init__({**shapes, "mask": (1,)}, len(self.seq_lens), batch_size, shuffle)
        self.pool = int(pool)

    def _describe_epoch(self) -> dict[str, Any]:
        return {**super()._describe_epoch(), "pool": self.pool, "steps": int(self.seq_lens.sum())}

    def _check_sequences(self) -> np.ndarray:
        """Return the lengths of the sequences, which all names have in common."""
        if not self.data:
            raise self._fail("expected at least one list of arrays, e.g. default=[x, y], got none")
        counts = {name: len(arrays) for name, arrays in self.data.items()}
        if 0 in counts.values() or len(set(counts.values())) > 1:
            raise self._fail(f"expected as many sequences under each name, got {counts}")
        return np.array([self._check_sequence(number) for number in range(max(counts.values()))])

    def _check_sequence(self, number: int) -> int:
        """Return the length of a sequence."""
        steps = None
        for name, arrays in self.data.items():
            array, first = arrays[number], arrays[0]
            if array.dtype.kind not in NUMBERS or array.ndim < 2 or 0 in array.shape:
                raise self._fail(
                    f"sequence {number}: expected numbers (T, features...), got shape "
                    f"{array.shape} and dtype {array.dtype}",
                    name,
                )
            if (array.shape[1:], array.dtype) != (first.shape[1:], first.dtype):
                raise self._fail(
                    f"sequence {number}: expected features {first.shape[1:]} and dtype "
                    f"{first.dtype} as in the first one, got {array.shape[1:]} and {array.dtype}",
                    name,
                )
            if steps not in (None, len(array)):
                raise self._fail(
                    f"sequence {number}: expected {steps} time steps as in "
                    f"{next(iter(self.data))!r}, got {len(array)}",
                    name,
                )
            check_finite(self, name, array[:, None], np.array([number]))
            steps = len(array)
        return steps or 0

    def _draw_epoch(self) -> list[np.ndarray]:
        if not self.shuffle:
            return super()._draw_epoch()
        order = np.arange(self.sample_size)
        if self.shuffle is True:
            self.rnd.shuffle(order)
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
            padded = np.zeros((*batch["mask"].shape[:2], *self.data_shapes[name]), arrays[0].dtype)
            for place, index in enumerate(indices):
                padded[: lengths[place], place] = arrays[index]
            batch[name] = padded
        return batch
