"""Rows of a table, looked up and added to, as C kernels."""

from __future__ import annotations

import numpy as np

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.kernels import kernel_call
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.primitives import Primitives, check_arrays
from brainstorm.utils import Array

#: Other memory is never accessed, for any numbers.
_SOURCE = """
enum { COUNT, WIDTH, ROWS, TABLE_ROW, NUMBER_STEP, OTHER_ROW, ADDS };
void rows(void *const *pointers, const int64_t *n) {
  real *table = pointers[0], *other = pointers[2];
  const real *numbers = pointers[1];
  for (int64_t i = 0; i < n[COUNT]; i++) {
    const double number = numbers[i * n[NUMBER_STEP]];  // float32 has not every n[ROWS]
    const int inside = number > -1 && number < n[ROWS];
    real *restrict there = table + (inside ? (int64_t)number : 0) * n[TABLE_ROW];
    real *restrict here = other + i * n[OTHER_ROW];
    if (inside && n[ADDS])
      for (int64_t j = 0; j < n[WIDTH]; j++) there[j] += here[j];
    else if (inside)
      for (int64_t j = 0; j < n[WIDTH]; j++) here[j] = there[j];
    else if (!n[ADDS])
      for (int64_t j = 0; j < n[WIDTH]; j++) here[j] = 0.0 / 0.0;
  }
}
"""


def build_take(primitives: Primitives, m: Array, v: Array, out: Array) -> list[Call]:
    """Return the call of `SequenceOperations.take_rows_mv`."""
    check_arrays((np.float32, np.float64), [out], [m, v])
    return _build(m, v, out, False)


def build_add(primitives: Primitives, m: Array, v: Array, out: Array) -> list[Call]:
    """Return the call of `SequenceOperations.add_rows_mv`."""
    check_arrays((np.float32, np.float64), [out], [m, v])
    return _build(out, v, m, True)


def _build(table: Array, numbers: Array, other: Array, adds: bool) -> list[Call]:
    size = table.itemsize
    if other.shape != (len(numbers), table.shape[1]) or numbers.shape[1:] != (1,):
        raise UnsupportedError("the shapes do not fit")  # NumPy raises the error
    if table.strides[1] != size or other.strides[1] != size:
        raise UnsupportedError("rows are not contiguous")
    strides = [
        stride // size for stride in (table.strides[0], numbers.strides[0], other.strides[0])
    ]
    sizes = [*other.shape, len(table), *strides, adds]
    return [kernel_call("rows", _SOURCE, [table, numbers, other], sizes)]
