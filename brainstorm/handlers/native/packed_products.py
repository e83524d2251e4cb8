"""Products with a matrix that is used repeatedly, such as recurrent weights: it is copied first.

The copy is by rows for small products, and otherwise in the layout that the library prefers.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from brainstorm.handlers.native import products
from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.lane import Lane
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.primitives import (
    ANY,
    DST,
    SRC,
    WEIGHTS,
    WEIGHTS_LAYOUT,
    Primitives,
    check_arrays,
)
from brainstorm.handlers.native.small_products import is_small
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.optree import formula
from brainstorm.utils import Array

#: Maximum number of packed matrices.
MOST_PACKED = 64

_copied = formula(lambda b: b)


def build_pack(lane: Lane, b: Array, transb: bool) -> list[Any]:
    """Return the call that prepares b for `build_packed`."""
    check_arrays((np.float32,), [b], [])
    b = b.T if transb else b
    is_large = not is_small(products.FEW_ROWS, len(b), b.shape[1], b.itemsize)
    if is_large and not lane.is_half and products.takes_all_sizes(lane.library):
        return []  # its products use b directly
    key = _place(b)
    if key not in lane.packed:
        if len(lane.packed) >= MOST_PACKED:
            del lane.packed[next(iter(lane.packed))]
            lane.memo.forget()  # those for this copy: the matrix may get another one
        lane.packed[key] = _Packed(lane, b)
    return [lane.packed[key].copy]


def build_packed(lane: Lane, a: Array, b: Array, out: Array, transb: bool) -> list[Any]:
    """Return the calls for ``out += a @ b``, with the content of b when it was packed."""
    b = b.T if transb else b
    packed = lane.packed.get(_place(b))
    if packed is None:
        return lane.product(a, b, out, add=True)
    return packed.product(lane, a, out)


def _place(b: Array) -> tuple[Any, ...]:
    return address_of(b), b.shape, b.strides


class _Packed:
    """A copy of a matrix: by rows if it is small, else in the layout chosen by the library.

    Attributes:
        copy: The call that copies the present content of the matrix.
    """

    def __init__(self, lane: Lane, b: Array) -> None:
        self._rows: Array | None = None
        if is_small(products.FEW_ROWS, len(b), b.shape[1], b.itemsize):
            with contextlib.suppress(UnsupportedError):
                rows = lane.allocate(b.shape, b.dtype)
                (self.copy,) = lane.compute(_copied, [b], [rows])
                self._rows = self._memory = rows
        if self._rows is None:
            self._copy_as_wanted(lane, b)
        self.copy.keep = (*self.copy.keep, self._memory)

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes."""
        return self._memory.nbytes

    def _copy_as_wanted(self, primitives: Primitives, b: Array) -> None:
        primitives.choose_threads(2 * 32 * b.size, b.size)
        # The library's choice does not depend on the number of rows of a.
        rows, columns = b.shape
        layout, is_half = primitives.layout, primitives.is_half
        forms = {
            SRC: layout((32, rows), (rows, 1), is_half),
            WEIGHTS: layout(b.shape, ANY, is_half),
            DST: layout((32, columns), (columns, 1)),
        }
        wanted = products.matmul(primitives, forms, add=True).layout(WEIGHTS_LAYOUT)
        self._memory = primitives.allocate((primitives.library.size(wanted),), np.uint8)
        self._placed = wanted, address_of(self._memory)
        given = layout(b.shape, products.strides_of(b)), address_of(b)
        self.copy = primitives.copy(given, self._placed)

    def product(self, primitives: Primitives, a: Array, out: Array) -> list[Call]:
        """Return the calls for ``out += a @ b``."""
        if self._rows is not None:
            calls = products.build_product(primitives, a, self._rows, out, add=True)
        else:
            calls = self._product_as_wanted(primitives, a, out)
        calls[-1].keep = (*calls[-1].keep, self._memory)
        return calls

    def _product_as_wanted(self, primitives: Primitives, a: Array, out: Array) -> list[Call]:
        check_arrays((np.float32,), [out], [a])
        primitives.choose_threads(2 * out.size * a.shape[1], a.size + out.size)
        layout = primitives.layout
        calls: list[Call] = []
        rows = layout(a.shape, products.strides_of(a)), address_of(a)
        if primitives.is_half:
            rounded = layout(a.shape, (a.shape[1], 1), True)
            rows = primitives.copied(calls, "rounded", rows, rounded)
        target = layout(out.shape, products.strides_of(out)), address_of(out)
        placed = {SRC: rows, WEIGHTS: self._placed, DST: target}
        forms = {what: layout for what, (layout, _) in placed.items()}
        product = products.matmul(primitives, forms, add=True)
        return [*calls, primitives.call(product, placed)]
