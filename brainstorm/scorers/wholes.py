"""Scorers that are not means over the rows: they keep counts, moments, or all predictions.

All of them agree with those of scikit-learn, for several classes or columns with its option
``average='macro'``, except that columns without any yes in targets and predictions do not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from brainstorm.constraints import number, whole
from brainstorm.errors import ValidationError, shown
from brainstorm.scorers.base import Scorer, Weighted
from brainstorm.utils import Array


class _OfClasses(Scorer):
    """Base class of scores of classes: the number of true positives, divided by another number."""

    __constraints__: Any = {"of_class": whole(0).or_none()}

    criterion = "max"
    by_pixel = True

    def __init__(self, of_class: int | None = None, threshold: float = 0.5, **names: Any) -> None:
        super().__init__(**names)
        self.of_class = of_class
        self.threshold = threshold

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> Array:
        """Return, for each class, the weights of true positives, predictions and targets.

        Raises:
            ValidationError: Targets do not fit the predictions, or there is no such class.
        """
        classes, wanted = predicted.shape[1], self.of_class
        weight = np.ones((len(predicted), 1)) if mask is None else mask
        if true_labels.shape[1] == 1 < classes:
            numbers = np.arange(classes)
            there = self.numbered(true_labels, classes)
            found = predicted.argmax(axis=1)[:, None] == numbers
            wanted = 1 if classes == 2 and wanted is None else wanted
        else:
            self.check_columns(true_labels, predicted)
            there, found = self.is_yes(true_labels), predicted >= self.threshold
        if wanted is not None and wanted >= classes:
            expected = f"one of the {classes} columns of the predictions"
            raise self.fail("of_class", expected, wanted)
        counts = [(weight * cases).sum(axis=0) for cases in (there & found, found, there)]
        columns = slice(None) if wanted is None else [int(wanted)]
        return np.array(counts, dtype=float)[:, columns].ravel()

    def out_of(self, found: Array, there: Array) -> Array:
        """Return the denominator of the score for each class.

        Args:
            found: Number of predictions of the class.
            there: Number of targets of the class.
        """
        raise NotImplementedError

    def aggregate(self, errors: Iterable[Weighted]) -> float:  # type: ignore[override]
        """Return the score, given the counts of all batches; 0 in place of 0 / 0."""
        counts = [*errors]
        if not counts:
            return float("nan")
        right, found, there = np.sum(counts, axis=0).reshape(3, -1)
        of = self.out_of(found, there)
        scores = np.divide(right, of, out=np.zeros_like(right), where=of > 0)
        known = scores[(found + there > 0) | (len(scores) == 1)]
        return float(known.mean()) if known.size else float("nan")


class Precision(_OfClasses):
    """The fraction of predictions of a class that are correct.

    Targets are class numbers, and predictions have a column for each class, of which the largest
    counts. Or each column is a binary question, and targets have the same columns: 1 for yes, 0 or
    -1 for no. For a single column, and for two classes, the score is that of yes.

    Args:
        of_class: The number of the class, or column, to score; `None`: the mean of all classes that
            occur in targets or predictions, or the second of two classes.
        threshold: Predictions of at least this are a yes.
        **names: See `Scorer`.
    """

    def out_of(self, found: Array, there: Array) -> Array:
        """Return the number of predictions."""
        return found


class Recall(_OfClasses):
    """The fraction of targets of a class that were predicted; arguments as in `Precision`."""

    def out_of(self, found: Array, there: Array) -> Array:
        """Return the number of targets."""
        return there


class FScore(_OfClasses):
    """The weighted harmonic mean of precision and recall; F1 without arguments.

    Args:
        beta: How many times as important as precision recall is.
        of_class: See `Precision`, as for the other arguments.
        threshold: See `Precision`.
        **names: See `Scorer`.
    """

    __constraints__ = {"beta": number(0)}

    def __init__(
        self,
        beta: float = 1.0,
        of_class: int | None = None,
        threshold: float = 0.5,
        **names: Any,
    ) -> None:
        super().__init__(of_class, threshold, **names)
        self.beta = beta

    def out_of(self, found: Array, there: Array) -> Array:
        """Return the weighted mean of both."""
        return (self.beta**2 * there + found) / (1 + self.beta**2)


class AreaUnderCurve(Scorer):
    """The area under the ROC curve: how well the predictions separate yes and no.

    That is the probability that of two rows, one yes and one no, the yes has the larger prediction;
    ties count one half. Predictions have one column, or two, of which the second is that of yes.
    The larger of the two numbers in the targets is yes. All rows are kept until the end.
    """

    criterion = "max"
    by_pixel = True

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> Array:
        """Return a row of weight, prediction and target for each row."""
        if true_labels.shape[1] != 1 or predicted.shape[1] > 2:
            raise ValidationError(
                f"scorer {self.__name__!r}: expected targets with one column and predictions with "
                f"one or two, got {true_labels.shape[1]} and {predicted.shape[1]}. Score the "
                f"columns one by one: out_name='Slice.outputs.default'."
            )
        weight = np.ones_like(true_labels) if mask is None else mask
        return np.concatenate([weight, predicted[:, -1:], true_labels], axis=1, dtype=float)

    def aggregate(self, errors: Iterable[Weighted]) -> float:  # type: ignore[override]
        """Return the area; NaN if all targets are equal.

        Raises:
            ValidationError: The targets have more than two values.
        """
        weights, predicted, targets = np.array(list(errors), dtype=float).reshape(-1, 3).T
        kinds = np.unique(targets[~np.isnan(targets)])
        if len(kinds) > 2:
            raise ValidationError(
                f"scorer {self.__name__!r}: expected two kinds of targets, for yes and no, got "
                f"{len(kinds)}: {shown(kinds.tolist())}"
            )
        is_yes = targets == kinds[-1:]
        values, places = np.unique(predicted, return_inverse=True)
        yes, no = (
            np.bincount(places, weights * kind, len(values)) for kind in (is_yes, 1 - is_yes)
        )
        pairs = yes.sum() * no.sum()
        right = yes @ (np.cumsum(no) - no / 2)
        return float(right / pairs) if pairs else float("nan")


class RSquared(Scorer):
    """The coefficient of determination: 1 minus squared error over variance; a mean over columns.

    If a column of the targets is constant it is 1 for exact predictions, else 0.
    """

    criterion = "max"

    def __call__(self, true_labels: Array, predicted: Array, mask: Array | None = None) -> Array:
        """Return weight and number of rows; mean, squared deviations and errors of each column."""
        self.check_columns(true_labels, predicted)
        true_labels, predicted = true_labels.astype(float), predicted.astype(float)
        weight = np.ones((len(predicted), 1)) if mask is None else mask.astype(float)
        mean = _mean(true_labels, weight)
        squares = [(weight * (true_labels - other) ** 2).sum(axis=0) for other in (mean, predicted)]
        return np.concatenate([[weight.sum(), len(weight)], mean, *squares])

    def aggregate(self, errors: Iterable[Weighted]) -> float:  # type: ignore[override]
        """Return the coefficient, given the moments of all batches; NaN for a single row."""
        rows = np.array([row for row in errors if row[0]], dtype=float)
        if not len(rows) or rows[:, 1].sum() < 2:
            return float("nan")
        weights, (means, squares, missed) = rows[:, :1], np.split(rows[:, 2:], 3, axis=1)
        mean = _mean(means, weights)
        deviation = (squares + weights * (means - mean) ** 2).sum(axis=0)
        error = missed.sum(axis=0)
        exact = np.where(error == 0, 1.0, 0.0)
        ratio = np.divide(error, deviation, out=1 - exact, where=deviation != 0)
        return float(np.mean(1 - ratio))


def _mean(values: Array, weights: Array) -> Array:
    """Return the weighted mean of each column; for a constant column exactly that constant."""
    origin, total = values[:1], weights.sum()
    return (origin + (weights * (values - origin)).sum(axis=0) / (total or 1))[0]
