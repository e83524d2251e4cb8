"""Gradient accumulation: one update for several batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import whole
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.hooks.base import check_counts
from brainstorm.optree.formula import formula
from brainstorm.training.kept_state import KeptState
from brainstorm.utils import Array


class GradientAccumulation(KeptState, Describable):
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

    given = 0
    sequences = 0
    _handler: Any = None
    total: Array = None
    numbers: Array = None  # sequences of this batch, one over those of all

    __argument_error__ = TrainingError
    __constraints__ = {"batches": whole()}

    def __init__(self, batches: int) -> None:
        self.batches = batches

    @property
    def is_at_last(self) -> bool:
        """Whether the next batch is the last one of the update."""
        return self.given + 1 >= self.batches

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

    def add(self, gradients: Array, sequences: int) -> int:
        """Add the gradients of a batch, and return how many sequences have been added.

        With the last batch they become those of all; the sum stays as it was until `clear`, so that
        another batch can be the last one.
        """
        total = self.sequences + sequences
        self._handler.set_from_numpy(self.numbers, np.array([sequences, 1.0 / max(1, total)]))
        weight, share = self.numbers[0:1], self.numbers[1:2]
        if self.is_at_last:
            self._handler.compute(averaged, [gradients, self.total, weight, share], [gradients])
        else:
            self._handler.mult_add_st(weight, gradients, self.total)
            self.given, self.sequences = self.given + 1, total
        return total

    def clear(self) -> None:
        """Start again from zero, after an update."""
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


@formula
def averaged(g: Any, total: Any, sequences: Any, share: Any) -> Any:
    """Return the mean gradients of all batches, given the sum over those before the last one."""
    return (total + sequences * g) * share
