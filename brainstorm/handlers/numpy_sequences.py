"""The NumpyHandler's operations on sequences."""
# ruff: noqa: D102 (operations are documented in base_sequences)

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.numpy_ctc import Alignment
from brainstorm.handlers.numpy_memory import Scratch
from brainstorm.utils import Array


class NumpySequences(Handler):
    """The operations on sequences; `NumpyHandler` adds all others."""

    _scratch: Scratch

    def take_rows_mv(self, m: Array, v: Array, out: Array) -> None:
        rows, outside = _find_rows(self._scratch, v, len(m))
        taken = out if out.flags.c_contiguous else self._scratch("float", out.shape)
        m.take(rows[:, 0], axis=0, out=taken, mode="clip")
        taken[outside] = np.nan
        if taken is not out:
            np.copyto(out, taken)

    def add_rows_mv(self, m: Array, v: Array, out: Array) -> None:
        rows, outside = _find_rows(self._scratch, v, len(out))
        if outside.any():
            rows, m = rows[~outside], m[~outside]
        if min(out.strides) < 0 or not out.flags.aligned:
            np.add.at(out, rows[:, 0], m)
            return
        # One-dimensional indices into the memory of out: `add.at` is only fast for these.
        row_step, column_step = (step // out.itemsize for step in out.strides)
        extent = (out.shape[0] - 1) * row_step + (out.shape[1] - 1) * column_step + 1
        where = self._scratch("where", m.shape, np.intp)
        columns = self._constant(("columns", m.shape[1]), lambda: np.arange(m.shape[1]))
        np.multiply(columns, column_step, out=where)
        np.multiply(rows, row_step, out=rows)
        np.add(where, rows, out=where)
        values = m
        if not m.flags.c_contiguous:
            values = self._scratch("float", m.shape)
            np.copyto(values, m)
        np.add.at(as_strided(out, (extent,), (out.itemsize,)), where.ravel(), values.ravel())

    def batched_dot_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        first, second = (x.T if turned else x for x, turned in ((a, transa), (b, transb)))
        np.matmul(first.swapaxes(0, 1), second.swapaxes(0, 1), out=out.swapaxes(0, 1))

    def reverse_time(self, x: Array, mask: Array | None, out: Array, add: bool = False) -> None:
        if mask is None or not mask.size:
            _write(x[::-1], out, add)
            return
        on = self._scratch("mask", mask.shape[:2], bool)
        np.not_equal(mask[:, :, 0], 0, out=on)
        lengths = np.where(on.any(axis=0), len(x) - on[::-1].argmax(axis=0), 0)
        for b, length in enumerate(lengths):
            _write(x[:length, b][::-1], out[:length, b], add)
            _write(x[length:, b], out[length:, b], add)

    def ctc_loss(
        self, x: Array, labels: Array, mask: Array | None, loss: Array, deltas: Array
    ) -> None:
        with np.errstate(invalid="ignore"):  # NaN in, NaN out, as in other operations
            Alignment(self._scratch, x, labels, mask).write(loss, deltas)


def _find_rows(scratch: Scratch, v: Array, count: int) -> tuple[Array, Array]:
    """Return the numbers of rows as integers (K, 1), and which are no rows (K,)."""
    rows = scratch("rows", v.shape, np.intp)
    with np.errstate(invalid="ignore"):
        np.copyto(rows, v, casting="unsafe")
        outside = ~((v > -1) & (v < count))[:, 0]
    rows[outside] = 0
    return rows, outside


def _write(values: np.ndarray, out: np.ndarray, add: bool) -> None:
    if add:
        np.add(out, values, out=out)
    else:
        np.copyto(out, values)
