"""Connectionist temporal classification for the NumpyHandler: forward-backward in log space.

A sequence with n labels has 2n + 1 states: blank, label, blank, ..., label, blank. All sequences
of a batch are processed together; those with fewer labels end in an earlier state. (Graves et al.,
"Connectionist temporal classification", ICML 2006, section 4.)
"""

from __future__ import annotations

import numpy as np

from brainstorm.handlers.numpy_memory import Scratch


class Alignment:
    """The paths through the labels of a batch.

    Args:
        scratch: Provides memory for all arrays that grow with T.
        x: Class scores (T, B, K) before the softmax.
        labels: Labels (T, B, 1), each sequence up to its first 0.
        mask: (T, B, 1), 0 at steps that do not count; or None.
    """

    def __init__(
        self, scratch: Scratch, x: np.ndarray, labels: np.ndarray, mask: np.ndarray | None
    ) -> None:
        self._scratch = scratch
        _, B, K = x.shape
        self.counts = np.logical_and.accumulate(labels[:, :, 0] != 0).sum(axis=0)
        states = 2 * int(self.counts.max(initial=0)) + 1
        classes = np.zeros((B, states), np.intp)
        given = labels[: states // 2, :, 0].T
        is_class = (given > -1) & (given < K)
        classes[:, 1::2] = np.where(is_class, given, 0)
        #: Sequences with labels that are no classes.
        self.wrong = (~is_class & (np.arange(states // 2) < self.counts[:, None])).any(axis=1)
        #: 0 where a state can follow the one before the last, else minus infinity.
        self.skip = np.full((B, max(states - 2, 0)), -np.inf, x.dtype)
        self.skip[(classes[:, 2:] != 0) & (classes[:, 2:] != classes[:, :-2])] = 0
        #: Positions of the states' classes among the B * K scores of one step.
        self.where = classes + np.arange(B)[:, None] * K
        self.off = None if mask is None or not mask.size else mask[:, :, 0] == 0
        self.log_p = self._log_softmax(x)

    def _log_softmax(self, x: np.ndarray) -> np.ndarray:
        log_p = self._scratch("ctc log", x.shape)
        powers = self._scratch("ctc exp", x.shape)
        np.subtract(x, x.max(axis=2, keepdims=True), out=log_p)
        np.exp(log_p, out=powers)
        return np.subtract(log_p, np.log(powers.sum(axis=2, keepdims=True)), out=log_p)

    def write(self, loss: np.ndarray, deltas: np.ndarray) -> None:
        """Compute the losses (B, 1) and their derivatives by the scores, (T, B, K)."""
        forward, totals = self._forward()
        totals[self.wrong] = np.nan
        np.negative(totals, out=loss[:, 0], casting="same_kind")
        np.exp(self.log_p, out=deltas)
        self._subtract_posteriors(forward, deltas)
        deltas[:, np.isinf(totals)] = 0
        deltas[:, self.wrong] = np.nan
        if self.off is not None:
            deltas[self.off] = 0

    def _forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Return ln p of each state with all before it, and ln p of all labels (B,).

        The former (T, B, states) is relative to the most probable state of each step: numbers that
        grow with T would lose digits.
        """
        sequences, peaks = np.arange(len(self.where)), np.zeros(len(self.where))
        row = np.full(self.where.shape, -np.inf, self.log_p.dtype)
        row[:, 0] = 0  # before the first step: as if in a blank
        forward = self._scratch("ctc forward", (len(self.log_p), *row.shape))
        for t, out in enumerate(forward):
            np.copyto(out, row)
            np.logaddexp(out[:, 1:], row[:, :-1], out=out[:, 1:])
            np.logaddexp(out[:, 2:], row[:, :-2] + self.skip, out=out[:, 2:])
            np.add(out, self._emissions(t), out=out)
            if self.off is not None:
                np.copyto(out, row, where=self.off[t][:, None])
            peaks += _subtract_maximum(out)
            row = out
        last = row[sequences, 2 * self.counts]
        label = row[sequences, np.maximum(2 * self.counts - 1, 0)]
        return forward, peaks + np.where(self.counts > 0, np.logaddexp(last, label), last)

    def _emissions(self, t: int) -> np.ndarray:
        return self.log_p[t].take(self.where)

    def _subtract_posteriors(self, forward: np.ndarray, deltas: np.ndarray) -> None:
        """Subtract from the deltas the probability of each class at each step, given the labels."""
        sequences = np.arange(len(self.where))
        row = np.full(self.where.shape, -np.inf, self.log_p.dtype)  # ln p of all after a state
        row[sequences, 2 * self.counts] = row[sequences, np.maximum(2 * self.counts - 1, 0)] = 0
        by_class = np.empty(deltas.shape[1:], deltas.dtype)
        for t in range(len(forward) - 1, -1, -1):
            by_state = forward[t] + row
            _subtract_maximum(by_state)
            np.exp(by_state, out=by_state)
            by_state /= by_state.sum(axis=1, keepdims=True).clip(1)  # 0 if there is no path
            by_class.fill(0)
            np.add.at(by_class.reshape(-1), self.where.ravel(), by_state.ravel())
            np.subtract(deltas[t], by_class, out=deltas[t])
            row = self._before(t, row)

    def _before(self, t: int, row: np.ndarray) -> np.ndarray:
        after = row + self._emissions(t)
        before = after.copy()
        np.logaddexp(before[:, :-1], after[:, 1:], out=before[:, :-1])
        np.logaddexp(before[:, :-2], after[:, 2:] + self.skip, out=before[:, :-2])
        if self.off is not None:
            np.copyto(before, row, where=self.off[t][:, None])
        _subtract_maximum(before)
        return before


def _subtract_maximum(rows: np.ndarray) -> np.ndarray:
    """Shift each row so that its maximum is 0 (unless it is minus infinity); return the maxima."""
    peaks = rows.max(axis=1).clip(np.finfo(rows.dtype).min)
    rows -= peaks[:, None]
    return peaks
