"""Initializers whose scale depends on how many connections a unit has."""

from __future__ import annotations

import math

import numpy as np

from brainstorm.errors import ValidationError, unknown
from brainstorm.initializers.base_initializer import Initializer, Shape
from brainstorm.utils import Array, product

#: Similar to rectified linear units, and initialized like them.
_LIKE_REL = (
    *("relu", "el", "elu", "leaky_rel", "leaky_relu"),
    *("gelu", "silu", "swish", "mish", "hard_swish"),
)


def _compute_scales(factor: int) -> dict[str, float]:
    """Return the scale for each activation function, given a factor on all squares of scales."""
    rel, tanh, sigmoid = (math.sqrt(factor * square) for square in (6, 3, 48))
    scales = {"rel": rel, "tanh": tanh, "sigmoid": sigmoid, "linear": 1.0}
    return {**scales, **dict.fromkeys(_LIKE_REL, rel), "selu": tanh}


class _DenseSqrt(Initializer):
    """Uniform values from (-a, a) with a = scale / sqrt(number of connections)."""

    _scales: dict[str, float]
    _counts_fan_out: bool

    def __init__(self, scale: str | float = "rel") -> None:
        super().__init__()
        self.scale = scale
        self._factor()

    def _factor(self) -> float:
        scale = self.scale
        if isinstance(scale, (int, float, np.number)) and math.isfinite(scale):
            return float(scale)
        if not isinstance(scale, str) or scale not in self._scales:
            raise ValidationError(
                f"{type(self).__name__}: {unknown('scale', scale, self._scales)} Or give a number."
            )
        return self._scales[scale]

    def __call__(self, shape: Shape) -> Array:
        """Return uniformly distributed values; the shape needs two dimensions or more."""
        self._assert_atleast2d(shape)
        connections = product(shape[1:]) + self._counts_fan_out * shape[0]
        bound = self._factor() / math.sqrt(connections)
        return self.rnd.uniform(-bound, bound, shape)


class DenseSqrtFanIn(_DenseSqrt):
    """Uniform values from (-a, a) with a = scale / sqrt(fan_in).

    The fan-in is the product of all dimensions but the first. Sources: LeCun et al., "Efficient
    BackProp", 1998; He et al., "Delving Deep into Rectifiers", 2015 (the scale of ``rel``).

    Args:
        scale: A number, or the activation of the layer: sqrt(6) for ``rel`` and its kin (``el``,
            ``leaky_rel``, ``gelu``, ...), sqrt(3) for ``tanh`` and ``selu``, 4 sqrt(3)
            for ``sigmoid``, 1 for ``linear``.
    """

    _scales = _compute_scales(1)
    _counts_fan_out = False


class DenseSqrtFanInOut(_DenseSqrt):
    """Uniform values from (-a, a) with a = scale / sqrt(fan_in + fan_out).

    The fan-out is the first dimension, the fan-in the product of the others. Source: Glorot and
    Bengio, "Understanding the difficulty of training deep feedforward neural networks", 2010.

    Args:
        scale: A number, or the activation of the layer: sqrt(12) for ``rel`` and its kin (``el``,
            ``leaky_rel``, ``gelu``, ...), sqrt(6) for ``tanh`` and ``selu``, 4 sqrt(6)
            for ``sigmoid``, 1 for ``linear``.
    """

    _scales = _compute_scales(2)
    _counts_fan_out = True
