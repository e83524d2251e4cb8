"""The NumPy functions of the operator table that are no ufuncs.

Each writes its result into ``out``. The element-wise ones compute in the type of `out` and allow
`out` to be one of the inputs; NaN and infinity propagate as in NumPy's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.utils import Array

Axes = tuple[int, ...]

#: safelog's floor: ln(max(x, e^-50)).
SMALLEST = math.exp(-50.0)
LN2 = math.log(2.0)

# W. J. Cody, Rational Chebyshev approximation for the error function (1969).
_ERF_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2,
     3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip
_ERFC_LARGE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0,
     6.61191906371416295e1, 2.98635138197400131e2, 8.81952221241769090e2,
     1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2,
     1.62138957456669019e3, 3.29079923573345963e3, 4.36261909014324716e3,
     3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: Array) -> Array:
    above, below = coefficients
    return np.polyval(above, x) / np.polyval(below, x)


def erf(x: Array, *, out: Array) -> None:
    """The error function, to 1e-15."""
    a = np.abs(x)
    small = a * _ratio(_ERF_SMALL, a * a)
    large = 1 - np.exp(-a * a) * _ratio(_ERFC_LARGE, np.minimum(a, 6.0))
    np.copyto(out, np.copysign(np.where(a < 0.5, small, large), x))


def sigmoid(x: Array, *, out: Array) -> None:
    """1 / (1 + e^-x)."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def sigmoid2(x: Array, *, out: Array) -> None:
    """1 / (1 + 2^-x)."""
    np.negative(x, out=out)
    np.exp2(out, out=out)
    np.add(out, 1, out=out)
    np.reciprocal(out, out=out)


def tanh2(x: Array, *, out: Array) -> None:
    """(2^2x - 1) / (2^2x + 1) without overflow."""
    np.multiply(x, LN2, out=out)
    np.tanh(out, out=out)


def safelog(x: Array, *, out: Array) -> None:
    """ln(max(x, e^-50))."""
    np.maximum(x, SMALLEST, out=out)
    np.log(out, out=out)


def softplus(x: Array, *, out: Array) -> None:
    """ln(1 + e^x) without overflow."""
    np.logaddexp(x, 0, out=out)


def binarize(x: Array, *, out: Array) -> None:
    """1 where x >= 0, -1 where x < 0."""
    np.sign(x, out=out)
    np.copyto(out, 1, where=np.equal(out, 0))


def where(condition: Array, x: Array, y: Array, *, out: Array) -> None:
    """X where the condition is not 0, y elsewhere."""
    np.copyto(out, np.where(np.not_equal(condition, 0), x, y), casting="same_kind")


# -- reductions ------------------------------------------------------------------------------


def sum_(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
    """The sum over the axes."""
    np.sum(x, axis=axis, keepdims=keepdims, out=out)


def max_(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
    """The largest element."""
    np.max(x, axis=axis, keepdims=keepdims, out=out)


def min_(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
    """The smallest element."""
    np.min(x, axis=axis, keepdims=keepdims, out=out)


def index_of(function: Callable[..., Array]) -> Callable[..., None]:
    """Make argmax or argmin over any axes: an index into them, flattened in C order."""

    def write(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
        rest = [i for i in range(x.ndim) if i not in axis]
        flat = x.transpose(*rest, *axis).reshape(*(x.shape[i] for i in rest), -1)
        np.copyto(out, function(flat, axis=-1).reshape(out.shape), casting="unsafe")

    return write


def _shifted(x: Array, axis: Axes) -> tuple[Array, Array]:
    """Return e^(x - m) and m, the largest finite number of x."""
    m = np.max(x, axis=axis, keepdims=True)
    m = np.where(np.isfinite(m), m, 0).astype(x.dtype)
    return np.exp(x - m), m


def logsumexp(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
    """ln(sum e^x) without overflow."""
    e, m = _shifted(x, axis)
    np.copyto(out, (np.log(e.sum(axis=axis, keepdims=True)) + m).reshape(out.shape))


def softmax(x: Array, *, out: Array, axis: Axes) -> None:
    """e^x / sum e^x without overflow."""
    e, _ = _shifted(x, axis)
    np.divide(e, e.sum(axis=axis, keepdims=True), out=out)


def log_softmax(x: Array, *, out: Array, axis: Axes) -> None:
    """The logarithm of `softmax`, exact also where that is 0."""
    e, m = _shifted(x, axis)
    np.subtract(x - m, np.log(e.sum(axis=axis, keepdims=True)), out=out)


def cross_entropy(logits: Array, target: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
    """-sum(target * log_softmax(logits))."""
    scratch = np.empty_like(logits)
    log_softmax(logits, out=scratch, axis=axis)
    np.multiply(scratch, target, out=scratch)
    np.negative(scratch.sum(axis=axis, keepdims=keepdims), out=out)


# -- indexing --------------------------------------------------------------------------------


def _checked(indices: Array, size: int) -> Array:
    numbers = np.asarray(indices).astype(np.intp)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < size:
        raise ValidationError(
            f"op-tree: expected indices from 0 to {size - 1}, got {numbers.min()} to "
            f"{numbers.max()}."
        )
    return numbers


def take(x: Array, indices: Array, *, out: Array, axis: int) -> None:
    """The slices of x at the indices."""
    np.copyto(out, np.take(x, _checked(indices, x.shape[axis]), axis=axis))


def put(values: Array, indices: Array, *, out: Array, axis: int, size: int) -> None:
    """Add the slices of `values` to zeros, at the indices."""
    out.fill(0)
    numbers = _checked(indices, size)
    ahead = (slice(None),) * axis
    np.add.at(out, (*ahead, numbers), values)


def gather(x: Array, indices: Array, *, out: Array, axis: int) -> None:
    """One element of x per index, along the axis."""
    np.copyto(out, np.take_along_axis(x, _checked(indices, x.shape[axis]), axis=axis))


def scatter(values: Array, indices: Array, *, out: Array, axis: int, size: int) -> None:
    """Add the values to zeros, each at its index along the axis."""
    out.fill(0)
    places: list[Array] = list(np.indices(values.shape, sparse=True))
    places[axis] = _checked(indices, size)
    np.add.at(out, tuple(places), values)


def onehot(indices: Array, *, out: Array, axis: int, size: int) -> None:
    """1 at the index, 0 elsewhere."""
    classes = np.arange(size).reshape(-1, *(1,) * (out.ndim - axis - 1))
    np.equal(_checked(indices, size), classes, out=out)


# -- structure -------------------------------------------------------------------------------


def full(*, out: Array, value: float, dtype: str) -> None:
    """One number everywhere."""
    out.fill(value)


def transpose(x: Array, *, out: Array, axes: Axes) -> None:
    """The axes in another order."""
    np.copyto(out, x.transpose(axes))


def reshape(x: Array, *, out: Array) -> None:
    """The elements in another shape."""
    np.copyto(out, x.reshape(out.shape))


def broadcast(x: Array, *, out: Array) -> None:
    """The elements, repeated."""
    np.copyto(out, x)


def concatenate(*parts: Array, out: Array, axis: int) -> None:
    """The parts one after the other."""
    np.concatenate(parts, axis=axis, out=out)


def _region(start: Axes, step: Axes, length: Axes) -> tuple[slice, ...]:
    ends = (a + n * s for a, s, n in zip(start, step, length, strict=True))
    return tuple(
        slice(a, e if e >= 0 else None, s) if n else slice(0)
        for a, e, s, n in zip(start, ends, step, length, strict=True)
    )


def slice_(x: Array, *, out: Array, start: Axes, step: Axes, length: Axes) -> None:
    """The elements of the region."""
    np.copyto(out, x[_region(start, step, length)])


def embed(x: Array, *, out: Array, start: Axes, step: Axes, size: Axes) -> None:
    """Zeros, with x in the region."""
    out.fill(0)
    out[_region(start, step, x.shape)] = x
