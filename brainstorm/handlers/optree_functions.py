"""Operators in a NumPy form that does not allocate: as views, or with memory that they are given.

The latter take their intermediate memory as arguments behind their operands. Indexing works on
flat positions, which NumPy adds to fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from brainstorm.optree import Step
from brainstorm.optree.numpy_functions import check_indices
from brainstorm.optree.shapes import region
from brainstorm.utils import Array

__all__ = ["Special", "copy", "special", "view_of"]

Shape = tuple[int, ...]


class Special(NamedTuple):
    """How a step is computed.

    Attributes:
        function: ``function(*operands, *memory, out=array)``.
        memory: Shape and dtype of each intermediate array.
        contiguous: The operands that it needs in C order.
        contiguous_out: Whether it needs `out` in C order.
    """

    function: Callable[..., Any]
    memory: tuple[tuple[Shape, Any], ...] = ()
    contiguous: tuple[int, ...] = ()
    contiguous_out: bool = False


def special(step: Step, shapes: Sequence[Shape]) -> Special | None:
    """Return how to compute a step on operands of the given shapes; None: as in the table."""
    make = _TABLE.get(step.operator.name)
    return None if make is None else make(step, shapes)


def view_of(step: Step) -> Callable[[Array], Array]:
    """Return what makes the result of one of `brainstorm.optree.stages.VIEWS` of its operand."""
    name, params, shape = step.operator.name, step.params, step.shape
    if name == "transpose":
        return lambda x: x.transpose(params["axes"])
    if name == "reshape":
        return lambda x: x.reshape(shape)
    if name == "broadcast":
        return lambda x: np.broadcast_to(x, shape)
    index = (*region(**params), ...)
    return lambda x: x[index]


def copy(x: Array, *, out: Array) -> None:
    """The elements, converted to the type of `out`."""
    np.copyto(out, x, casting="unsafe")


def _where(step: Step, shapes: Sequence[Shape]) -> Special:
    def where(condition: Array, x: Array, y: Array, mask: Array, *, out: Array) -> None:
        np.not_equal(condition, 0, out=mask)
        np.copyto(out, y)
        np.copyto(out, x, where=mask)

    return Special(where, ((step.shape, np.dtype(bool)),))


def _index_of(step: Step, shapes: Sequence[Shape]) -> Special:
    function = np.argmax if step.operator.name == "argmax" else np.argmin
    (shape,), axes = shapes, step.params["axis"]
    rest = [i for i in range(len(shape)) if i not in axes]
    kept = tuple(shape[i] for i in rest)
    order = (*rest, *axes)
    turned = tuple(shape[i] for i in order)
    flat = (*kept, math.prod(shape[i] for i in axes))

    def index_of(x: Array, rows: Array, found: Array, *, out: Array) -> None:
        np.copyto(rows, x.transpose(order))
        function(rows.reshape(flat), axis=-1, out=found)
        np.copyto(out, found.reshape(out.shape), casting="unsafe")

    return Special(index_of, ((turned, step.dtype), (kept, np.dtype(np.intp))))


def _sum(step: Step, shapes: Sequence[Shape]) -> Special | None:
    """The sum over the first or the last axes: a product with ones is several times faster."""
    (shape,), axes = shapes, step.params["axis"]
    first, count = (min(axes), len(axes)) if axes else (0, 0)
    if not count or axes != tuple(range(first, first + count)):
        return None
    split = count if first == 0 else first
    rows, columns = math.prod(shape[:split]), math.prod(shape[split:])
    if first > 0 and first + count < len(shape):
        return None
    ones = np.ones(rows if first == 0 else columns, step.dtype)

    def sum_(x: Array, *, out: Array) -> None:
        if not x.flags.c_contiguous:
            step.operator.numpy(x, out=out, **step.params)
            return
        matrix, flat = x.reshape(rows, columns), out.reshape(-1)
        np.matmul(matrix.T if first == 0 else matrix, ones, out=flat)

    return Special(sum_, contiguous_out=True)


def _load_indices(indices: Array, numbers: Array, size: int) -> None:
    np.copyto(numbers, indices, casting="unsafe")
    check_indices(numbers, size)


def _take(step: Step, shapes: Sequence[Shape]) -> Special:
    axis = step.params["axis"]

    def take(x: Array, indices: Array, numbers: Array, *, out: Array) -> None:
        _load_indices(indices, numbers, x.shape[axis])
        if out.size:
            np.take(x, numbers, axis=axis, out=out, mode="clip")

    return Special(take, ((shapes[1], np.dtype(np.intp)),), (0,), True)


def _positions(shape: Shape, indexed: range, strides: Sequence[int]) -> list[Array]:
    """Return what the axes that are not indexed add to an element's flat position."""
    rank = len(shape)
    return [
        (np.arange(shape[j]) * strides[j]).reshape(-1, *(1,) * (rank - j - 1))
        for j in range(rank)
        if j not in indexed
    ]


def _c_strides(shape: Shape) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _flatten(numbers: Array, stride: int, offsets: list[Array], flat: Array) -> None:
    np.multiply(numbers, stride, out=flat)
    for offset in offsets:
        np.add(flat, offset, out=flat)


def _gather(step: Step, shapes: Sequence[Shape]) -> Special:
    axis, (shape, indices_shape) = step.params["axis"], shapes
    strides = _c_strides(shape)
    offsets = _positions(indices_shape, range(axis, axis + 1), strides)

    def gather(x: Array, indices: Array, numbers: Array, *, out: Array) -> None:
        _load_indices(indices, numbers, shape[axis])
        _flatten(numbers, strides[axis], offsets, numbers)
        if out.size:
            np.take(x.reshape(-1), numbers, out=out, mode="clip")

    return Special(gather, ((indices_shape, np.dtype(np.intp)),), (0,), True)


def _add_at(step: Step, shapes: Sequence[Shape]) -> Special:
    """Put (the indices' axes take the place of one) and scatter (one index per element)."""
    axis, size, (shape, indices_shape) = step.params["axis"], step.params["size"], shapes
    count = len(indices_shape) if step.operator.name == "put" else 1
    strides = _c_strides(step.shape)
    aligned = [*strides[:axis], *[0] * count, *strides[axis + 1 :]]
    offsets = _positions(shape, range(axis, axis + count), aligned)
    tail = (1,) * (len(shape) - axis - count) if step.operator.name == "put" else ()

    def add_at(values: Array, indices: Array, numbers: Array, flat: Array, *, out: Array) -> None:
        _load_indices(indices, numbers, size)
        _flatten(numbers.reshape(indices_shape + tail), strides[axis], offsets, flat)
        out.fill(0)
        np.add.at(out.reshape(-1), flat.reshape(-1), values.reshape(-1))

    integers = np.dtype(np.intp)
    return Special(add_at, ((indices_shape, integers), (shape, integers)), (0,), True)


def _onehot(step: Step, shapes: Sequence[Shape]) -> Special:
    axis, size = step.params["axis"], step.params["size"]
    classes = np.arange(size).reshape(-1, *(1,) * (len(step.shape) - axis - 1))

    def onehot(indices: Array, numbers: Array, *, out: Array) -> None:
        _load_indices(indices, numbers, size)
        np.equal(numbers, classes, out=out)

    return Special(onehot, ((shapes[0], np.dtype(np.intp)),))


def _reshape(step: Step, shapes: Sequence[Shape]) -> Special:
    (shape,) = shapes

    def reshape(x: Array, *, out: Array) -> None:
        np.copyto(out.reshape(shape), x)

    return Special(reshape, contiguous_out=True)


_TABLE = {
    "sum": _sum,
    "where": _where,
    "argmax": _index_of,
    "argmin": _index_of,
    "take": _take,
    "gather": _gather,
    "put": _add_at,
    "scatter": _add_at,
    "onehot": _onehot,
    "reshape": _reshape,
}
