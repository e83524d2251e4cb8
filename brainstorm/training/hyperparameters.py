"""Hyperparameters: the intervals in which the numbers of a stepper must lie."""

from __future__ import annotations

from brainstorm.constraints import LARGEST, number

NON_NEGATIVE = number(0, LARGEST)
FRACTION = number(0, 1, high_open=True)
