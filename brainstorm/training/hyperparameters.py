"""Hyperparameters: the ranges in which the numbers of a stepper must lie; checks of files."""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import numpy as np

from brainstorm.utils import is_number


class Range(NamedTuple):
    """The half-open interval [low, high) that a hyperparameter must lie in."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return is_number(value) and self.low <= value < self.high  # type: ignore[operator]

    def __str__(self) -> str:
        end = "" if math.isinf(self.high) else f" and < {self.high:g}"
        return f"a finite number >= {self.low:g}{end}"


NON_NEGATIVE = Range(0.0, math.inf)
POSITIVE = Range(np.finfo(np.float32).tiny.item(), math.inf)
FRACTION = Range(0.0, 1.0)


def check_again(this: Any) -> None:
    """Check an object made from a description as its constructor checks its arguments."""
    names = inspect.signature(type(this)).parameters.keys()
    if names <= vars(this).keys():
        type(this)(**{name: vars(this)[name] for name in names})
