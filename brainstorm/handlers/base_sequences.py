"""The operations on sequences that every handler has: look-up, attention, reversal, alignment.

Sequences are (T, B, features...): time step, sequence of the batch. A mask (T, B, 1) is 0 at steps
that do not count, e.g. those after the end of a sequence.
"""
# ruff: noqa: B024, B027, D403 (`operation` makes methods abstract; docstrings start with formulas)

from __future__ import annotations

import abc
import functools
from typing import Any

import numpy as np

from brainstorm.handlers.contracts import operation
from brainstorm.optree import Formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array


@functools.cache
def _attention(causal: bool, lowest: float) -> Formula:
    """Return `SequenceOperations.attention_softmax`; `lowest` is the least finite number."""

    def weights(scores: Any, row: Any, column: Any, ahead: Any, *mask: Any) -> Any:
        allowed = [fn.less_equal(column, row + ahead)] * causal + [
            fn.not_equal(m, 0.0) for m in mask
        ]
        for condition in allowed:
            scores = fn.where(condition, scores, -np.inf)
        largest = fn.maximum(fn.max(scores, axis=2), lowest)  # if all keys are masked
        terms = fn.exp(scores - largest)
        return terms / fn.maximum(fn.sum(terms, axis=2), 1.0)  # one is exp(0), if there are any

    return Formula(weights, "attention_softmax")


def _sinusoids(steps: int, size: int, dtype: Any) -> np.ndarray:
    exponents = np.arange(size) // 2 * 2 / size
    angles = np.arange(steps)[:, None, None] / 10000.0**exponents
    angles[..., 1::2] += np.pi / 2
    return np.sin(angles).astype(dtype)


_sum = Formula(lambda x, table: x + table, "add_sinusoids")


class SequenceOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    # -- rows of a table ---------------------------------------------------------------------

    @operation("m(M,N) v(K,1)<M -> out(K,N)")
    def take_rows_mv(self, m: Array, v: Array, out: Array) -> None:
        """out[i] = m[v[i, 0]], or NaN if there is no such row."""

    @operation("m(K,N) v(K,1)<M -> out(M,N)+")
    def add_rows_mv(self, m: Array, v: Array, out: Array) -> None:
        """out[v[i, 0]] += m[i] for every i; indices may occur several times, or be no rows."""

    # -- attention ---------------------------------------------------------------------------

    @operation("a(M,G,K)^transa b(K,G,N)^transb -> out(M,G,N)")
    def batched_dot_mm(
        self, a: Array, b: Array, out: Array, transa: bool = False, transb: bool = False
    ) -> None:
        """out[:, g] = a[:, g] @ b[:, g] for every g.

        If requested, all matrices of a or of b are transposed first: a is then (K, G, M).
        """

    @operation("scores(M,G,K) mask(K,G)? causal:bool ~> out(M,G,K)", derived=True)
    def attention_softmax(
        self: Any, scores: Array, mask: Array | None, causal: bool, out: Array
    ) -> None:
        """out[m, g] = softmax of scores[m, g], over the keys k that m attends to.

        These are the k where mask[k, g] is not 0 and, if `causal`, k <= m + K - M: the last m
        attends to all. All other k get 0.
        """
        steps, _, keys = scores.shape
        masks = [] if mask is None or not mask.size else [mask.T]
        rows, columns = self._counting(steps).reshape((-1, 1, 1)), self._counting(keys)
        weights = _attention(bool(causal), float(np.finfo(self.dtype).min))
        self.compute(
            weights, (scores, rows, columns, self._as_number(keys - steps), *masks), (out,)
        )

    @operation("y(M,N) dy(M,N) ~> dx(M,N)", formula=lambda y, dy: y * (dy - fn.sum(y * dy, axis=1)))
    def softmax_deriv_m(self, y: Array, dy: Array, dx: Array) -> None:
        """dx = y * (dy - sum(y * dy)), row by row, where y is a softmax of x."""

    # -- time --------------------------------------------------------------------------------

    @operation("x(T,B,N) ~> out(T,B,N)", derived=True)
    def add_sinusoids(self: Any, x: Array, out: Array) -> None:
        """out[t, b, 2i] = x[t, b, 2i] + sin(t / 10000 ** (2i / N)); 2i + 1 has cos instead."""
        steps, _, size = out.shape
        most = 1 << steps.bit_length()  # few tables for all T
        table = self._constant(
            ("sinusoids", most, size), lambda: _sinusoids(most, size, self.dtype)
        )
        self.compute(_sum, (x, table[:steps]), (out,))

    @operation("x(T,B,*S) mask(T,B,1)? -> out(T,B,*S)+add")
    def reverse_time(self, x: Array, mask: Array | None, out: Array, add: bool = False) -> None:
        """out[t, b] = x[L - 1 - t, b] for t < L, else x[t, b]; added to out if `add`.

        L is the length of sequence b: one more than the last t where mask[t, b] is not 0, or T.
        """

    @operation("x(T,B,K) labels(T,B,1)<K mask(T,B,1)? -> loss(B,1) deltas(T,B,K)")
    def ctc_loss(
        self, x: Array, labels: Array, mask: Array | None, loss: Array, deltas: Array
    ) -> None:
        """loss[b] = -ln p(labels of b | softmax of x), deltas = the derivative of loss[b] by x.

        The labels of b are those before its first 0; 0 is the blank. p is the sum of the products
        of the probabilities along all paths that give the labels when first repetitions and then
        blanks are removed, over the steps where the mask is not 0. If there is no such path, the
        loss is infinite and the deltas are 0; if a label is not in [0, K), both are NaN. (Graves
        et al., ICML 2006.)
        """
