"""Initializers of structured matrices, mostly for recurrent connections."""

from __future__ import annotations

import math

import numpy as np

from brainstorm.constraints import number, one_of
from brainstorm.initializers.base_initializer import Initializer, Shape
from brainstorm.utils import Array, product


class EchoState(Initializer):
    """A random square matrix with a given spectral radius.

    Source: Jaeger, "The 'echo state' approach to analysing and training recurrent neural
    networks", 2001.

    Args:
        spectral_radius: Modulus of the largest eigenvalue.
    """

    __constraints__ = {"spectral_radius": number(0)}

    def __init__(self, spectral_radius: float = 1.0) -> None:
        super().__init__()
        self.spectral_radius = spectral_radius

    def __call__(self, shape: Shape) -> Array:
        self._check_square(shape)
        values = self.rnd.uniform(-0.5, 0.5, shape)
        radius = np.abs(np.linalg.eigvals(values)).max(initial=0)
        self._check(radius > 0, "a matrix with an eigenvalue other than 0", shape)
        return values * (self.spectral_radius / radius)


class Identity(Initializer):
    """A scaled identity matrix with Gaussian noise.

    Source: Le et al., "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units",
    2015.

    Args:
        scale: Value on the diagonal.
        std: Standard deviation of the noise on every element.
        enforce_square: Whether a matrix that is not square raises an error.
    """

    __constraints__ = {"scale": number(), "std": number(0)}

    def __init__(self, scale: float = 1.0, std: float = 0.01, enforce_square: bool = True) -> None:
        super().__init__()
        self.scale = scale
        self.std = std
        self.enforce_square = enforce_square

    def __call__(self, shape: Shape) -> Array:
        if self.enforce_square:
            self._check_square(shape)
        self._check_matrix(shape)
        return self.scale * np.eye(shape[0], shape[1]) + self.rnd.normal(0.0, self.std, shape)


class Orthogonal(Initializer):
    """A random matrix whose rows or columns, whichever are fewer, are orthonormal.

    It is uniformly distributed among all of them. More than two dimensions, as in the weights of
    convolutions, are flattened to two, keeping the first. Sources: Saxe et al., "Exact solutions to
    the nonlinear dynamics of learning in deep linear neural networks", 2014; Mezzadri, "How to
    Generate Random Matrices from the Classical Compact Groups", 2007 (the signs).

    Args:
        scale: Factor on the whole matrix, which is its only singular value.
    """

    __constraints__ = {"scale": number()}

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def __call__(self, shape: Shape) -> Array:
        """Return a matrix with orthonormal rows or columns; the shape needs two dimensions."""
        self._assert_atleast2d(shape)
        rows, columns = shape[0], product(shape[1:])
        drawn = self.rnd.standard_normal((max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(drawn)
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)  # LAPACK's choice of signs is not random
        return self.scale * (q if rows >= columns else q.T).reshape(shape)


class RandomWalk(Initializer):
    """A square matrix g N(0, 1) / n that depends on the activation function.

    g is exp(1 / 2n) for ``linear`` and sqrt(2) exp(1.2 / (max(n, 6) - 2.4)) for ``rel``. Source of
    g: Sussillo and Abbott, "Random Walk Initialization for Training Very Deep Feedforward
    Networks", 2014. They divide by sqrt(n); ``scale=g * sqrt(n)`` gives their matrix.

    Args:
        act_func: ``linear`` or ``rel`` (``relu``).
        scale: A number to use in place of g.
    """

    __constraints__ = {"act_func": one_of("linear", "rel", "relu"), "scale": number().or_none()}

    def __init__(self, act_func: str = "linear", scale: float | None = None) -> None:
        super().__init__()
        self.act_func = act_func
        self.scale = scale

    def __call__(self, shape: Shape) -> Array:
        self._check_square(shape)
        self._check(shape[0] > 0, "a square shape (n, n) with n > 0", shape)
        n = shape[0]
        if self.scale is not None:
            factor = self.scale
        elif self.act_func == "linear":
            factor = math.exp(1 / (2 * n))
        else:
            factor = math.sqrt(2) * math.exp(1.2 / (max(n, 6) - 2.4))
        return factor * self.rnd.standard_normal(shape) / n
