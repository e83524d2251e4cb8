"""The base of initializers, and the values that can be given in place of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import InitializationError, UnknownTypeError, ValidationError, shown
from brainstorm.randomness import Seedable
from brainstorm.utils import Array

Shape: TypeAlias = tuple[int, ...]


class Initializer(Seedable):
    """Base class of initializers; a subclass overrides ``__call__`` and draws from ``self.rnd``."""

    def __call__(self, shape: Shape) -> Array:
        """Return new values.

        Args:
            shape: Shape of the parameter.

        Returns:
            A NumPy array of that shape.

        Raises:
            InitializationError: The initializer does not support this shape.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")

    @classmethod
    def _check(cls, fits: bool, expected: str, shape: Shape) -> None:
        if not fits:
            raise InitializationError(
                f"{cls.__name__}: expected {expected}, got {shape}. "
                f"Use another initializer for this parameter, or give a fallback."
            )

    @classmethod
    def _assert_atleast2d(cls, shape: Shape) -> None:
        """Raise an `InitializationError` for a vector; named as in initializers of 2015."""
        fits = len(shape) >= 2 and 0 not in shape
        cls._check(fits, "a shape with at least 2 dimensions, none of size 0", shape)

    def _check_matrix(self, shape: Shape) -> None:
        self._check(len(shape) == 2, "a shape with 2 dimensions", shape)

    def _check_square(self, shape: Shape) -> None:
        square = len(shape) == 2 and shape[0] == shape[1]
        self._check(square, "a square shape (n, n)", shape)


def as_initializer(value: Any) -> Initializer:
    """Return an initializer for `value`: itself, or constant values.

    Raises:
        UnknownTypeError: `value` is not an initializer, number, list or array.
    """
    if isinstance(value, Initializer):
        return value
    if isinstance(value, (int, float, np.number, list, tuple, np.ndarray)):
        return ArrayInitializer(value)
    raise UnknownTypeError(
        f"expected an Initializer, a number, a list or an array, got {shown(value)}."
    )


def evaluate_initializer(
    initializer: Any,
    shape: Shape,
    fallback: Any = None,
    seed: int | Callable[[], int] | None = None,
) -> Array:
    """Return initial values for a parameter.

    Args:
        initializer: An initializer, or another value that `as_initializer` accepts.
        shape: Shape of the parameter.
        fallback: Used instead if `initializer` does not support the shape.
        seed: Reseeds the initializer first; a function that returns a seed is called only if the
            initializer draws. `None` continues its own random numbers.

    Raises:
        InitializationError: Neither supports the shape, or the result has another shape or is not
            finite.
    """
    initializer, shape = as_initializer(initializer), tuple(shape)
    if seed is not None:
        initializer.begin_at(seed)
    try:
        values = np.asarray(initializer(shape))
        if values.shape != shape or values.dtype.kind not in "biuf":
            raise InitializationError(
                f"{type(initializer).__name__}: expected an array of numbers of shape {shape} from "
                f"it, got {values.dtype} of shape {values.shape}. Correct its __call__."
            )
    except InitializationError:
        if fallback is None:
            raise
        return evaluate_initializer(fallback, shape, seed=seed)
    if not np.isfinite(values).all():
        raise InitializationError(
            f"{initializer!r}: expected finite numbers from it, got NaN or infinity."
        )
    return values


class ArrayInitializer(Initializer):
    """The given values.

    Args:
        array: Numbers in the shape of the parameter; a single number fills any shape.
    """

    def __init__(self, array: Any) -> None:
        super().__init__()
        try:
            self.array = np.array(array)
        except ValueError as error:  # ragged lists
            raise ValidationError(
                f"ArrayInitializer: expected rows of equal length ({error})"
            ) from None
        if self.array.dtype.kind not in "biuf":
            raise ValidationError(
                f"ArrayInitializer: expected real numbers, got {self.array.dtype} values"
            )
        if not np.isfinite(self.array).all():
            raise ValidationError("ArrayInitializer: expected finite numbers, got NaN or infinity.")

    def __call__(self, shape: Shape) -> Array:
        own = np.shape(self.array)
        self._check(own in ((), shape), f"the shape of its array, {own}", shape)
        return np.full(shape, self.array)
