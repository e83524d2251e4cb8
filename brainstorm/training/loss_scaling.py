"""Loss scaling: small deltas survive low-precision arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.constraints import Constraint, number, whole
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.handlers.traces import Traceable
from brainstorm.hooks.base import check_counts
from brainstorm.optree import functions as fn
from brainstorm.optree.formula import formula
from brainstorm.training.kept_state import KeptState
from brainstorm.utils import Array

#: Limits of the scale. It is a power of two, by which numbers are multiplied exactly.
SMALLEST, LARGEST = 1.0, 2.0**24
SCALE = Constraint(
    "a number from 1 to 2^24",
    number(SMALLEST, LARGEST).accepts,
    convert=lambda v: float(2.0 ** np.rint(np.log2(float(v)))),
)


class LossScaling(Traceable, KeptState, Describable):
    """Multiplies the loss before the backward pass, and divides the gradients after it.

        stepper = AdamStepper(0.001)
        stepper.loss_scaling = LossScaling()

    A step whose gradients are not finite changes neither parameters nor the stepper's state, and
    halves the scale; `growth_interval` good steps in a row double it. All of this happens in the
    handler's memory, without reading values. Parameters keep the handler's precision. (Micikevicius
    et al., "Mixed Precision Training", arXiv:1710.03740, section 3.2; defaults as in PyTorch.)

    Args:
        initial: The scale at the start, from 1 to 2^24; rounded to a power of two.
        growth_interval: After how many good steps in a row the scale doubles.

    Attributes:
        numbers: Its numbers in memory; a new array with each `start`.
    """

    __undescribed__ = {"_handler", "numbers", "_kept"}

    is_traceable = True

    _handler: Any = None
    numbers: Array = None  # scale, good steps, whether the present step is good
    _kept: tuple[Array, ...] = ()

    __argument_error__ = TrainingError
    __constraints__ = {"initial": SCALE, "growth_interval": whole()}

    def __init__(self, initial: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.initial = initial
        self.growth_interval = growth_interval

    @property
    def scale(self) -> float:
        """The present scale."""
        return float(self.get_state()["scale"])

    def start(self, handler: Any, arrays: list[Array]) -> Array:
        """Set the handler and the arrays that a bad step must not change.

        Returns:
            The scale in memory, a one-element array.
        """
        state = self._waiting or self._initial_state()
        self._handler = handler
        self.numbers = handler.zeros((3,))
        values = np.array([state["scale"], state["good_steps"], 1.0])
        handler.set_from_numpy(self.numbers, values)
        self._kept = tuple(handler.zeros(tuple(array.shape)) for array in arrays)
        return self.numbers[0:1]

    def keep(self, handler: Any, arrays: list[Array]) -> None:
        """Copy the arrays before an update."""
        for array, kept in zip(arrays, self._kept, strict=True):
            handler.copy_to(array, kept)

    def judge(self, handler: Any, gradients: Array) -> None:
        """Test whether the step is good."""
        handler.compute(are_finite, [gradients], [self.numbers[2:3]])

    def finish(self, handler: Any, arrays: list[Array]) -> None:
        """Undo the step if it was bad, and change the scale."""
        scale, good, ok = (self.numbers[i : i + 1] for i in range(3))
        for array, kept in zip(arrays, self._kept, strict=True):
            handler.compute(chosen, [ok, array, kept], [array])
        following = next_scale.given(growth_interval=self.growth_interval)
        handler.compute(following, [ok, scale, good], [scale, good])

    def _initial_state(self) -> dict[str, Any]:
        return {"scale": self.initial, "good_steps": 0}

    def read_state(self) -> dict[str, Any]:
        """Return the scale and the number of good steps since it changed."""
        if self.numbers is None:
            return self._initial_state()
        scale, good, _ = self._handler.get_numpy_copy(self.numbers).tolist()
        return {"scale": scale, "good_steps": int(good)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `get_state` at the next `start`.

        Raises:
            TrainingError: It is not a scale and a count.
        """
        check_counts("LossScaling.set_state", good_steps=state["good_steps"])
        scale = state["scale"]
        if scale not in SCALE:
            raise TrainingError(
                f"LossScaling.set_state, scale: expected {SCALE.expected}, got {scale!r}. Is the "
                f"file damaged?"
            )
        super().set_state({"scale": float(scale), "good_steps": int(state["good_steps"])})


@formula
def are_finite(g: Any) -> Any:
    """Return 1 if all elements are finite, else 0."""
    return fn.min(fn.finite(g))


@formula
def chosen(ok: Any, new: Any, old: Any) -> Any:
    """Return the new values if `ok`, else the old ones."""
    return fn.where(ok, new, old)


@formula
def next_scale(ok: Any, scale: Any, good: Any, *, growth_interval: int) -> list[Any]:
    """Return the scale and the number of good steps after a step."""
    count = ok * (good + 1)
    full = fn.greater_equal(count, growth_interval)
    changed = fn.where(ok, fn.where(full, 2 * scale, scale), 0.5 * scale)
    return [fn.clip(changed, SMALLEST, LARGEST), fn.where(full, 0 * count, count)]
