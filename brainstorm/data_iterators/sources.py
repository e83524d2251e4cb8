"""Batches from iterables, and from data sets with items as in PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.data_iterators.base_iterator import Batch, DataIterator
from brainstorm.data_iterators.batches import PlannedBatches
from brainstorm.data_iterators.data_checks import NUMBERS, check_data, check_finite
from brainstorm.data_iterators.sequences import Chunk
from brainstorm.utils import as_array


class IterableBatches(DataIterator):
    """Batches from an iterable of the user.

    A run can be resumed exactly if the batches are the same in every process, and depend only on
    the epoch.

    Args:
        batches: An iterable, to be iterated once per epoch, of dictionaries: data name to numbers
            (T, B, features...), as NumPy arrays or anything that `numpy.asarray` converts. Or a
            function without arguments that returns such an iterable, e.g. a generator function.
            A `Chunk` says whether it continues the sequences of the batch before.
        per_sequence: Names of the data that are (B, features...), one row for each sequence.

    Raises:
        IteratorValidationError: It can be iterated only once, or yields something else, or (while
            iterating) a batch differs from the first one in its names or features.
    """

    def __init__(self, batches: Any, *, per_sequence: Collection[str] = ()) -> None:
        self._begin = batches.__iter__ if hasattr(batches, "__iter__") else batches
        begun = self._begin() if callable(self._begin) else batches
        if not hasattr(begun, "__iter__") or (iter(begun) is begun and self._begin() is begun):
            raise self._fail(
                f"expected an iterable that restarts in every epoch, got a {type(begun).__name__}. "
                f"Give a list, or a function that returns a new iterable each time."
            )
        self.data_shapes = {}
        self._given_per_sequence = per_sequence
        first = next(self(), None)
        if first is None:
            raise self._fail("expected at least one batch, got none")
        shapes = {name: self.feature_shape(name, array) for name, array in first.items()}
        super().__init__(shapes, len(batches) if hasattr(batches, "__len__") else None)
        self.gives_sequences = isinstance(first, Chunk)

    def __call__(self, handler: Any = None) -> Iterator[Batch]:
        for batch in self._begin():
            if not isinstance(batch, Mapping):
                raise self._fail(
                    f"expected dictionaries of arrays by data name, got a {type(batch).__name__}"
                )
            arrays = {name: as_array(a, f"data {name!r}") for name, a in batch.items()}
            self._set_axes(arrays, self._given_per_sequence)
            shapes, _, _ = check_data(self, arrays)
            if shapes != (self.data_shapes or shapes):
                raise self._fail(
                    f"expected batches with the features {self.data_shapes} as in the first one, "
                    f"got {shapes}"
                )
            yield Chunk(arrays, batch.continues) if isinstance(batch, Chunk) else arrays


class DatasetMinibatches(PlannedBatches):
    """Batches of the items of a PyTorch-like data set, which has a length and items by number.

    A run can be resumed exactly if items never change.

    Args:
        dataset: ``dataset[i]`` for i from 0 to ``len(dataset) - 1`` is a dictionary, or a sequence
            in the order of `names`, of numbers (features...). A single number is one feature. They
            are NumPy arrays, or anything that `numpy.asarray` converts; images are (rows, columns,
            channels). Batches have T = 1; for sequences use `BucketedMinibatches`.
        batch_size: Number of items in a batch.
        shuffle: True, False, ``'batches'``, or weights; see `Minibatches`.
        names: The data names of the parts of an item, if items are not dictionaries.
        per_sequence: Names of the data that batches hold without T = 1, as (B, features...).
        drop_last: Whether a smaller last batch is left out.

    Raises:
        IteratorValidationError: The first item is not valid, or (while iterating) an item differs
            from it in its parts or shapes, or holds a number that is not finite.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool | str | Sequence[float] = True,
        names: Sequence[str] = ("default", "targets"),
        *,
        per_sequence: Collection[str] = (),
        drop_last: bool = False,
    ) -> None:
        has_items = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not has_items or (isinstance(dataset, Mapping) and 0 not in dataset):
            raise self._fail(
                f"expected a data set with __len__ and __getitem__, got a {type(dataset).__name__}"
            )
        if len(dataset) == 0:
            raise self._fail("expected a data set with items, got none")
        self.dataset, self.names = dataset, tuple(names)
        first = self._get_item(0)
        check_data(self, {name: array[None, None] for name, array in first.items()})
        self._set_axes(first, per_sequence)
        shapes = {name: array.shape for name, array in first.items()}
        super().__init__(shapes, len(dataset), batch_size, shuffle, drop_last)

    def _get_item(self, index: int) -> dict[str, np.ndarray]:
        item = self.dataset[index]
        if not isinstance(item, Mapping):
            if not isinstance(item, (tuple, list)) or len(item) != len(self.names):
                got = (
                    f"{len(item)} parts" if isinstance(item, (tuple, list)) else type(item).__name__
                )
                raise self._fail(
                    f"item {index}: expected a dictionary or a tuple of {', '.join(self.names)}, "
                    f"got {got}. Name its parts: names=(...)."
                )
            item = dict(zip(self.names, item, strict=True))
        return {
            name: np.atleast_1d(as_array(part, f"item {index}, {name!r}"))
            for name, part in item.items()
        }

    def _get_batch(self, indices: np.ndarray) -> Batch:
        indices = self.own(indices)
        items = [self._get_item(int(index)) for index in indices]
        for index, item in zip(indices, items, strict=True):
            shapes = {name: part.shape for name, part in item.items()}
            if shapes != self.data_shapes:
                raise self._fail(
                    f"item {index}: expected the shapes {self.data_shapes} as in the first one, "
                    f"got {shapes}"
                )
            for name, part in item.items():
                if part.dtype.kind not in NUMBERS:
                    raise self._fail(f"item {index}: expected numbers, got {part.dtype}", name)
        batch = {}
        for name, shape in self.data_shapes.items():
            rows = [item[name] for item in items]
            array = np.stack(rows) if rows else np.empty((0, *shape))
            batch[name] = array[(None,) * self.batch_axis(name)]
            check_finite(self, name, batch[name], indices)
        return batch
