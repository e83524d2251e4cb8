"""The NumPy functions of the operator table that are not ufuncs.

Each writes its result into ``out``. The element-wise ones compute in the type of `out` and allow
`out` to be one of the inputs; NaN and infinity propagate as in NumPy's own functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.optree.shapes import region
from brainstorm.utils import Array

Axes = tuple[int, ...]

#: safelog's floor: ln(max(x, e^-50)).
SMALLEST = math.exp(-50.0)

# W. J. Cody, Rational Chebyshev approximation for the error function (1969).
_ERF_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2,
     3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3,
     2.84423683343917062e3),
)  # fmt: skip

#: Chebyshev coefficients of (1 + 2z) exp(z^2) erfc(z) for z >= 0, as a function of
#: (z - 3.75) / (z + 3.75). Source of the form: M. M. Shepherd and J. G. Laframboise, "Chebyshev
#: Approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", Math. Comp. 36 (1981). The
#: coefficients were computed with 50 digits; the next one is 7e-17.
_ERFC = (
    1.1775789345674017541, -0.0045900545806464773309, -0.084249133366517915584,
    0.059209939998191890498, -0.026658668435305752277, 0.0090749976707050652939,
    -0.0024131635404176081909, 0.00049077583652580863229, -0.000069169733025012063671,
    4.1390279860730101675e-6, 7.7403830661984906686e-7, -2.1886401049234395661e-7,
    1.0764999465670910377e-8, 4.5219598112182868979e-9, -7.7544002088313511065e-10,
    -6.3180883408866844944e-11, 2.8687950109306698981e-11, 1.945586854577734723e-13,
    -9.6546967484334389059e-13, 3.2525481481487398415e-14, 3.3478119482868053878e-14,
    -1.8645628804193131015e-15, -1.2507950530688647085e-15,
)  # fmt: skip
#: The same as coefficients of powers; the omitted terms are too small for float32.
ERFC_POWERS, ERFC_POWERS_FLOAT = (
    tuple(np.polynomial.chebyshev.cheb2poly(_ERFC[:terms]).tolist()) for terms in (None, 12)
)
#: The constant of the variable, and the z above which erfc is zero in every type.
ERFC_CENTRE, ERFC_ENDS = 3.75, 28.0


def erf(x: Array, *, out: Array) -> None:
    """Write the error function, with an error of 1e-15."""
    a = np.abs(x)
    above, below = (np.polyval(coefficients, a * a) for coefficients in _ERF_SMALL)
    z = np.minimum(a, ERFC_ENDS)
    t = (z - ERFC_CENTRE) / (z + ERFC_CENTRE)
    erfc = np.polynomial.chebyshev.chebval(t, _ERFC) * np.exp(-z * z) / (1 + 2 * z)
    np.copyto(out, np.copysign(np.where(a < 0.5, a * (above / below), 1 - erfc), x))


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # where the function of C gives infinity
        return math.inf


def lgamma(x: Array, *, out: Array) -> None:
    """Write the logarithm of the absolute value of the gamma function."""
    np.copyto(out, np.vectorize(_log_gamma, otypes=[np.float64])(x), casting="unsafe")


def binarize(x: Array, *, out: Array) -> None:
    """Write 1 where x >= 0, -1 where x < 0."""
    np.sign(x, out=out)
    np.copyto(out, 1, where=np.equal(out, 0))


def where(condition: Array, x: Array, y: Array, *, out: Array) -> None:
    """Write x where the condition is not 0, y elsewhere."""
    mask = np.asarray(condition, bool)
    if out is x:
        np.copyto(out, y, where=~mask)
    else:
        np.copyto(out, y)
        np.copyto(out, x, where=mask)


# -- reductions ------------------------------------------------------------------------------


def index_of(function: Callable[..., Array]) -> Callable[..., None]:
    """Return argmax or argmin over any axes: an index into them, flattened in C order."""

    def write(x: Array, *, out: Array, axis: Axes, keepdims: bool) -> None:
        rest = [i for i in range(x.ndim) if i not in axis]
        length = math.prod(x.shape[i] for i in axis)
        flat = x.transpose(*rest, *axis).reshape(*(x.shape[i] for i in rest), length)
        np.copyto(out, function(flat, axis=-1).reshape(out.shape), casting="unsafe")

    return write


def cumsum(x: Array, *, out: Array, axis: int) -> None:
    """Write the cumulative sums, added in float64 or 64-bit integers."""
    np.cumsum(x, axis, dtype=np.float64 if out.dtype.kind == "f" else out.dtype, out=out)


# -- indexing --------------------------------------------------------------------------------


def _checked(indices: Array, size: int, lowest: int | None = None) -> Array:
    """Return indices as integers from 0 on, if they are valid for an axis of this length."""
    with np.errstate(invalid="ignore"):
        numbers = np.asarray(indices).astype(np.intp, copy=False)
    lowest = -size if lowest is None else lowest
    if numbers.dtype != indices.dtype and not (numbers == indices).all():
        at = tuple(np.argwhere(numbers != indices)[0].tolist())
        raise HandlerValidationError(
            f"op-tree: expected indices of shape {numbers.shape} to be whole numbers from {lowest} "
            f"to {size - 1}, got {indices[at]} at index {at}."
        )
    if not numbers.size:
        return numbers
    if not lowest <= numbers.min() <= numbers.max() < size:
        raise HandlerValidationError(
            f"op-tree: expected indices from {lowest} to {size - 1}, got {numbers.min()} to "
            f"{numbers.max()}."
        )
    return numbers if numbers.min() >= 0 else np.where(numbers < 0, numbers + size, numbers)


def take(x: Array, indices: Array, *, out: Array, axis: int) -> None:
    """Write the slices of x at the indices."""
    numbers = _checked(indices, x.shape[axis])
    if out.size:  # an empty axis has no elements to take
        np.take(x, numbers, axis=axis, out=out, mode="clip")


def put(values: Array, indices: Array, *, out: Array, axis: int, size: int) -> None:
    """Add the slices of `values` to zeros, at the indices."""
    out.fill(0)
    numbers = _checked(indices, size)
    ahead = (slice(None),) * axis
    np.add.at(out, (*ahead, numbers), values)


def gather(x: Array, indices: Array, *, out: Array, axis: int) -> None:
    """Write one element of x per index, along the axis."""
    np.copyto(out, np.take_along_axis(x, _checked(indices, x.shape[axis]), axis=axis))


def scatter(values: Array, indices: Array, *, out: Array, axis: int, size: int) -> None:
    """Add the values to zeros, each at its index along the axis."""
    out.fill(0)
    places: list[Array] = list(np.indices(values.shape, sparse=True))
    places[axis] = _checked(indices, size)
    np.add.at(out, tuple(places), values)


def onehot(indices: Array, *, out: Array, axis: int, size: int) -> None:
    """Write 1 at the index, 0 elsewhere."""
    classes = np.arange(size).reshape(-1, *(1,) * (out.ndim - axis - 1))
    np.equal(_checked(indices, size, lowest=0), classes, out=out)


# -- structure -------------------------------------------------------------------------------


def full(*, out: Array, value: float, dtype: str) -> None:
    """Write one number everywhere."""
    out.fill(value)


def concatenate(*parts: Array, out: Array, axis: int) -> None:
    """Write the parts one after the other."""
    np.concatenate(parts, axis=axis, out=out)


def embed(x: Array, *, out: Array, start: Axes, step: Axes, size: Axes) -> None:
    """Write zeros, with x in the region."""
    out.fill(0)
    out[region(start, step, x.shape)] = x
