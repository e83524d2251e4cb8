"""Initializers that consist of other initializers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from brainstorm.constraints import integer
from brainstorm.initializers.base_initializer import (
    Initializer,
    Shape,
    as_initializer,
    evaluate_initializer,
)
from brainstorm.utils import Array


@dataclass(eq=False, repr=False)
class LstmOptInit(Initializer):
    """Four equal blocks along the first dimension, one for each part of an LSTM.

    Args:
        input_block: Initializer (or number, list, array) of the first quarter.
        input_gate: Of the second quarter.
        forget_gate: Of the third quarter.
        output_gate: Of the last quarter.
    """

    input_block: Any = 0.0
    input_gate: Any = 0.0
    forget_gate: Any = 0.0
    output_gate: Any = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        for block in self._blocks():
            as_initializer(block)

    def _blocks(self) -> tuple[Any, ...]:
        return self.input_block, self.input_gate, self.forget_gate, self.output_gate

    def __call__(self, shape: Shape) -> Array:
        """Return the four blocks, one below the other."""
        fits = len(shape) >= 1 and shape[0] % 4 == 0
        self._check(fits, "a first dimension that is a multiple of 4", shape)
        part = (shape[0] // 4, *shape[1:])
        return np.concatenate(
            [
                evaluate_initializer(block, part, seed=self.rnd.generate_seed())
                for block in self._blocks()
            ]
        )


class _Sparse(Initializer):
    """Values of another initializer, except that all but a fixed number per line are zero."""

    __constraints__ = {"connections": integer(1)}

    _axis: int

    def __init__(self, sub_initializer: Any, connections: int = 15) -> None:
        super().__init__()
        as_initializer(sub_initializer)
        self.sub_initializer = sub_initializer
        self.connections = connections

    def __call__(self, shape: Shape) -> Array:
        """Return the other initializer's values, most of them replaced by 0."""
        self._check_matrix(shape)
        enough = shape[self._axis] >= self.connections
        self._check(enough, f"at least {self.connections} on dimension {self._axis}", shape)
        values = evaluate_initializer(self.sub_initializer, shape, seed=self.rnd.generate_seed())
        # sorting random keys gives each line a permutation of its own
        numbers = self.rnd.random_sample(shape).argsort(self._axis)
        return np.where(numbers < self.connections, values, 0)


class SparseInputs(_Sparse):
    """Connect every input to a fixed number of units: that many non-zeros per column.

    Args:
        sub_initializer: Creates the values; an initializer, number, list or array.
        connections: Elements kept in each column; the shape needs at least as many rows.
    """

    _axis = 0


class SparseOutputs(_Sparse):
    """Connect every unit to a fixed number of inputs: that many non-zeros per row.

    Args:
        sub_initializer: Creates the values; an initializer, number, list or array.
        connections: Elements kept in each row; the shape needs at least as many columns.
    """

    _axis = 1
