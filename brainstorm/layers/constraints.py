"""Constraints on layer options: declared on the class, checked when a layer is created.

    expected_kwargs = {"size": integer(minimum=1), "activation": activation()}

Those that are not special to layers are in `brainstorm.constraints`.
"""

from __future__ import annotations

from typing import Any

from brainstorm.constraints import Constraint, integer, is_among, is_int, number, one_of
from brainstorm.handlers.argument_kinds import sides
from brainstorm.handlers.base_handler import Handler

__all__ = [
    "Constraint", "activation", "any_value", "integer", "margin", "number", "on_each_axis",
    "one_of", "padded_sides", "per_axis", "shape",
]  # fmt: skip


def on_each_axis(value: Any, count: int) -> tuple[Any, ...]:
    """Return the numbers for `count` axes, for an option that may be one number for all."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * count


#: Numbers of cells are smaller, so that products of them fit into 64 bits.
MOST_CELLS = 2**31


def _are_ints(value: Any, count: int, minimum: int) -> bool:
    numbers = on_each_axis(value, count)
    fit = (is_int(item) and minimum <= item < MOST_CELLS for item in numbers)
    return len(numbers) == count and all(fit)


def any_value() -> Constraint:
    """Anything; the layer's ``setup`` checks it."""
    return Constraint("any value", lambda value: True)


def shape() -> Constraint:
    """A positive int or a non-empty tuple of positive ints."""

    def accepts(v: Any) -> bool:
        sizes = v if isinstance(v, (tuple, list)) else (v,)
        return len(sizes) > 0 and all(is_int(size) and size > 0 for size in sizes)

    return Constraint("a positive int or a tuple of positive ints", accepts)


def per_axis(axes: int, minimum: int) -> Constraint:
    """An int for each of one to three axes of images, or one for all, each at least `minimum`."""
    several = {2: " or two of them (rows, columns)", 3: " or three of them (depth, rows, columns)"}
    expected = f"an int >= {minimum}{several.get(axes, '')}"
    return Constraint(expected, lambda v: _are_ints(v, axes, minimum) and (axes > 1 or is_int(v)))


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
        lambda: one_of(*Handler.activations).expected, lambda v: is_among(v, Handler.activations)
    )
