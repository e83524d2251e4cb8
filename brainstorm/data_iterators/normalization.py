"""Normalization by the mean and standard deviation of the training data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from brainstorm.data_iterators.augmentation import float_dtype
from brainstorm.data_iterators.base_iterator import Batch, DataIterator, Wrapper
from brainstorm.errors import IteratorValidationError, kind_of, shown, unknown
from brainstorm.utils import Array

Statistics = dict[str, tuple[list[float], list[float]]]


class Normalize(Wrapper):
    """Subtract the mean and divide by the standard deviation, for each channel.

        statistics = channel_statistics(training, "default")
        training, validation = Normalize(training, statistics), Normalize(validation, statistics)

    Other data than floats become float32.

    Args:
        iter: The iterator to wrap.
        statistics: Data name to (means, standard deviations): lists with one number for each
            element of the last axis, or a number for all of them.
    """

    def __init__(self, iter: DataIterator, statistics: Mapping[str, Any]) -> None:
        super().__init__(iter, statistics)
        self.statistics = self.settings
        self._arrays = {name: self._check_pair(name, pair) for name, pair in statistics.items()}

    def _check_pair(self, name: str, pair: Any) -> tuple[np.ndarray, np.ndarray]:
        channels = self.data_shapes[name][-1]
        try:
            mean, std = (np.broadcast_to(np.asarray(part, float), (channels,)) for part in pair)
        except (TypeError, ValueError):
            raise self._fail(
                f"expected (means, standard deviations) of {channels} channels, got {pair!r}", name
            ) from None
        if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std > 0).all()):
            raise self._fail(
                f"expected finite means and standard deviations above 0, got {pair!r}. For a "
                f"channel that is constant give 1.",
                name,
            )
        return mean, std

    def transform(self, name: str, array: Array) -> Array:
        dtype = float_dtype(array)
        mean, std = self._arrays[name]
        precise = np.result_type(array, np.float32)  # float64 for large integers
        normalized = array - mean.astype(precise)
        normalized /= std.astype(precise)
        return normalized.astype(dtype, copy=False)


def channel_statistics(iter: DataIterator, *names: str, mask_name: str | None = None) -> Statistics:
    """Compute the statistics for `Normalize`, in one pass over the training data.

    The result is plain data: it can be written as JSON, which keeps every bit.

    Args:
        iter: Yields the training data.
        *names: The data names.
        mask_name: The name of a mask (T, B, 1) or (B, 1): only steps where it is not 0 count; or of
            one with a value for each pixel, (T, B, ..., 1). `None`: the mask of the padding that
            the iterator adds, if it does. Of data (B, features...) all count, each sequence once.

    Returns:
        Data name to (means, standard deviations): for each element of the last axis over all
        others. A constant channel gets the deviation 1, so that it becomes 0.
        Sums are in float64 and over differences from the mean (Chan et al., "Updating
        Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).

    Raises:
        IteratorValidationError: There are no data of such a name, or some are not finite, or the
            mask is one of other data.
    """
    if not isinstance(iter, DataIterator):
        raise IteratorValidationError(
            f"channel_statistics: expected a data iterator, such as Undivided(default=x), got "
            f"{kind_of(iter)}."
        )
    if not names:
        choices = ", ".join(iter.data_shapes)
        raise IteratorValidationError(
            f"channel_statistics: expected data names, got none. Choices are: {choices}."
        )
    for name in (*names, *([] if mask_name is None else [mask_name])):
        if not isinstance(name, str):
            raise IteratorValidationError(
                f"channel_statistics: expected data names one by one, got {shown(name)}."
            )
        if name not in iter.data_shapes:
            text = unknown("data name", name, iter.data_shapes)
            raise IteratorValidationError(f"channel_statistics: {text}")
    sums = {name: _Sums() for name in names}
    for batch in iter():
        for name in names:
            time = iter.axes(name)[:-1]
            masked_by = (mask_name or iter.padding_masks.get(time)) if time else None
            if time or not getattr(batch, "continues", False):  # rows of sequences come once
                sums[name] = _add(sums[name], _get_rows(batch, name, masked_by))
    result: Statistics = {}
    for name, (count, mean, squares, low, high) in sums.items():
        with np.errstate(all="ignore"):
            std = np.where(low == high, 1.0, np.sqrt(squares / max(count, 1)))
        if not (count and np.isfinite(mean).all() and np.isfinite(std).all()):
            raise IteratorValidationError(
                f"channel_statistics, data {name!r}: expected finite numbers, got {count} values "
                f"per channel with the means {mean.tolist()}"
            )
        result[name] = (list(map(float, mean)), list(map(float, std)))
    return result


def _get_rows(batch: Batch, name: str, mask_name: str | None) -> np.ndarray:
    """Return all values of a batch that count, as (values, channels)."""
    array = batch[name]
    if mask_name is not None:
        *axes, values = batch[mask_name].shape
        shape = array.shape[: max(len(axes), 2)]  # the mask of whole sequences has one axis
        if values != 1 or tuple(axes) != shape[-len(axes) :]:
            raise IteratorValidationError(
                f"channel_statistics, data {name!r}: expected a mask {(*shape, 1)}, got "
                f"{mask_name!r} {batch[mask_name].shape}. Compute those of other data apart."
            )
        array = array[np.broadcast_to(np.asarray(batch[mask_name])[..., 0] != 0, shape)]
    return np.asarray(array, np.float64).reshape(-1, array.shape[-1])


class _Sums(NamedTuple):
    """What is known of each channel."""

    values: int = 0
    mean: Any = np.zeros(())
    squares: Any = np.zeros(())  # of the differences from the mean
    low: Any = np.inf
    high: Any = -np.inf


def _add(sums: _Sums, rows: np.ndarray) -> _Sums:
    """Return the sums, including further values."""
    if not len(rows):
        return sums
    count, mean, squares, low, high = sums
    with np.errstate(all="ignore"):  # infinite values are found at the end
        its_mean = rows.mean(axis=0)
        delta, total = its_mean - mean, count + len(rows)
        squares = squares + ((rows - its_mean) ** 2).sum(axis=0)
        squares = squares + delta**2 * (count * len(rows) / total)
        mean = mean + delta * (len(rows) / total)
        low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
        return _Sums(total, mean, squares, low, high)
