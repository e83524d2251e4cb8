"""Initializers: objects that create the initial values of a parameter from its shape.

An initializer is called with a shape and returns a NumPy array of that shape; if it does not
support the shape it raises `InitializationError`, and the ``fallback`` is used. In place of an
initializer, a number (for every element) or a nested list or array (of exactly the right shape)
can be given.

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
