"""Direct execution and replays: differences in bits, and reads that a replay does not see."""

from __future__ import annotations

import warnings

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.traces import Trace


def difference(got: np.ndarray, expected: np.ndarray) -> str:
    """Return the first element with different bits, and both values; '' if there is none."""
    if got.shape != expected.shape:
        return f": expected shape {expected.shape}, got {got.shape}"
    wrong = np.argwhere((got != expected) & ~(np.isnan(got) & np.isnan(expected)))
    if not len(wrong):
        return ""
    index = tuple(int(i) for i in wrong[0])
    digits = 17 if got.dtype == np.float64 else 9
    return (
        f"{list(index) or ''}: expected {expected[index]:.{digits}g}, got {got[index]:.{digits}g} "
        f"({len(wrong)} of {got.size} elements differ)"
    )


def tell_could_be_traced(who: str, name: str) -> None:
    """Warn the caller of `check_...`, which checks a property, that a class could declare more."""
    warnings.warn(
        f"{who} to do nothing but handler operations, the same ones each time. If so, write "
        f"`is_traceable = True` into class {name}: then a training step repeats the operations "
        f"without calling it.",
        stacklevel=5,
    )


def find_reads(trace: Trace) -> list[str]:
    """Return the operations of a trace whose results Python could read.

    Except new arrays and streams: Python still has the same ones in a replay.
    """
    contracts = Handler.operations()
    return [name for name in trace.reads if contracts[name].result not in ("array", "stream")]
