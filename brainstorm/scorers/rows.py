"""Scorers that are means over the rows: time steps of sequences, or pixels."""

from __future__ import annotations

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.scorers.base import Scorer
from brainstorm.utils import Array


def _masked_sum(values: Array, mask: Array | None) -> float:
    return float(np.sum(values if mask is None else values * mask, dtype=float))


class Accuracy(Scorer):
    """Fraction of rows, or of pixels, whose predicted class is the true one.

    The class is the index of the largest value in a row, or the value itself if a row has just
    one; that must not be a probability (see `Hamming`).
    """

    criterion = "max"
    by_pixel = True

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> float:
        """Return the number (or, with a mask, the total weight) of correct rows."""
        if true_labels.shape[1] > 1:
            self.check_columns(true_labels, predicted)
        elif predicted.shape[1] > 1:
            there = self.numbered(true_labels, predicted.shape[1])
            return _masked_sum(np.take_along_axis(there, _classes(predicted), axis=1), mask)
        elif (predicted != np.floor(predicted)).any():
            raise ValidationError(
                f"scorer {self.__name__!r}: expected predictions with a column for each class, or "
                f"classes, got one column of numbers such as {predicted.max():.3g}. For the output "
                f"of one sigmoid there is Hamming(threshold=0.5)."
            )
        return _masked_sum(_classes(true_labels) == _classes(predicted), mask)


def _classes(values: Array) -> Array:
    return values.argmax(axis=1)[:, None] if values.shape[1] > 1 else values


class Hamming(Scorer):
    """Fraction of binary targets that are predicted correctly.

    Args:
        threshold: Predictions of at least this count as 1.
        out_name: See `Scorer`, as for the other arguments.
        targets_name: See `Scorer`.
        mask_name: See `Scorer`.
        name: See `Scorer`.
    """

    criterion = "max"

    def __init__(
        self,
        threshold: float = 0.5,
        out_name: str = "",
        targets_name: str = "targets",
        mask_name: str | None = "",
        name: str | None = None,
    ) -> None:
        super().__init__(out_name, targets_name, mask_name, name)
        self.threshold = threshold

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> float:
        """Return the sum over the rows of the fraction of correct features."""
        self.check_columns(true_labels, predicted)
        right = (predicted >= self.threshold) == self.is_yes(true_labels)
        return _masked_sum(right, mask) / predicted.shape[1]


class MeanSquaredError(Scorer):
    """Half of the squared Euclidean distance to the targets, averaged over the rows."""

    criterion = "min"

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> float:
        """Return 0.5 times the sum of the squared differences."""
        self.check_columns(true_labels, predicted)
        errors = np.subtract(predicted, true_labels, dtype=float)  # unsigned would wrap around
        return 0.5 * _masked_sum(errors**2, mask)
