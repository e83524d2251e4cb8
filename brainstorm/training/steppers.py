"""Steppers: one training step each, i.e. forward pass, backward pass, change of the parameters.

An update is one formula over the flat ``net.buffer.parameters`` and ``net.buffer.gradients``.
Numbers that change from step to step (learning rate, bias corrections) lie in memory too: ``run``
writes them there first, and what follows touches only arrays that stay where they are, so that it
can be recorded once and replayed.

A new optimiser declares its numbers and its state, and says what an update is::

    @formula
    def signs(parameters, gradients, rate):
        return parameters - rate * fn.sgn(gradients)

    class SignStepper(TrainingStepper):
        hyperparameters = {"learning_rate": NON_NEGATIVE}
        rule = signs

        def __init__(self, learning_rate: float = 0.01) -> None:
            self.learning_rate = learning_rate

        def scalars(self) -> dict[str, float]:
            return {"rate": self.learning_rate}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.handlers.plan import StandIn
from brainstorm.hooks.base import is_number
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure.planning import Plans
from brainstorm.training.loss_scaling import LossScaling
from brainstorm.utils import Array

__all__ = [
    "FRACTION",
    "NON_NEGATIVE",
    "ForwardStepper",
    "MomentumStepper",
    "NesterovStepper",
    "Range",
    "SgdStepper",
    "TrainingStepper",
]


class Range(NamedTuple):
    """The half-open interval [low, high) that a hyperparameter must lie in."""

    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return is_number(value) and self.low <= value < self.high  # type: ignore[operator]

    def __str__(self) -> str:
        end = "" if math.isinf(self.high) else f" and < {self.high:g}"
        return f"a finite number >= {self.low:g}{end}"


NON_NEGATIVE = Range(0.0, math.inf)
POSITIVE = Range(np.finfo(np.float32).tiny.item(), math.inf)
FRACTION = Range(0.0, 1.0)

_NOTHING: Mapping[str, Array] = MappingProxyType({})


@formula
def within_norm(g: Any, limit: Any) -> Any:
    """The gradients, scaled to a norm of `limit` if theirs is larger.

    They are divided by the largest before they are squared, which could overflow.
    """
    largest = fn.maximum(fn.max(fn.absolute(g)), np.finfo(np.float32).tiny.item())
    norm = largest * fn.sqrt(fn.sum(fn.square(g / largest)))
    return g * (limit / fn.maximum(norm, limit))  # exactly g * 1 within the limit


class TrainingStepper(Describable):
    """Base of all steppers.

    A subclass sets ``hyperparameters``, ``state_names`` and ``rule``, and implements `scalars` (and
    `look_ahead`, where something must happen before the passes). In place of a ``rule`` it can
    implement `update` with any handler operations.

    Attributes:
        hyperparameters: Name -> `Range`. Every assignment to such an attribute is checked, also
            the one that a hook makes while training.
        rule: The formula of an update. It takes the parameters, the gradients, the arrays of
            ``state_names`` and the numbers of `scalars`, in their orders, and gives the new
            parameters and the new state.
        state_names: Arrays with one value per parameter that are kept from step to step.
        scratch_names: The same, but without a meaning between two steps; for `update`.
        max_gradient_norm: If the Euclidean norm of all gradients together is larger, they are
            scaled to it, after the gradient modifiers (Pascanu et al., arXiv:1211.5063); `None`
            lets them be.
        loss_scaling: A `LossScaling`; `None` is none. Set it before the training.
        net: The network; set by `start`.
        steps: How many times `run` was called since `start`.
        state: The arrays of ``state_names`` on the network's handler; zero after `start`.
        scratch: The arrays of ``scratch_names``; content arbitrary.
        numbers: The values of `scalars` in memory: one-element arrays on the handler.
    """

    __undescribed__ = {
        "net": None,
        "steps": 0,
        "state": {},
        "scratch": {},
        "numbers": {},
        "_all_numbers": None,
        "_restored": None,
        "_plans": None,
        "_limit": None,
    }
    __default_values__ = {"max_gradient_norm": None, "loss_scaling": None}

    max_gradient_norm: float | None = None
    loss_scaling: LossScaling | None = None

    hyperparameters: dict[str, Range] = {}
    rule: Formula | None = None
    state_names: tuple[str, ...] = ()
    scratch_names: tuple[str, ...] = ()

    net: Any = None
    steps: int = 0
    state: Mapping[str, Array] = _NOTHING
    scratch: Mapping[str, Array] = _NOTHING
    numbers: Mapping[str, Array] = _NOTHING
    _all_numbers: Array = None
    _limit: Array = None
    _plans: Plans = None  # type: ignore[assignment]  # made by start
    _restored: dict[str, Any] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        allowed = self.hyperparameters.get(name)
        if name == "max_gradient_norm" and value is not None:
            allowed = POSITIVE
        if name in ("max_gradient_norm", "loss_scaling") and self._plans is not None:
            super().__setattr__("_plans", Plans())  # a step consists of other operations now
        if allowed is not None and value not in allowed:
            raise TrainingError(f"{type(self).__name__}.{name}: expected {allowed}, got {value!r}.")
        super().__setattr__(name, value)

    @property
    def handler(self) -> Any:
        """The handler of the network."""
        return self.net.handler

    @property
    def parameters(self) -> Array:
        """All parameters of the network, flat."""
        return self.net.buffer.parameters

    @property
    def gradients(self) -> Array:
        """All gradients of the network, flat, in the order of the parameters."""
        return self.net.buffer.gradients

    def start(self, net: Any) -> None:
        """Take over a network: allocate the state, zero or as given to `set_state`.

        Must be called again after the network changed its handler.

        Raises:
            TrainingError: The state given to `set_state` belongs to another network or stepper.
        """
        self.net = net
        self._plans = Plans()
        self.steps = 0
        shape = tuple(self.parameters.shape)
        self.state = {name: self.handler.zeros(shape) for name in self.state_names}
        self.scratch = {name: self.handler.zeros(shape) for name in self.scratch_names}
        names = tuple(self.scalars())
        self._all_numbers = self.handler.zeros((len(names),))
        self.numbers = {name: self._all_numbers[i : i + 1] for i, name in enumerate(names)}
        self._limit = self.handler.zeros((1,))
        if self._restored is not None:
            self._restore(self._restored, shape)
            self._restored = None
        scale = None
        if self.loss_scaling is not None:
            scale = self.loss_scaling.start(self.handler, self._changed())
        if scale is not getattr(net, "loss_scale", None):
            net.loss_scale = scale

    def _changed(self) -> list[Array]:
        """Return the arrays that a step changes."""
        return [self.parameters, *self.state.values()]

    def run(self) -> None:
        """Do one step on the data that the network holds, by plan where that can be done.

        In steady state nothing is allocated.
        """
        self.steps += 1
        self.refresh()
        self._plans.run(self.net, self.step, self._record)

    def refresh(self) -> None:
        """Write the values of `scalars` to where `update` reads them."""
        values = self.scalars()
        if values:
            self.handler.set_from_numpy(self._all_numbers, np.array(list(values.values())))
        if self.max_gradient_norm is not None:
            self.handler.set_from_numpy(self._limit, np.array([self.max_gradient_norm]))

    def step(self) -> None:
        """Do what can be recorded and replayed: both passes, and handler operations."""
        scaling = self.loss_scaling
        if scaling is not None:
            scaling.keep(self.handler, self._changed())
        self.look_ahead()
        self.net.forward_pass(training_pass=True)
        self.net.backward_pass()
        if scaling is not None:
            scaling.judge(self.handler, self.gradients)
        if self.max_gradient_norm is not None:
            g = self.gradients
            self.handler.compute(within_norm, [g, self._limit], [g])
        self.update()
        if scaling is not None:
            scaling.finish(self.handler, self._changed())

    def _record(self, recorded_net: Any) -> None:
        """Do `step` with a recorded network; what `refresh` has written must not be looked at."""
        recorder = recorded_net.handler
        guarded = {
            name: {key: recorder.guard(array) for key, array in getattr(self, name).items()}
            for name in ("state", "scratch", "numbers")
        }
        stand_in = StandIn(self, (*self.hyperparameters, "steps"), net=recorded_net, **guarded)
        stand_in.copy.step()
        stand_in.check()

    def scalars(self) -> dict[str, float]:
        """Return the numbers that `update` uses in this step, always with the same names."""
        return {}

    def look_ahead(self) -> None:
        """Change the parameters before the passes; handler operations only."""

    def update(self) -> None:
        """Change the parameters after the passes; handler operations on fixed arrays only."""
        if self.rule is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither rule nor update")
        state = list(self.state.values())
        inputs = [self.parameters, self.gradients, *state, *self.numbers.values()]
        self.handler.compute(self.rule, inputs, [self.parameters, *state])

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return copies of all that the next step depends on.

        Returns:
            ``'steps'``, the hyperparameters, and one NumPy array per name in ``state_names``
            (these only once `start` was called); and the state of the loss scaling.
        """
        values = {name: getattr(self, name) for name in self.hyperparameters}
        if self.loss_scaling is not None:
            values["loss_scaling"] = self.loss_scaling.get_state()
        if self._restored is not None:  # and not started since
            return {**self._restored, **values}
        arrays = {name: self.handler.get_numpy_copy(a) for name, a in self.state.items()}
        return {"steps": self.steps, **values, **arrays}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take hyperparameters from `get_state` at once, the arrays at the next `start`.

        Raises:
            TrainingError: The names are not those of this stepper.
        """
        expected = {"steps", *self.hyperparameters}
        state = dict(state)
        scaling = state.pop("loss_scaling", None) if self.loss_scaling is not None else None
        if set(state) not in (expected, expected.union(self.state_names)):
            wanted = ", ".join(sorted(expected.union(self.state_names)))
            raise TrainingError(
                f"{type(self).__name__}.set_state: expected {wanted}, got "
                f"{', '.join(sorted(state))}. Is it the state of another stepper?"
            )
        for name in self.hyperparameters:
            setattr(self, name, state[name])
        self._restored = state
        if self.loss_scaling is not None and scaling is not None:
            self.loss_scaling.set_state(scaling)

    def _restore(self, saved: Mapping[str, Any], shape: tuple[int, ...]) -> None:
        for name in set(self.state_names).intersection(saved):
            if np.shape(saved[name]) != shape:
                raise TrainingError(
                    f"{type(self).__name__}.start, state {name!r}: expected shape {shape} like the "
                    f"parameters, got {np.shape(saved[name])}. Is it the state of another network?"
                )
            self.handler.set_from_numpy(self.state[name], saved[name])
        self.steps = int(saved["steps"])


class ForwardStepper(TrainingStepper):
    """Only a forward pass: nothing is learned, but monitors and scores can run.

    Args:
        use_training_pass: Whether the layers behave as in training (dropout, batch statistics).
    """

    def __init__(self, use_training_pass: bool = False) -> None:
        self.use_training_pass = use_training_pass

    def step(self) -> None:
        """Do the forward pass."""
        self.net.forward_pass(training_pass=self.use_training_pass)


@formula
def descended(p: Any, g: Any, rate: Any) -> Any:
    """The parameters after a step down the gradient."""
    return p - rate * g


class SgdStepper(TrainingStepper):
    """Stochastic gradient descent: ``p -= learning_rate * g``."""

    hyperparameters = {"learning_rate": NON_NEGATIVE}
    rule = descended

    def __init__(self, learning_rate: float = 0.1) -> None:
        self.learning_rate = learning_rate

    def scalars(self) -> dict[str, float]:
        """Return the factor of the gradients."""
        return {"rate": self.learning_rate}


@formula
def with_momentum(p: Any, g: Any, velocity: Any, rate: Any, momentum: Any) -> list[Any]:
    """The parameters after a step with a changed velocity, and this."""
    velocity = momentum * velocity - rate * g
    return [p + velocity, velocity]


class MomentumStepper(TrainingStepper):
    """Gradient descent with momentum: ``v = momentum * v - rate * g; p += v``.

    Args:
        learning_rate: Step size.
        momentum: How much of the last velocity remains, in [0, 1).
        scale_learning_rate: Whether ``rate`` is ``learning_rate * (1 - momentum)``, so that the
            momentum does not change the size of the steps, or ``learning_rate`` itself.
    """

    hyperparameters = {"learning_rate": NON_NEGATIVE, "momentum": FRACTION}
    rule = with_momentum
    state_names = ("velocity",)

    def __init__(
        self,
        learning_rate: float = 0.1,
        momentum: float = 0.0,
        scale_learning_rate: bool = True,
    ) -> None:
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.scale_learning_rate = scale_learning_rate

    def scalars(self) -> dict[str, float]:
        """Return the factors of the gradients and of the velocity."""
        scale = 1.0 - self.momentum if self.scale_learning_rate else 1.0
        return {"rate": self.learning_rate * scale, "momentum": self.momentum}


@formula
def led(p: Any, velocity: Any, momentum: Any) -> list[Any]:
    """The parameters where the velocity leads, and what remains of this."""
    velocity = momentum * velocity
    return [p + velocity, velocity]


@formula
def corrected(p: Any, g: Any, velocity: Any, rate: Any, momentum: Any) -> list[Any]:
    """Parameters and velocity after the gradients found there."""
    return [p - rate * g, velocity - rate * g]


class NesterovStepper(MomentumStepper):
    """Nesterov's accelerated gradient: the gradients are taken where the momentum leads.

    ``v *= momentum; p += v``; both passes; ``v -= rate * g; p -= rate * g``. The arguments are
    those of `MomentumStepper`. (Sutskever et al., ICML 2013.)
    """

    rule = corrected

    def look_ahead(self) -> None:
        """Go where the velocity leads."""
        velocity = self.state["velocity"]
        inputs = [self.parameters, velocity, self.numbers["momentum"]]
        self.handler.compute(led, inputs, [self.parameters, velocity])
