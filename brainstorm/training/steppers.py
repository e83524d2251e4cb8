"""Steppers: what one training step does to the parameters.

`ForwardStepper` and plain gradient descent with and without momentum; steppers that adapt to the
gradients are in `brainstorm.training.adaptive_steppers`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brainstorm.optree import formula
from brainstorm.training.base_stepper import TrainingStepper
from brainstorm.training.hyperparameters import FRACTION, NON_NEGATIVE


@dataclass(eq=False, repr=False)
class ForwardStepper(TrainingStepper):
    """Only a forward pass: nothing is learned, but monitors and scores can run.

    Args:
        use_training_pass: Whether the layers behave as in training (dropout, batch statistics).
    """

    use_training_pass: bool = False

    is_traceable = True
    learns = False

    def do_passes(self) -> None:
        self.net.forward_pass(training_pass=self.use_training_pass)

    def finish_update(self) -> None:
        """Change nothing."""


@formula
def descended(p: Any, g: Any, rate: Any) -> Any:
    """Return the parameters after a step down the gradient."""
    return p - rate * g


@dataclass(eq=False, repr=False)
class SgdStepper(TrainingStepper):
    """Stochastic gradient descent: ``p -= learning_rate * g``."""

    learning_rate: float = 0.1

    is_traceable = True
    hyperparameters = {"learning_rate": NON_NEGATIVE}
    rule = descended

    def scalars(self) -> dict[str, float]:
        return {"rate": self.learning_rate}


@formula
def with_momentum(p: Any, g: Any, velocity: Any, rate: Any, momentum: Any) -> list[Any]:
    """Return the parameters after a step with the new velocity, and this velocity."""
    velocity = momentum * velocity - rate * g
    return [p + velocity, velocity]


@dataclass(eq=False, repr=False)
class MomentumStepper(TrainingStepper):
    """Gradient descent with momentum: ``v = momentum * v - rate * g; p += v``.

    Args:
        learning_rate: Step size.
        momentum: Fraction of the previous velocity that remains, in [0, 1).
        scale_learning_rate: Whether ``rate`` is ``learning_rate * (1 - momentum)``, so that the
            momentum does not change the size of the steps, or ``learning_rate`` itself.
    """

    learning_rate: float = 0.1
    momentum: float = 0.0
    scale_learning_rate: bool = True

    is_traceable = True
    hyperparameters = {"learning_rate": NON_NEGATIVE, "momentum": FRACTION}
    rule = with_momentum
    state_names = ("velocity",)

    def scalars(self) -> dict[str, float]:
        scale = 1.0 - self.momentum if self.scale_learning_rate else 1.0
        return {"rate": self.learning_rate * scale, "momentum": self.momentum}


class NesterovStepper(MomentumStepper):
    """Nesterov's accelerated gradient: gradients are computed where the momentum leads.

    ``v = momentum * v - rate * g; p += v``, with g at ``p + momentum * v``; hooks see p. The
    arguments are those of `MomentumStepper`. (Sutskever et al., ICML 2013.)
    """

    is_traceable = True

    def look_ahead(self) -> None:
        momentum, velocity = self.numbers["momentum"], self.state["velocity"]
        self.handler.mult_add_st(momentum, velocity, self.parameters)
