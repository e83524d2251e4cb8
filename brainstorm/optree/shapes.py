"""Shape rules: the shape of a node from those of its operands, and its options in normal form.

A rule is called with the operands' shapes and the options of the node. It returns the shape of
the result and the options as they are stored: axes as sorted tuples of non-negative numbers,
indices as start, step and length. If shapes do not fit it raises `ValidationError` with the
expected shapes and a remedy; the caller adds the operands and the tree.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import ValidationError

Shape: TypeAlias = tuple[int, ...]
Params: TypeAlias = Mapping[str, Any]
ShapeAndParams: TypeAlias = tuple[Shape, dict[str, Any]]
Axis: TypeAlias = int | tuple[int, ...] | None

SHAPE_EXPECTED = "expected a shape of integers, got "
BROADCAST_RULE = (
    "expected shapes that broadcast: on every axis, counted from the last, equal lengths or 1. "
    "Reshape or transpose an operand; a reduction keeps its axis unless keepdims=False"
)


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all `shapes` broadcast to, as NumPy does."""
    longest = max(shapes, key=len)
    if all(shape == longest or not shape for shape in shapes):
        return longest
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValidationError(BROADCAST_RULE) from None


def _integers(given: Any, complaint: str) -> tuple[int, ...]:
    """Return one or several integers as a tuple."""
    try:
        return (operator.index(given),)
    except TypeError:
        pass
    try:
        return tuple(operator.index(n) for n in given)
    except TypeError:
        raise ValidationError(f"{complaint}{given!r}") from None


def normalize_axes(axis: Axis | Iterable[int], rank: int) -> tuple[int, ...]:
    """Return `axis` (int, several, negative, or None for all) as a sorted tuple."""
    if axis is None:
        return tuple(range(rank))
    numbers = _integers(axis, "expected axis to be integers or None, got axis=")
    if numbers and not rank:
        raise ValidationError(f"expected an operand with axes, got a scalar and axis={axis!r}")
    if any(not -rank <= a < rank for a in numbers):
        raise ValidationError(f"expected axes from {-rank} to {rank - 1}, got axis={axis!r}")
    result = tuple(sorted(a % rank for a in numbers))
    if len(set(result)) < len(result):
        raise ValidationError(f"expected each axis once, got axis={axis!r}")
    return result


def normalize_axis(axis: int, rank: int) -> int:
    """Return one `axis`, which may be negative, as a non-negative number."""
    axes = normalize_axes(axis, rank)
    if len(axes) != 1:
        raise ValidationError(f"expected one axis, got axis={axis!r}")
    return axes[0]


def kept_shape(shape: Shape, axes: tuple[int, ...]) -> Shape:
    """Return `shape` with length 1 on `axes`."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def normalize_shape(shape: Any) -> Shape:
    """Return `shape` (an int or several, none negative) as a tuple."""
    result = _integers(shape, SHAPE_EXPECTED)
    if any(n < 0 for n in result):
        raise ValidationError(f"expected a shape without negative lengths, got {shape!r}")
    return result


def real_type(dtype: Any, name: object = None) -> np.dtype[Any]:
    """Return the type of the elements (of `name`), which are real numbers."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind not in "fiub":
        of = "" if name is None else f" of {name}"
        got = repr(dtype) if found is None else found
        raise ValidationError(f"expected a dtype{of} of real numbers, got {got}")
    return found


# -- rules -----------------------------------------------------------------------------------


def elementwise(*shapes: Shape) -> ShapeAndParams:
    """All operands are broadcast together."""
    return broadcast_shapes(*shapes), {}


def reduction(x: Shape, axis: Axis = None, keepdims: bool = True) -> ShapeAndParams:
    """The axes (by default all) get length 1, or are removed without `keepdims`."""
    axes = normalize_axes(axis, len(x))
    if keepdims:
        shape = kept_shape(x, axes)
    else:
        shape = tuple(n for i, n in enumerate(x) if i not in axes)
    return shape, {"axis": axes, "keepdims": bool(keepdims)}


def nonempty_reduction(x: Shape, axis: Axis = None, keepdims: bool = True) -> ShapeAndParams:
    """A reduction that is undefined for no elements."""
    shape, params = reduction(x, axis, keepdims)
    if any(x[a] == 0 for a in params["axis"]):
        raise ValidationError("expected at least one element on the reduced axes")
    return shape, params


def along_axes(x: Shape, axis: Axis = -1) -> ShapeAndParams:
    """The shape is unchanged; the axes, which have elements, are normalised together."""
    _, params = nonempty_reduction(x, axis)
    return x, {"axis": params["axis"]}


def along_axis(x: Shape, axis: int = -1) -> ShapeAndParams:
    """The shape is unchanged; a scan runs along one axis."""
    return x, {"axis": normalize_axis(axis, len(x))}


def cross_entropy(x: Shape, t: Shape, axis: Axis = -1, keepdims: bool = True) -> ShapeAndParams:
    """Two operands of one shape, reduced."""
    if x != t:
        raise ValidationError("expected logits and target probabilities of one shape")
    return nonempty_reduction(x, axis, keepdims)


def product(x: Shape, y: Shape) -> ShapeAndParams:
    """(..., m, k) times (..., k, n) gives (..., m, n); the axes before these broadcast."""
    if len(x) < 2 or len(y) < 2:
        raise ValidationError("expected operands of rank 2 or more. Reshape vectors to matrices")
    if x[-1] != y[-2]:
        raise ValidationError("expected (..., m, k) and (..., k, n). Transpose an operand")
    return (*broadcast_shapes(x[:-2], y[:-2]), x[-2], y[-1]), {}


def transpose(x: Shape, axes: tuple[int, ...] | None = None) -> ShapeAndParams:
    """Axis i of the result is axis ``axes[i]`` of the operand; None reverses them."""
    rank = len(x)
    order: Iterable[int] = range(rank - 1, -1, -1)
    if axes is not None:
        order = _integers(axes, "expected the axes as integers, got axes=")
    result = tuple(normalize_axis(a, rank) for a in order)
    if len(result) != rank or len(set(result)) != rank:
        raise ValidationError(f"expected each of the {rank} axes once, got axes={axes!r}")
    return tuple(x[a] for a in result), {"axes": result}


def reshape(x: Shape, shape: Any) -> ShapeAndParams:
    """The same elements in another shape; one length may be -1."""
    lengths = list(_integers(shape, SHAPE_EXPECTED))
    if lengths.count(-1) == 1:
        known = math.prod(n for n in lengths if n != -1)
        lengths[lengths.index(-1)] = math.prod(x) // known if known else 0
    result = normalize_shape(lengths)
    if math.prod(result) != math.prod(x):
        raise ValidationError(f"expected a shape of {math.prod(x)} elements, got {shape!r}")
    return result, {}


def broadcast(x: Shape, shape: Any) -> ShapeAndParams:
    """The operand is repeated along axes of length 1 and new leading axes."""
    result = normalize_shape(shape)
    if broadcast_shapes(x, result) != result:
        raise ValidationError(f"expected a shape that the operand broadcasts to, got {shape!r}")
    return result, {}


def full(shape: Any, value: float, dtype: Any = "float32") -> ShapeAndParams:
    """One number everywhere."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValidationError(f"expected a number as value, got {type(value).__name__}") from None
    return normalize_shape(shape), {"value": number, "dtype": real_type(dtype).name}


def concatenate(*shapes: Shape, axis: int = -1) -> ShapeAndParams:
    """Operands of equal shapes, except on the axis of concatenation."""
    if not shapes:
        raise ValidationError("expected at least one operand")
    at = normalize_axis(axis, len(shapes[0]))
    rest = {shape[:at] + shape[at + 1 :] if len(shape) > at else None for shape in shapes}
    if len(rest) > 1:
        raise ValidationError(f"expected equal lengths on every axis but axis {at}")
    length = sum(shape[at] for shape in shapes)
    return (*shapes[0][:at], length, *shapes[0][at + 1 :]), {"axis": at}


def sliced(
    x: Shape, start: tuple[int, ...], step: tuple[int, ...], length: tuple[int, ...]
) -> ShapeAndParams:
    """Elements ``start + i * step`` for i < length, on every axis."""
    if not len(x) == len(start) == len(step) == len(length):
        raise ValidationError("expected one start, step and length per axis")
    for n, first, stride, count in zip(x, start, step, length, strict=True):
        if count and not (0 <= first < n and 0 <= first + (count - 1) * stride < n):
            raise ValidationError("expected a slice inside of the operand")
    return length, {"start": start, "step": step, "length": length}


def embed(
    x: Shape, start: tuple[int, ...], step: tuple[int, ...], size: tuple[int, ...]
) -> ShapeAndParams:
    """The adjoint of a slice: zeros of shape `size` with the operand in the slice's position."""
    sliced(size, start, step, x)
    return size, {"start": start, "step": step, "size": size}


def take(x: Shape, indices: Shape, axis: int = 0) -> ShapeAndParams:
    """The axis is replaced by the axes of the indices."""
    at = normalize_axis(axis, len(x))
    return x[:at] + indices + x[at + 1 :], {"axis": at}


def put(values: Shape, indices: Shape, axis: int, size: int) -> ShapeAndParams:
    """The adjoint of `take`: the axes of the indices are replaced by one of length `size`."""
    at = normalize_axis(axis, len(values) - len(indices) + 1)
    end = at + len(indices)
    if values[at:end] != indices:
        raise ValidationError(f"expected values with the indices' shape from axis {at} on")
    (length,) = normalize_shape(size)
    return (*values[:at], length, *values[end:]), {"axis": at, "size": length}


def gather(x: Shape, indices: Shape, axis: int = -1) -> ShapeAndParams:
    """The indices have the operand's shape, except on the axis."""
    at = normalize_axis(axis, len(x))
    if kept_shape(x, (at,)) != kept_shape(indices, (at,)):
        raise ValidationError(f"expected indices of the operand's shape but for axis {at}")
    return indices, {"axis": at}


def scatter(values: Shape, indices: Shape, axis: int, size: int) -> ShapeAndParams:
    """The adjoint of `gather`: values and indices of one shape, the axis gets length `size`."""
    at = normalize_axis(axis, len(values))
    if values != indices:
        raise ValidationError("expected values and indices of one shape")
    (length,) = normalize_shape(size)
    return (*values[:at], length, *values[at + 1 :]), {"axis": at, "size": length}


def onehot(indices: Shape, axis: int, size: int) -> ShapeAndParams:
    """The axis of length 1 becomes `size` classes long."""
    at = normalize_axis(axis, len(indices))
    if indices[at] != 1:
        raise ValidationError(f"expected indices of length 1 on axis {at}. Reshape them")
    (length,) = normalize_shape(size)
    return (*indices[:at], length, *indices[at + 1 :]), {"axis": at, "size": length}


def normalize_index(index: Any, shape: Shape) -> tuple[dict[str, Shape], Shape]:
    """Convert an index (between ``[ ]``) to the options of a slice and the final shape.

    Args:
        index: An int, slice, ``...``, None (new axis of length 1), or a tuple of them.
        shape: The shape of the indexed operand.

    Returns:
        ``{'start', 'step', 'length'}``, one entry per axis, and the shape of the result, from
        which axes indexed by an int are removed.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    gaps = [i for i, part in enumerate(parts) if part is Ellipsis]
    missing = len(shape) - sum(part is not None and part is not Ellipsis for part in parts)
    if missing < 0 or len(gaps) > 1:
        raise ValidationError(f"expected at most {len(shape)} indices and one '...'")
    at = gaps[0] if gaps else len(parts)
    parts[at : at + len(gaps)] = [slice(None)] * missing
    start, step, length, result = [], [], [], []
    lengths = iter(shape)
    for part in parts:
        if part is None:
            result.append(1)
            continue
        n = next(lengths)
        if isinstance(part, slice):
            try:
                steps = range(n)[part]
            except (TypeError, ValueError) as error:
                raise ValidationError(f"expected a slice of integers: {error}") from None
            start.append(steps.start)
            step.append(steps.step)
            length.append(len(steps))
            result.append(len(steps))
        elif hasattr(part, "__index__") and not isinstance(part, bool):
            if not -n <= part < n:
                raise ValidationError(f"expected an index from {-n} to {n - 1}, got {part}")
            start.append(part % n)
            step.append(1)
            length.append(1)
        else:
            raise ValidationError(
                f"expected int, slice, None or '...' as index, got {type(part).__name__}. "
                "Several indices are an array of integers"
            )
    options = {"start": tuple(start), "step": tuple(step), "length": tuple(length)}
    return options, tuple(result)


def region(start: Shape, step: Shape, length: Shape) -> tuple[slice, ...]:
    """Return the index of elements ``start + i * step`` for i < length, as slices."""
    ends = (a + n * s for a, s, n in zip(start, step, length, strict=True))
    return tuple(
        slice(a, e if e >= 0 else None, s) if n else slice(0)
        for a, s, n, e in zip(start, step, length, ends, strict=True)
    )
