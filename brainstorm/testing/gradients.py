"""Numerical derivatives, and comparisons that name the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.errors import BrainstormError


class PropertyError(BrainstormError, AssertionError):
    """An object lacks a property that its kind must have; an `AssertionError` for test runners."""


class KinkError(BrainstormError):
    """A function cannot be differentiated numerically at a point."""


def approx_fprime(
    x0: np.ndarray, f: Callable[..., float], epsilon: float, *args: Any
) -> np.ndarray:
    """Return the gradient of `f` at `x0` by two-sided differences, in float64.

    Element i is ``(f(x0 + e_i * epsilon) - f(x0 - e_i * epsilon)) / (2 * epsilon)``.

    Args:
        x0: The point, an array of any shape; it is not changed.
        f: ``f(x, *args)`` returns a number.
        epsilon: Step to either side.
        *args: Further arguments for `f`.

    Returns:
        An array of the shape of `x0`.
    """
    above, below = (_values_beside(x0, lambda x: f(x, *args), step) for step in (epsilon, -epsilon))
    return np.asarray((above - below) / (2 * epsilon))


def differentiate(
    x0: np.ndarray, f: Callable[[np.ndarray], float], epsilon: float = 1e-5, tolerance: float = 1e-3
) -> np.ndarray:
    """Return the gradient of `f` at `x0`, like `approx_fprime`, but never across a kink.

    Raises:
        KinkError: The slope to the left and the slope to the right differ by more than the
            (relative and absolute) tolerance.
    """
    centre = float(f(np.array(x0, dtype=np.float64)))
    left, right = (
        np.asarray((_values_beside(x0, f, step) - centre) / step) for step in (-epsilon, epsilon)
    )
    rough = ~np.isclose(left, right, rtol=tolerance, atol=tolerance)
    if rough.any():
        index = tuple(int(i) for i in np.argwhere(rough)[0])
        raise KinkError(
            f"element {list(index)}: the slope is {left[index]:.6g} to the left and "
            f"{right[index]:.6g} to the right, within {epsilon:g}. Move away from the kink."
        )
    return (left + right) / 2


def _values_beside(x0: np.ndarray, f: Callable[[np.ndarray], float], step: float) -> np.ndarray:
    """Return ``f(x0 + e_i * step)`` for each element i."""
    x = np.array(x0, dtype=np.float64)
    values = np.zeros_like(x)
    for index in np.ndindex(*x.shape):
        centre = x[index]
        x[index] = centre + step
        values[index] = float(f(x))
        x[index] = centre
    return values


def check_close(
    where: str, got: np.ndarray, expected: np.ndarray, rtol: float = 1e-5, atol: float = 1e-7
) -> None:
    """Check that two arrays are equal up to rounding.

    Args:
        where: What is compared, for the message: property, layer, size and buffer.
        got: The computed values.
        expected: The correct values.
        rtol: Tolerance relative to `expected`.
        atol: Absolute tolerance.

    Raises:
        PropertyError: They differ; the message names the worst element and both numbers.
    """
    if got.shape != expected.shape:
        raise PropertyError(f"{where}: expected shape {expected.shape}, got {got.shape}")
    with np.errstate(invalid="ignore"):
        excess = np.abs(got - expected) - (atol + rtol * np.abs(expected))
    excess = np.where(got == expected, -1.0, np.where(np.isnan(excess), np.inf, excess))
    wrong = int(np.count_nonzero(excess > 0))
    if wrong:
        index = tuple(int(i) for i in np.unravel_index(np.argmax(excess), excess.shape))
        is_nan = np.isnan(expected[index]) and np.isnan(got[index])
        wanted = "no NaN" if is_nan else f"{expected[index]:.9g}"
        raise PropertyError(
            f"{where}{list(index)}: expected {wanted}, got {got[index]:.9g} "
            f"({wrong} of {got.size} elements differ)"
        )
