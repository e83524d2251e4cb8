"""Initializers that draw every element from the same simple distribution."""

from __future__ import annotations

import math

from brainstorm.constraints import number
from brainstorm.errors import ValidationError
from brainstorm.initializers.base_initializer import Initializer, Shape
from brainstorm.utils import Array


class Gaussian(Initializer):
    """Normally distributed values.

    Args:
        std: Standard deviation, at least 0.
        mean: Mean.
    """

    __constraints__ = {"std": number(0), "mean": number()}

    def __init__(self, std: float = 0.1, mean: float = 0.0) -> None:
        super().__init__()
        self.std = std
        self.mean = mean

    def __call__(self, shape: Shape) -> Array:
        if self.std == 0 != self.mean:
            raise ValidationError(
                f"Gaussian: expected std > 0, got {self.std!r}, and the mean {self.mean!r}. "
                f"The order is Gaussian(std, mean); a constant is given as a number."
            )
        return self.rnd.normal(self.mean, self.std, shape)


class Uniform(Initializer):
    """Uniformly distributed values.

    Args:
        low: Lower end of the interval; given alone, the interval is (-low, low).
        high: Upper end.
    """

    def __init__(self, low: float = 0.1, high: float | None = None) -> None:
        super().__init__()
        self.low, self.high = (-abs(low), abs(low)) if high is None else (low, high)
        if not self.low <= self.high:
            raise ValidationError(f"Uniform: expected low <= high, got {low!r} and {high!r}")
        if not math.isfinite(self.high - self.low):
            raise ValidationError(
                f"Uniform: expected a finite distance from low to high, got {low!r} and {high!r}"
            )

    def __call__(self, shape: Shape) -> Array:
        return self.rnd.uniform(self.low, self.high, shape)
