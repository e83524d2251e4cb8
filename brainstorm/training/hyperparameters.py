"""Hyperparameters: the ranges in which the numbers of a stepper must lie."""

from __future__ import annotations

import math

import numpy as np

from brainstorm.constraints import Constraint, plain
from brainstorm.utils import is_number

#: Beyond it a number is infinite in float32.
LARGEST = float(np.finfo(np.float32).max)


class Range(Constraint):
    """The half-open interval [low, high) that a hyperparameter must lie in."""

    def __init__(self, low: float, high: float) -> None:
        expected = {
            math.inf: f"a finite number >= {low:g}",
            LARGEST: f"a number >= {low:g}, finite in float32",
        }.get(high, f"a number >= {low:g} and < {high:g}")
        super().__init__(expected, lambda v: is_number(v) and low <= float(v) < high, convert=plain)
        self.low = low
        self.high = high


NON_NEGATIVE = Range(0.0, LARGEST)
POSITIVE = Range(np.finfo(np.float32).tiny.item(), math.inf)
FRACTION = Range(0.0, 1.0)
