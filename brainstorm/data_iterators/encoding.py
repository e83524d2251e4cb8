"""Iterators that turn class numbers into vectors with one element for each class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from brainstorm.constraints import integer
from brainstorm.data_iterators.base_iterator import DataIterator, Wrapper
from brainstorm.utils import Array


class MultiHot(Wrapper):
    """Turn lists of classes (T, B, n) into vectors (T, B, vocabulary size) that mark them.

    Args:
        iter: The iterator to wrap.
        vocab_size_dict: Data name to the number of classes, which are numbered from 0.

    Raises:
        IteratorValidationError: The data are not of that shape; while iterating, if a value is not
            a whole number from 0 to the number of classes - 1.
    """

    def __init__(self, iter: DataIterator, vocab_size_dict: Mapping[str, int]) -> None:
        super().__init__(iter, vocab_size_dict)
        self.vocab_size_dict = self.settings
        self._check_values("vocabulary size", self.vocab_size_dict, integer(1))
        for name, size in self.vocab_size_dict.items():
            self._check_features(name, self.data_shapes[name])
            self.data_shapes[name] = (*self.data_shapes[name][:-1], int(size))

    def _check_features(self, name: str, shape: tuple[int, ...]) -> None:
        if len(shape) != 1:
            raise self._fail(f"expected class numbers (T, B, n), got features {shape}", name)

    def transform(self, name: str, array: Array) -> Array:
        """Return a boolean array that is True at the classes."""
        size = self.vocab_size_dict[name]
        with np.errstate(invalid="ignore"):  # values that fit no int are found below
            classes = array.astype(np.intp)
        wrong = (classes != array) | (classes < 0) | (classes >= size)
        if wrong.any():
            raise self._fail(
                f"expected whole numbers from 0 to {size - 1}, got {array[wrong][0]}", name
            )
        encoded = np.zeros((*array.shape[:-1], size), dtype=bool)
        np.put_along_axis(encoded, classes, True, axis=-1)
        return encoded


class OneHot(MultiHot):
    """Turn classes (T, B, ..., 1) into vectors (T, B, ..., vocabulary size), True at the class.

    Maps of labels (T, B, rows, columns, 1) become one such vector for each pixel.

    Args:
        iter: The iterator to wrap.
        vocab_size_dict: Data name to the number of classes, which are numbered from 0.

    Raises:
        IteratorValidationError: As in `MultiHot`.
    """

    def _check_features(self, name: str, shape: tuple[int, ...]) -> None:
        if shape[-1] != 1:
            raise self._fail(
                f"expected one class number (T, B, ..., 1), got features {shape}. Several of them "
                f"at once are for MultiHot.",
                name,
            )
