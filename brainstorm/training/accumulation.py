"""Gradient accumulation: one update for several batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import whole
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.handlers.traces import Traceable
from brainstorm.hooks.base import check_counts
from brainstorm.training.kept_state import KeptState
from brainstorm.utils import Array


class GradientAccumulation(Traceable, KeptState, Describable):
    """Lets a stepper do one update for several batches, as if they were a single one.

        stepper = AdamStepper(0.001)
        stepper.accumulation = GradientAccumulation(batches=8)

    Each batch is weighted by its number of sequences, so the gradients are those of the mean loss
    over all of them. An incomplete accumulation continues in the next epoch. Gradient modifiers and
    ``max_gradient_norm`` act on the combined gradients; hooks of timescale ``'update'``, schedules
    and weight modifiers run once per update. It takes memory for one more value per parameter.

    Args:
        batches: How many batches make an update.

    Attributes:
        given: How many batches of the present update have been added.
        sequences: How many sequences they contained.
        total: The sum of their gradients; a new array with each `start`.
        numbers: Its numbers in memory, likewise.
    """

    __undescribed__ = {"given", "sequences", "_handler", "total", "numbers"}

    is_traceable = True

    given = 0
    sequences = 0
    _handler: Any = None
    total: Array = None
    numbers: Array = None  # sequences of this batch, one over those of all

    __argument_error__ = TrainingError
    __constraints__ = {"batches": whole()}

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def decides_operations(self, name: str) -> bool:
        return name not in ("given", "sequences") and super().decides_operations(name)

    @property
    def is_complete(self) -> bool:
        """Whether all batches of the update have been added."""
        return self.given >= self.batches

    def start(self, handler: Any, size: int) -> None:
        """Start with a handler and a number of parameters, from zero or from the restored state."""
        self._handler = handler
        self.total = handler.zeros((size,))
        self.numbers = handler.zeros((2,))
        state = self._waiting or {"given": 0, "sequences": 0}
        self.given, self.sequences = state["given"], state["sequences"]
        if "total" in state:
            if np.shape(state["total"]) != (size,):
                raise TrainingError(
                    f"GradientAccumulation.start: expected a sum of {size} gradients, got "
                    f"{np.size(state['total'])}. Is it the state of another network?"
                )
            handler.set_from_numpy(self.total, state["total"])

    def weigh(self, sequences: int) -> None:
        """Set the number of sequences, of the next batch, by which its gradients are weighted."""
        numbers = np.array([sequences, 1.0 / max(1, self.sequences + sequences)])
        self._handler.set_from_numpy(self.numbers, numbers)

    def count(self, sequences: int) -> None:
        """Count a batch whose gradients were added."""
        self.given += 1
        self.sequences += sequences

    def add(self, handler: Any, gradients: Array) -> None:
        """Add the gradients of a batch, by an operation of the handler."""
        handler.mult_add_st(self.numbers[0:1], gradients, self.total)

    def finish(self, gradients: Array) -> None:
        """Write the gradients of all batches, and start again from zero."""
        self._handler.mult_st(self.numbers[1:2], self.total, gradients)
        self._handler.fill(self.total, 0.0)
        self.given = self.sequences = 0

    def read_state(self) -> dict[str, Any]:
        """Return the sum of the gradients and the counts."""
        if self.total is None:
            return {"given": 0, "sequences": 0}
        total = self._handler.get_numpy_copy(self.total)
        return {"given": self.given, "sequences": self.sequences, "total": total}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state` at the next `start`."""
        counts = {name: state[name] for name in ("given", "sequences")}
        check_counts("GradientAccumulation.set_state", **counts)
        super().set_state(state)
