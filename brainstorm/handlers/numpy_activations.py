"""The NumpyHandler's activation functions: stable for all inputs, without warnings."""
# ruff: noqa: D102 (operations are documented in base_activations)

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.numpy_memory import Scratch
from brainstorm.utils import Array

__all__ = ["NumpyActivations"]

#: The whole number line; `clip` is much faster than `maximum` with a scalar.
_INFINITY = float("inf")

#: Slope of leaky_rel below zero.
_LEAK = 0.01

#: Chebyshev coefficients of (1 + 2z) exp(z^2) erfc(z) for z >= 0, as a function of
#: (z - 3.75) / (z + 3.75). Source of the form: M. M. Shepherd and J. G. Laframboise, "Chebyshev
#: Approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity", Math. Comp. 36 (1981). The
#: coefficients were computed with 50 digits; the next one is 7e-17.
_ERFC = (
    1.1775789345674017541, -0.0045900545806464773309, -0.084249133366517915584,
    0.059209939998191890498, -0.026658668435305752277, 0.0090749976707050652939,
    -0.0024131635404176081909, 0.00049077583652580863229, -0.000069169733025012063671,
    4.1390279860730101675e-6, 7.7403830661984906686e-7, -2.1886401049234395661e-7,
    1.0764999465670910377e-8, 4.5219598112182868979e-9, -7.7544002088313511065e-10,
    -6.3180883408866844944e-11, 2.8687950109306698981e-11, 1.945586854577734723e-13,
    -9.6546967484334389059e-13, 3.2525481481487398415e-14, 3.3478119482868053878e-14,
    -1.8645628804193131015e-15, -1.2507950530688647085e-15,
)  # fmt: skip
#: Above this, erfc is zero in every dtype.
_ERFC_ENDS = 28.0
#: Elements that are worked on at a time: as many as fit into the cache of a core.
_BLOCK = 16384


def _powers(dtype: type, terms: int) -> list[np.ndarray]:
    """Return the coefficients of 1, t, t^2, ... in the sum of the first Chebyshev polynomials."""
    polynomials = [*np.eye(2, terms)]
    while len(polynomials) < terms:
        polynomials.append(2 * np.roll(polynomials[-1], 1) - polynomials[-2])
    return [np.array(power, dtype) for power in np.array(_ERFC[:terms]) @ polynomials]


#: The others are too small for float32.
_ERFC_POWERS = {np.dtype(t): _powers(t, n) for t, n in ((np.float32, 12), (np.float64, len(_ERFC)))}


class NumpyActivations(Handler):
    """The activation functions; `NumpyHandler` adds all other operations."""

    _scratch: Scratch
    _zero: np.ndarray
    _half: np.ndarray
    _one: np.ndarray

    def sigmoid(self, x: Array, y: Array) -> None:
        # 0.5 * (1 + tanh(x / 2)): the same function, and it cannot overflow.
        np.multiply(x, self._half, out=y)
        np.tanh(y, out=y)
        np.multiply(y, self._half, out=y)
        np.add(y, self._half, out=y)

    def sigmoid_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = np.subtract(self._one, y, out=self._scratch("float", y.shape))
        np.multiply(slope, y, out=slope)
        np.multiply(dy, slope, out=dx)

    def tanh(self, x: Array, y: Array) -> None:
        np.tanh(x, out=y)

    def tanh_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = np.multiply(y, y, out=self._scratch("float", y.shape))
        np.subtract(self._one, slope, out=slope)
        np.multiply(dy, slope, out=dx)

    def rel(self, x: Array, y: Array) -> None:
        x.clip(0, _INFINITY, out=y)

    def rel_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = self._scratch("float", y.shape)
        np.copyto(slope, np.greater(y, self._zero, out=self._scratch("mask", y.shape, bool)))
        np.multiply(dy, slope, out=dx)

    def el(self, x: Array, y: Array) -> None:
        below = x.clip(-_INFINITY, 0, out=self._scratch("float", x.shape))
        np.expm1(below, out=below)
        x.clip(0, _INFINITY, out=y)
        np.add(y, below, out=y)

    def el_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = y.clip(-_INFINITY, 0, out=self._scratch("float", y.shape))
        np.add(slope, 1, out=slope)
        np.multiply(dy, slope, out=dx)

    def softplus(self, x: Array, y: Array) -> None:
        # max(x, 0) + log(1 + exp(-abs(x))): the same function, and it cannot overflow.
        rest = np.abs(x, out=self._scratch("float", x.shape))
        np.negative(rest, out=rest)
        np.exp(rest, out=rest)
        np.log1p(rest, out=rest)
        x.clip(0, _INFINITY, out=y)
        np.add(y, rest, out=y)

    def softplus_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = np.negative(y, out=self._scratch("float", y.shape))
        np.expm1(slope, out=slope)
        np.negative(slope, out=slope)
        np.multiply(dy, slope, out=dx)

    def leaky_rel(self, x: Array, y: Array) -> None:
        np.maximum(x, np.multiply(x, _LEAK, out=self._scratch("float", x.shape)), out=y)

    def leaky_rel_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = self._scratch("float", y.shape)
        np.copyto(slope, np.greater(y, self._zero, out=self._scratch("mask", y.shape, bool)))
        np.multiply(slope, 1 - _LEAK, out=slope)
        np.add(slope, _LEAK, out=slope)
        np.multiply(dy, slope, out=dx)

    def gelu(self, x: Array, y: Array) -> None:
        share = self._copied(x)
        for block in self._blocks(share):
            np.copyto(block, self._normal_share(block)[0])
        np.multiply(x, share, out=y)

    def gelu_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = self._copied(x)
        for block in self._blocks(slope):
            share, density = self._normal_share(block)
            np.multiply(density, block, out=density)
            np.multiply(density, 1 / math.sqrt(2 * math.pi), out=density)
            np.add(share, density, out=block)
        np.multiply(dy, slope, out=dx)

    def silu(self, x: Array, y: Array) -> None:
        share = self._scratch("float", x.shape)
        self.sigmoid(x, share)
        np.multiply(x, share, out=y)

    def silu_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        slope = self._copied(x)
        for block in self._blocks(slope):
            share = self._scratch("share", block.shape)
            self.sigmoid(block, share)
            rest = np.subtract(self._one, share, out=self._scratch("z", block.shape))
            np.multiply(block, rest, out=block)
            np.add(block, self._one, out=block)
            np.multiply(block, share, out=block)
        np.multiply(dy, slope, out=dx)

    def hard_sigmoid(self, x: Array, y: Array) -> None:
        np.multiply(x, 1 / 6, out=y)
        np.add(y, self._half, out=y)
        y.clip(0, 1, out=y)

    def hard_sigmoid_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        # (0.5 - abs(y - 0.5)) is positive in between, and zero at the ends.
        slope = np.subtract(y, self._half, out=self._scratch("float", y.shape))
        np.abs(slope, out=slope)
        within = np.less(slope, self._half, out=self._scratch("mask", y.shape, bool))
        np.copyto(slope, within)
        np.multiply(slope, 1 / 6, out=slope)
        np.multiply(dy, slope, out=dx)

    def exp(self, x: Array, y: Array) -> None:
        x.clip(-_INFINITY, math.log(np.finfo(self.dtype).max) * (1 - 1e-6), out=y)
        np.exp(y, out=y)

    def exp_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        np.multiply(dy, y, out=dx)

    def softmax_m(self, m: Array, out: Array) -> None:
        column = self._scratch("float", (m.shape[0], 1))
        np.maximum.reduce(m, axis=1, keepdims=True, out=column)
        np.subtract(m, column, out=out)
        np.exp(out, out=out)
        self.sum_t(out, 1, column)
        np.divide(out, column, out=out)

    # -- many steps, one block of elements after the other -----------------------------------

    def _copied(self, x: Array) -> np.ndarray:
        copied = self._scratch("float", x.shape)
        np.copyto(copied, x)
        return copied

    def _blocks(self, contiguous: np.ndarray) -> Iterator[np.ndarray]:
        flat = contiguous.reshape(-1)
        for start in range(0, flat.size, _BLOCK):
            yield flat[start : start + _BLOCK]

    def _normal_share(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the normal distribution function of x, and exp(-x * x / 2)."""
        share, z, t = (self._scratch(slot, x.shape) for slot in ("share", "z", "t"))
        np.abs(x, out=z)
        np.multiply(z, math.sqrt(0.5), out=z)
        z.clip(0, _ERFC_ENDS, out=z)
        np.add(z, 3.75, out=share)
        np.subtract(z, 3.75, out=t)
        np.divide(t, share, out=t)
        *powers, last = _ERFC_POWERS[x.dtype]
        np.copyto(share, last)
        for coefficient in reversed(powers):
            np.multiply(share, t, out=share)
            np.add(share, coefficient, out=share)
        # What lies beyond x on its side of zero: erfc(z) / 2.
        density = np.multiply(z, z, out=t)
        np.negative(density, out=density)
        np.exp(density, out=density)
        np.multiply(share, density, out=share)
        np.multiply(z, 4, out=z)
        np.add(z, 2, out=z)
        np.divide(share, z, out=share)
        # For a positive x, all the rest.
        np.copysign(share, x, out=share)
        np.copyto(z, np.signbit(x, out=self._scratch("mask", x.shape, bool)))
        np.subtract(self._one, z, out=z)
        return np.subtract(z, share, out=share), density
