"""Constraints on layer options: declared on the class, checked when a layer is created.

    expected_kwargs = {"size": integer(minimum=1), "activation": activation()}

Each constraint has a text about accepted values, from which the error messages are generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable
from numbers import Integral
from typing import Any

import numpy as np

from brainstorm.handlers.argument_kinds import sides
from brainstorm.handlers.base_handler import Handler


class Constraint:
    """A test of an option's value, and its description.

    Args:
        expected: The accepted values, as text after "expected"; or a function that returns it.
        accepts: Returns whether a value is accepted.
        is_required: Whether the option must be given.
    """

    def __init__(
        self,
        expected: str | Callable[[], str],
        accepts: Callable[[Any], bool],
        is_required: bool = False,
    ) -> None:
        self._expected = expected
        self.accepts = accepts
        self.is_required = is_required

    def __repr__(self) -> str:
        return f"<option: {self.expected}>"

    @property
    def expected(self) -> str:
        """The accepted values, as text."""
        return self._expected if isinstance(self._expected, str) else self._expected()

    def or_none(self) -> Constraint:
        """Return the constraint that accepts `None` too."""
        return Constraint(
            lambda: f"{self.expected} or None", lambda v: v is None or self.accepts(v)
        )

    def required(self) -> Constraint:
        """Return the constraint for an option that has no default."""
        return Constraint(self._expected, self.accepts, is_required=True)


def _is_int(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_among(value: Any, choices: Container[Any]) -> bool:
    """Return whether it equals a choice; false for arrays, which compare by element."""
    return isinstance(value, Hashable) and value in choices


def on_each_axis(value: Any, count: int) -> tuple[Any, ...]:
    """Return the numbers for `count` axes, for an option that may be one number for all."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * count


def _are_ints(value: Any, count: int, minimum: int) -> bool:
    numbers = on_each_axis(value, count)
    return len(numbers) == count and all(_is_int(item) and item >= minimum for item in numbers)


def any_value() -> Constraint:
    """Anything; the layer's ``setup`` checks it."""
    return Constraint("any value", lambda value: True)


def integer(minimum: int | None = None) -> Constraint:
    """A whole number, at least `minimum`."""
    expected = "an int" if minimum is None else f"an int >= {minimum}"
    return Constraint(expected, lambda v: _is_int(v) and (minimum is None or v >= minimum))


def number(
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    high_open: bool = False,
) -> Constraint:
    """A finite number in an interval, whose ends are included unless they are open."""
    below = f"{'(' if low_open or low is None else '['}{'-inf' if low is None else low}"
    above = f"{'inf' if high is None else high}{')' if high_open or high is None else ']'}"
    interval = "" if low is None and high is None else f" in {below}, {above}"

    def accepts(v: Any) -> bool:
        if not isinstance(v, (int, float, np.integer, np.floating)) or isinstance(v, bool):
            return False
        try:
            value = float(v)
        except OverflowError:  # an int with hundreds of digits
            return False
        above_low = low is None or (value > low if low_open else value >= low)
        below_high = high is None or (value < high if high_open else value <= high)
        return math.isfinite(value) and above_low and below_high

    return Constraint(f"a number{interval}", accepts)


def one_of(*choices: Any) -> Constraint:
    """One of the listed values."""
    return Constraint(f"one of {', '.join(map(repr, choices))}", lambda v: _is_among(v, choices))


def shape() -> Constraint:
    """A positive int or a non-empty tuple of positive ints."""

    def accepts(v: Any) -> bool:
        sizes = v if isinstance(v, (tuple, list)) else (v,)
        return len(sizes) > 0 and all(_is_int(size) and size > 0 for size in sizes)

    return Constraint("a positive int or a tuple of positive ints", accepts)


def per_axis(axes: int, minimum: int) -> Constraint:
    """An int for each of one to three axes of images, or one for all, each at least `minimum`."""
    if axes == 1:
        return integer(minimum)
    several = {2: "two of them (rows, columns)", 3: "three of them (depth, rows, columns)"}
    expected = f"an int >= {minimum} or {several[axes]}"
    return Constraint(expected, lambda v: _are_ints(v, axes, minimum))


def margin(axes: int) -> Constraint:
    """Cells around images with `axes` axes: an int for all sides, or one entry for each axis."""
    if axes == 1:
        expected = "an int >= 0 or two of them (before, after)"
        return Constraint(expected, lambda v: _are_ints(v, 2, 0))
    expected = f"an int >= 0, or for each of {axes} axes one or two of them (before, after)"

    def accepts(v: Any) -> bool:
        items = on_each_axis(v, axes)
        return len(items) == axes and all(_are_ints(item, 2, 0) for item in items)

    return Constraint(expected, accepts)


def padded_sides(value: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """Return (before, after) for each axis, from an option that `margin` accepts."""
    return sides((value,) if axes == 1 else value, axes)


def activation() -> Constraint:
    """The name of an activation function, built-in or registered before the layer is created."""
    return Constraint(
        lambda: one_of(*Handler.activations).expected, lambda v: _is_among(v, Handler.activations)
    )
