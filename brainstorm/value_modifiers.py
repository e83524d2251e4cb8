"""Modifiers: small changes to parameters or gradients at each update of a network.

A `ValueModifier` changes one array in place: a parameter after an update, or a gradient before
it. A `GradientModifier` changes a gradient depending on its parameter. Both use only handler
operations; further arrays are allocated once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from brainstorm.constraints import number
from brainstorm.errors import NetworkValidationError, ValidationError, shown
from brainstorm.handlers.traces import Traceable
from brainstorm.optree import functions as fn
from brainstorm.optree.formula import formula
from brainstorm.randomness import Seedable
from brainstorm.utils import Array

__all__ = [
    "ClipValues",
    "ConstrainL2Norm",
    "FreezeValues",
    "GradientModifier",
    "L1Decay",
    "L2Decay",
    "MaskValues",
    "ValueModifier",
    "apply_to_gradient",
    "check_gradient_modifier",
    "check_weight_modifier",
    "limit_norm",
]

#: A handler of any kind.
Handler = Any


class _Held(NamedTuple):
    """An array on a handler, and its content; copies, for other parameters, hold none."""

    handler: Handler = None
    content: np.ndarray | None = None
    array: Array = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Held, ()


class _Modifier(Traceable, Seedable):
    """Common base of both kinds of modifiers.

    Attributes:
        layer_name: The layer whose parameter or gradient is modified; set by the network.
        view_name: The name of the parameter.
        rnd: Source of random numbers.
    """

    __undescribed__: Any = {"_held"}

    layer_name: str | None = None
    view_name: str | None = None
    _held = _Held()

    def __init__(self) -> None:
        super().__init__()

    def _array_on(self, handler: Handler, content: np.ndarray) -> Array:
        """Return an array of a handler with the content, the same for the same two objects.

        The content becomes read-only: a change would be ignored.
        """
        if handler is not self._held.handler or content is not self._held.content:
            content.flags.writeable = False
            array = handler.create_from_numpy(np.asarray(content, handler.dtype))
            self._held = _Held(handler, content, array)
        return self._held.array

    def _check(self, fits: bool, what: str) -> None:
        if not fits:
            raise NetworkValidationError(
                f"{type(self).__name__} at '{self.layer_name}.{self.view_name}': {what}"
            )


class ValueModifier(_Modifier):
    """Base of modifiers of one array; a subclass overrides ``__call__``."""

    def start(self, handler: Handler, view: Array) -> None:
        """Read a parameter before the first update of a training."""

    def __call__(self, handler: Handler, view: Array) -> None:
        """Change `view` in place, with operations of `handler`."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


class GradientModifier(_Modifier):
    """Base of modifiers of a gradient that depend on its parameter."""

    def __call__(self, handler: Handler, parameters: Array, gradients: Array) -> None:
        """Change `gradients` in place, with operations of `handler`."""
        raise NotImplementedError(f"{type(self).__name__} does not define __call__")


def apply_to_gradient(
    modifier: ValueModifier | GradientModifier,
    handler: Handler,
    parameters: Array,
    gradients: Array,
) -> None:
    """Change `gradients` in place with a modifier of either kind."""
    if isinstance(modifier, GradientModifier):
        modifier(handler, parameters, gradients)
    else:
        modifier(handler, gradients)


def check_weight_modifier(value: Any) -> ValueModifier:
    """Return `value`, which must be a modifier for parameters.

    Raises:
        NetworkValidationError: It is something else.
    """
    if isinstance(value, ValueModifier):
        return value
    remedy = " Set it with set_gradient_modifiers." if isinstance(value, GradientModifier) else ""
    raise NetworkValidationError(f"expected a ValueModifier, got {shown(value)}.{remedy}")


def check_gradient_modifier(value: Any) -> ValueModifier | GradientModifier:
    """Return `value`, which must be a modifier for gradients.

    Raises:
        NetworkValidationError: It is something else, or keeps the values of a parameter.
    """
    if isinstance(value, FreezeValues) and value.weights is None:
        raise NetworkValidationError(
            "expected a modifier of gradients, got FreezeValues without values, which would keep "
            "the first gradients. Set it with set_weight_modifiers."
        )
    if isinstance(value, (ValueModifier, GradientModifier)):
        return value
    raise NetworkValidationError(
        f"expected a GradientModifier or a ValueModifier, got {shown(value)}."
    )


class ConstrainL2Norm(ValueModifier):
    """Rescale the rows whose Euclidean norm is too large; others stay unchanged, bit for bit.

    A row belongs to one index of the first dimension: the incoming weights of a unit. Arrays with
    one dimension are not changed.

    Args:
        limit: The maximum norm, above 0.
    """

    __constraints__ = {"limit": number(0, low_open=True)}

    is_traceable = True

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def __call__(self, handler: Handler, view: Array) -> None:
        if len(view.shape) > 1:
            handler.compute(_constrained.given(limit=self.limit), [view], [view])


@formula
def within_norm(g: Any, limit: Any) -> Any:
    """Return values, scaled to a norm of `limit` if theirs is larger."""
    return limit_norm(g, limit)


def limit_norm(values: Any, limit: Any, axes: tuple[int, ...] | None = None) -> Any:
    """Return the tree of values, scaled to a norm of `limit` where theirs is larger.

    They are divided by the largest before they are squared: squares could over- or underflow.

    Args:
        values: A tree.
        limit: The largest norm, a number or a tree.
        axes: The axes of each norm; `None`: all.
    """
    largest = fn.maximum(fn.max(fn.absolute(values), axes), np.finfo(np.float32).tiny.item())
    relative = values / largest
    norm = fn.sqrt(fn.sum(fn.square(relative), axes))
    return fn.where(norm * largest <= limit, values, relative * (limit / norm))


@formula
def _constrained(w: Any, *, limit: float) -> Any:
    """Return rows whose norm is at most the limit."""
    return limit_norm(w, limit, tuple(range(1, w.ndim)))


class ClipValues(ValueModifier):
    """Clip values to an interval, by default to [-1, 1].

    ``ClipValues(0, None)`` keeps values positive; ``ClipValues(0)`` limits them to [0, 1].

    Args:
        low: Lower end, or `None`.
        high: Upper end, or `None`.
    """

    is_traceable = True

    def __init__(self, low: float | None = -1.0, high: float | None = 1.0) -> None:
        super().__init__()
        if low is not None and high is not None and not low <= high:
            raise ValidationError(f"ClipValues: expected low <= high, got {low!r} and {high!r}")
        self.low = low
        self.high = high

    def __call__(self, handler: Handler, view: Array) -> None:
        handler.compute(_clipped.given(low=self.low, high=self.high), [view], [view])


@formula
def _clipped(w: Any, *, low: float | None, high: float | None) -> Any:
    """Return values clipped to the interval."""
    w = w if low is None else fn.maximum(w, low)
    return w if high is None else fn.minimum(w, high)


class MaskValues(ValueModifier):
    """Multiply by a constant mask, e.g. to hold some connections at zero.

    Args:
        mask: An array (or nested list) of the shape of the parameter. It is copied; assign another
            one to change it.
    """

    is_traceable = True

    def __init__(self, mask: Array) -> None:
        super().__init__()
        self.mask = mask

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _numbers("MaskValues: mask", value) if name == "mask" else value)

    def __call__(self, handler: Handler, view: Array) -> None:
        self._check(
            self.mask.shape == tuple(view.shape),
            f"expected a mask of shape {tuple(view.shape)}, got {self.mask.shape}",
        )
        handler.mult_tt(view, self._array_on(handler, self.mask), view)


class FreezeValues(ValueModifier):
    """Reset the values to given ones, or to those before the training.

    Args:
        weights: An array (or nested list) of the shape of the parameter, which is copied; `None`:
            the values when a training starts (or goes on, if the modifier was set during it), or
            at the first call by hand.

    Attributes:
        weights: The values; `None` before they are known. They are described, so that a network
            from a file goes on with them.
    """

    __undescribed__ = {"_is_given"}

    is_traceable = True

    _is_given = False

    def __init__(self, weights: Array | None = None) -> None:
        super().__init__()
        self.weights = weights

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weights":
            self._is_given = value is not None
            value = _numbers("FreezeValues: weights", value) if self._is_given else None
        super().__setattr__(name, value)

    def start(self, handler: Handler, view: Array) -> None:
        """Keep the values, unless others are given."""
        if not self._is_given:
            self.weights = handler.get_numpy_copy(view)
            self._is_given = False

    def __call__(self, handler: Handler, view: Array) -> None:
        if self.weights is None:
            self.start(handler, view)
        values = np.asarray(self.weights)
        self._check(
            values.shape == tuple(view.shape),
            f"expected weights of shape {tuple(view.shape)}, got {values.shape}",
        )
        handler.copy_to(self._array_on(handler, values), view)


def _numbers(what: str, values: Any) -> np.ndarray:
    """Return a new array from an array or a nested list."""
    try:
        array = np.array(values, dtype=float)
    except (OverflowError, TypeError, ValueError) as error:
        raise ValidationError(
            f"{what}: expected an array of numbers, with rows of equal length ({error})."
        ) from None
    if not np.isfinite(array).all():
        raise ValidationError(f"{what}: expected finite numbers, got NaN or infinity.")
    return array


class _Decay(GradientModifier):
    """Base of penalties on the size of a parameter."""

    __constraints__ = {"factor": number()}

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor


class L1Decay(_Decay):
    """Pull parameters towards zero at a constant rate: gradient += factor * sign(parameter).

    Args:
        factor: Derivative of the penalty ``factor * sum(abs(w))``.
    """

    is_traceable = True

    def __call__(self, handler: Handler, parameters: Array, gradients: Array) -> None:
        handler.compute(_pull.given(factor=self.factor), [parameters], [gradients], accumulate=True)


@formula
def _pull(w: Any, *, factor: float) -> Any:
    """Return the derivative of ``factor * abs(w)``."""
    return factor * fn.sgn(w)


class L2Decay(_Decay):
    """Pull parameters towards zero in proportion to their size: gradient += factor * parameter.

    Args:
        factor: Factor of the penalty ``factor / 2 * sum(w ** 2)``.
    """

    is_traceable = True

    def __call__(self, handler: Handler, parameters: Array, gradients: Array) -> None:
        handler.mult_add_st(self.factor, parameters, gradients)
