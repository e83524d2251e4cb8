"""Initializers: objects that make the first values of a parameter from its shape.

An initializer is called with a shape and returns a NumPy array of that shape; a shape that it
cannot serve raises `InitializationError`, which lets the ``fallback`` step in. Where a parameter
is initialized, a number (for every element) or a nested list or array (of exactly the right shape)
may stand for an initializer.

Shapes are those of the layers: ``W (out, in)`` or ``(filters, rows, columns, channels)``.
"""

from brainstorm.errors import InitializationError
from brainstorm.initializers.base_initializer import (
    ArrayInitializer,
    Initializer,
    as_initializer,
    evaluate_initializer,
)
from brainstorm.initializers.composed import LstmOptInit, SparseInputs, SparseOutputs
from brainstorm.initializers.dense import DenseSqrtFanIn, DenseSqrtFanInOut
from brainstorm.initializers.distributions import Gaussian, Uniform
from brainstorm.initializers.matrices import EchoState, Identity, Orthogonal, RandomWalk

__all__ = [
    "ArrayInitializer",
    "DenseSqrtFanIn",
    "DenseSqrtFanInOut",
    "EchoState",
    "Gaussian",
    "Identity",
    "InitializationError",
    "Initializer",
    "LstmOptInit",
    "Orthogonal",
    "RandomWalk",
    "SparseInputs",
    "SparseOutputs",
    "Uniform",
    "as_initializer",
    "evaluate_initializer",
]
