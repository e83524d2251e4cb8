"""Hyperparameters: the ranges in which the numbers of a stepper must lie."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from brainstorm.utils import is_number


class Range(NamedTuple):
    """The half-open interval [low, high) that a hyperparameter must lie in."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return is_number(value) and self.low <= value < self.high  # type: ignore[operator]

    def __str__(self) -> str:
        end = "" if self.high >= LARGEST else f" and < {self.high:g}"
        return f"a finite number >= {self.low:g}{end}"


#: Beyond it a number is infinite in float32.
LARGEST = float(np.finfo(np.float32).max)

NON_NEGATIVE = Range(0.0, LARGEST)
POSITIVE = Range(np.finfo(np.float32).tiny.item(), math.inf)
FRACTION = Range(0.0, 1.0)
