"""Update rules: how parameters follow from gradients.

A rule is one formula over the flat parameters and gradients of a network, and arrays of state.
Numbers that change from step to step (learning rate, bias corrections) lie in memory too, so that
the operations of an update are the same in every step.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, cast

import numpy as np

from brainstorm.constraints import Constraint
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.handlers.traces import Traceable
from brainstorm.hooks.base import check_counts
from brainstorm.optree import Formula
from brainstorm.training.kept_state import KeptState
from brainstorm.utils import Array

_NOTHING: Mapping[str, Array] = MappingProxyType({})


class UpdateRule(Traceable, KeptState, Describable):
    """The rule of a stepper, with its hyperparameters and its state.

    A subclass sets ``hyperparameters``, ``state_names`` and ``rule``, and implements `scalars` (and
    `look_ahead`, if gradients are computed at other parameters). Instead of a ``rule`` it can
    implement `update` with any handler operations.

    Attributes:
        hyperparameters: Name to constraint. Every assignment to such an attribute is checked,
            including those by hooks during training.
        rule: The formula of an update. It takes the parameters, the gradients, the arrays of
            ``state_names`` and the numbers of `scalars`, in their orders, and returns the new
            parameters and the new state.
        state_names: Arrays with one value per parameter that are kept from step to step.
        correction: The formula of the bias correction of averages. It takes a *weight* for each of
            ``weight_names``, the sum of the factors with which values entered an average so far,
            and the numbers of `scalars`; it returns the new weights, which are kept until the next
            update, and the values that ``rule`` takes in place of ``corrected_names``.
        weight_names: See ``correction``.
        corrected_names: See ``correction``.
        scratch_names: Arrays like those of ``state_names``, but not kept between steps; for
            `update`.
        net: The network; set by `start`.
        steps: Number of updates begun, including those before `set_state`. Unlike the weights of
            ``correction``, it counts skipped updates and those of frozen parameters.
        state: The arrays of ``state_names`` on the network's handler; zero after `start`.
        scratch: The arrays of ``scratch_names``; their content is arbitrary.
        numbers: The values of `scalars` in memory: one-element arrays on the handler.
        weights: The weights of ``correction``, likewise, for the parameters of this update.
        uncorrected: The numbers before their correction.
    """

    __undescribed__ = {
        "net", "steps", "state", "scratch", "numbers", "weights", "uncorrected", "_holder",
        "_rows",
    }  # fmt: skip

    __argument_error__ = TrainingError
    hyperparameters: dict[str, Constraint] = {}
    rule: Formula | None = None
    state_names: ClassVar[tuple[str, ...]] = ()
    scratch_names: tuple[str, ...] = ()
    correction: Formula | None = None
    weight_names: tuple[str, ...] = ()
    corrected_names: tuple[str, ...] = ()

    net: Any = None
    steps: int = 0
    state: Mapping[str, Array] = _NOTHING
    scratch: Mapping[str, Array] = _NOTHING
    numbers: Mapping[str, Array] = _NOTHING
    weights: Mapping[str, Array] = _NOTHING
    uncorrected: Mapping[str, Array] = _NOTHING
    _holder: Any = None  # the handler of the state
    _rows = slice(None)  # of the flat arrays; those of a part while that is updated

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = {"steps", *cls.hyperparameters}
        for attribute in ("state_names", "weight_names", "scratch_names"):
            names = getattr(cls, attribute)
            if isinstance(names, str) or not taken.isdisjoint(names):
                raise TrainingError(
                    f"{cls.__name__}.{attribute}: expected names such as ('mean',), none of them "
                    f"{', '.join(sorted(taken))}, got {names!r}."
                )

    @classmethod
    def _merged(cls, attribute: str) -> dict[str, Any]:
        merged = super()._merged(attribute)
        return merged | cls.hyperparameters if attribute == "__constraints__" else merged

    @property
    def handler(self) -> Any:
        """The handler of the network."""
        return self.net.handler

    @property
    def parameters(self) -> Array:
        """All parameters of the network, flat; in `update` those of a part."""
        return self.net.buffer.parameters[self._rows]

    @property
    def gradients(self) -> Array:
        """The gradients of `parameters`."""
        return self.net.buffer.gradients[self._rows]

    def scalars(self) -> dict[str, float]:
        """Return the numbers that `update` uses in this step, always with the same names."""
        return {}

    def look_ahead(self) -> None:
        """Move the parameters to where gradients are computed, by handler operations only.

        Called before the passes of each batch, once per part like `update`, and undone before it.
        """

    def update(self) -> None:
        """Change the parameters after the passes, by handler operations on fixed arrays only.

        Called by a step (`TrainingStepper.run` or `apply`), once per part of the parameters, which
        has a group and weights of its own: usually once, with all of them. `parameters`,
        `gradients`, state and numbers are those of the part.
        """
        if self.rule is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither rule nor update")
        if self.correction is not None:
            weights = list(self.weights.values())
            corrected = [self.numbers[name] for name in self.corrected_names]
            inputs = [*weights, *self.uncorrected.values()]
            self.handler.compute(self.correction, inputs, [*weights, *corrected])
        state = list(self.state.values())
        inputs = [self.parameters, self.gradients, *state, *self.numbers.values()]
        self.handler.compute(self.rule, inputs, [self.parameters, *state])

    # -- state ------------------------------------------------------------------------------------

    def attach(self, net: Any) -> Mapping[str, Any]:
        """Allocate the state for a network, zero or as given to `set_state`.

        Returns:
            What was given to `set_state` since the last `start`.

        Raises:
            TrainingError: It belongs to another network.
        """
        self.net, self._holder = net, net.handler
        shape = tuple(self.parameters.shape)
        self.state = {name: self.handler.zeros(shape) for name in self.state_names}
        self.scratch = {name: self.handler.zeros(shape) for name in self.scratch_names}
        restored = self._waiting or {}
        weights = (len(net.parameter_slices),) if self.weight_names else ()
        shapes = dict.fromkeys(self.state_names, shape) | dict.fromkeys(self.weight_names, weights)
        for name in set(shapes).intersection(restored):
            if np.shape(restored[name]) != shapes[name]:
                raise TrainingError(
                    f"{type(self).__name__}.start, state {name!r}: expected shape {shapes[name]} "
                    f"like the parameters, got {np.shape(restored[name])}. Is it the state of "
                    f"another network?"
                )
        for name in set(self.state_names).intersection(restored):
            self.handler.set_from_numpy(self.state[name], restored[name])
        self.steps = restored.get("steps", 0)
        return restored

    def get_state(self) -> dict[str, Any]:
        """Return copies of everything that the next update depends on.

        Returns:
            ``'steps'``, the hyperparameters, and one NumPy array per name in ``state_names``
            (only after `start`).
        """
        values = {name: getattr(self, name) for name in self.hyperparameters}
        return {**super().get_state(), **values}

    def between_steps(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which no other thread does a step.

        During an update the attributes are those of a part of the parameters.
        """
        return contextlib.nullcontext() if self.net is None else self.net.alone()

    def __getstate__(self) -> tuple[dict[str, Any], Any]:
        with self.between_steps():
            attributes, slots = cast(tuple[dict[str, Any], Any], super().__getstate__())
            if self.net is not None:
                kept = {"_waiting": UpdateRule.get_state(self), "state": {}, "scratch": {}}
                attributes = attributes | kept
            return dict(attributes), slots

    def read_state(self) -> dict[str, Any]:
        """Return copies of the arrays, and the number of updates."""
        arrays = {name: self._holder.get_numpy_copy(a) for name, a in self.state.items()}
        return {"steps": self.steps, **arrays}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set the hyperparameters from `get_state` at once, and the arrays at the next `start`.

        Raises:
            TrainingError: The names are not those of this stepper, or a number is not valid.
        """
        expected = {"steps", *self.hyperparameters}
        whole = expected.union(self.state_names, self.weight_names)
        if set(state) not in (expected, whole):
            wanted = ", ".join(sorted(whole))
            raise TrainingError(
                f"{type(self).__name__}.set_state: expected {wanted}, got "
                f"{', '.join(sorted(state))}. Is it the state of another stepper?"
            )
        check_counts(f"{type(self).__name__}.set_state", steps=state["steps"])
        for name in self.hyperparameters:
            setattr(self, name, state[name])
        super().set_state(state)


def check_can_learn(stepper: UpdateRule, net: Any) -> None:
    """Raise an error if a network has nothing that a stepper could learn."""
    if not net.loss_layers:
        raise TrainingError(
            f"{type(stepper).__name__}.start: expected a network with a Loss layer, got none: "
            f"there is nothing to learn. Wire one: output - 'loss' >> Loss()."
        )
    if not net.parameters_size:
        raise TrainingError(
            f"{type(stepper).__name__}.start: expected a network with parameters, got none: there "
            f"is nothing to learn. A ForwardStepper only computes the losses."
        )
    if not net.initializers and not net.get("parameters").any():
        raise TrainingError(
            f"{type(stepper).__name__}.start: expected parameters to begin with, got zeros only. "
            f"Call net.initialize, e.g. net.initialize(DenseSqrtFanIn(), fallback=0)."
        )


def check_order(stepper: UpdateRule, numbers: Sequence[str]) -> None:
    """Raise an error if a formula has the names of its state and numbers in another order."""
    given = [*stepper.state_names, *numbers]
    taken = list(inspect.signature(stepper.rule.function).parameters)[2:] if stepper.rule else []
    if given != taken and sorted(given) == sorted(taken):
        raise TrainingError(
            f"{type(stepper).__name__}.rule: expected the arguments {', '.join(given)} behind the "
            f"parameters and gradients, in the order of state_names and scalars, got "
            f"{', '.join(taken)}."
        )


def check_start(stepper: Any, is_started: bool) -> None:
    """Raise an error if a stepper was not started for the present state and handler.

    Or if it has a step of its own, which something that was set would leave out.
    """
    if not is_started or stepper._waiting is not None:
        when = "after set_state" if is_started else "before it"
        raise TrainingError(f"{type(stepper).__name__}.run: expected start(net) {when}.")
    before, present = stepper._holder, stepper.handler
    if (before.array_type, before.dtype) != (present.array_type, present.dtype):
        raise TrainingError(
            f"{type(stepper).__name__}.run: expected arrays of one kind since start(net), got "
            f"those of another handler. Call start(net) again, or Trainer.train in a training."
        )
    if not stepper._takes_one_batch and stepper._replaces("step"):
        raise TrainingError(
            f"{type(stepper).__name__}.run: expected neither accumulation nor reducer, with which "
            f"its own method step is not called. Take them out, or override do_passes."
        )


@contextlib.contextmanager
def replaced(stepper: Any, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Let a stepper have other attributes in a ``with`` block."""
    own = vars(stepper)
    before = {name: own[name] for name in attributes if name in own}
    own.update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del own[name]
        own.update(before)
