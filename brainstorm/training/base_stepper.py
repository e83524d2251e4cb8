"""Steppers: one training step each, i.e. forward pass, backward pass, change of the parameters.

An update is one formula over the flat ``net.buffer.parameters`` and ``net.buffer.gradients``.
Numbers that change from step to step (learning rate, bias corrections) lie in memory too: ``run``
writes them first; the rest uses only arrays at fixed addresses, so it can be traced once and
replayed.

A new optimiser declares its hyperparameters, its state and the formula of an update; if it does
nothing but handler operations, it is `Traceable`::

    @formula
    def signs(parameters, gradients, rate):
        return parameters - rate * fn.sgn(gradients)

    class SignStepper(TrainingStepper):
        is_traceable = True
        hyperparameters = {"learning_rate": NON_NEGATIVE}
        rule = signs

        def __init__(self, learning_rate: float = 0.01) -> None:
            self.learning_rate = learning_rate

        def scalars(self) -> dict[str, float]:
            return {"rate": self.learning_rate}
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from brainstorm.describable import Describable
from brainstorm.errors import TrainingError, shown
from brainstorm.handlers.traces import Trace, Traceable
from brainstorm.hooks.base import check_counts
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure.tracing import Traces
from brainstorm.training.accumulation import GradientAccumulation
from brainstorm.training.hyperparameters import FRACTION, NON_NEGATIVE, POSITIVE, Range
from brainstorm.training.loss_scaling import LossScaling
from brainstorm.training.parameter_groups import GroupedParameters, ParameterGroup, checked_groups
from brainstorm.utils import Array

__all__ = ["FRACTION", "NON_NEGATIVE", "Range", "TrainingStepper"]


_NOTHING: Mapping[str, Array] = MappingProxyType({})


@formula
def within_norm(g: Any, limit: Any) -> Any:
    """Return the gradients, scaled to a norm of `limit` if theirs is larger.

    They are divided by the largest before they are squared, because squares could overflow.
    """
    largest = fn.maximum(fn.max(fn.absolute(g)), np.finfo(np.float32).tiny.item())
    norm = largest * fn.sqrt(fn.sum(fn.square(g / largest)))
    return g * (limit / fn.maximum(norm, limit))  # exactly g * 1 within the limit


#: Attributes that decide what a step consists of, beside the update; the others hold values that
#: change from step to step.
_PARTS = ("max_gradient_norm", "loss_scaling", "accumulation", "groups", "reducer")
_CHANGING = ("steps", "is_idle")

#: Attributes that hold an object of a class, or `None`.
_HELPERS = {"loss_scaling": LossScaling, "accumulation": GradientAccumulation}


class TrainingStepper(Traceable, Describable):
    """Base class of all steppers.

    A subclass sets ``hyperparameters``, ``state_names`` and ``rule``, and implements `scalars` (and
    `look_ahead`, if gradients are computed at other parameters). Instead of a ``rule`` it can
    implement `update` with any handler operations.

    Attributes:
        learns: Whether the stepper changes the parameters at all; set by the class.
        hyperparameters: Name -> `Range`. Every assignment to such an attribute is checked,
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
        max_gradient_norm: If the Euclidean norm of all gradients together is larger, they are
            scaled to it, after the gradient modifiers (Pascanu et al., arXiv:1211.5063); `None`:
            no limit.
        loss_scaling: A `LossScaling`, or `None`. Set it before training.
        accumulation: A `GradientAccumulation`; `None`: one update per batch. Set it before
            training.
        groups: A list of `ParameterGroup`: parameters with a learning rate or decay of their own,
            or that are frozen.
        reducer: Combines the gradients of several processes. It has ``start(stepper)``, called at
            the end of `start`, and ``reduce(gradients, sequences)``, called before every update
            with the number of sequences over which the gradients are means. If its ``is_in_step``
            is true, ``begin(sequences)``, ``reduce_in_step(handler)``, which a trace repeats, and
            ``finish()`` are called instead. Gradient modifiers then act on the combined gradients.
            `None` for a single process.
        is_idle: Whether the batch in the network does not count: its sequences belong to other
            processes.
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
        "net", "steps", "state", "scratch", "numbers", "weights", "uncorrected", "reducer",
        "is_idle", "_grouped", "_holder", "_restored", "_traces", "_limit", "_before",
    }  # fmt: skip
    __default_values__ = {
        "max_gradient_norm": None,
        "loss_scaling": None,
        "accumulation": None,
        "groups": [],
    }

    max_gradient_norm: float | None = None
    loss_scaling: LossScaling | None = None
    accumulation: GradientAccumulation | None = None
    groups: Sequence[ParameterGroup] = ()
    reducer: Any = None
    is_idle: bool = False

    __argument_error__ = TrainingError
    learns = True
    hyperparameters: dict[str, Range] = {}
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
    _grouped: GroupedParameters = None  # type: ignore[assignment]  # made by start
    _holder: Any = None  # the handler of the state
    _limit: Array = None
    _before: Array = None  # the parameters while `look_ahead` has moved them; None without it
    _traces: Traces = None  # type: ignore[assignment]  # made by start
    _restored: dict[str, Any] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        allowed = self.hyperparameters.get(name)
        if name == "max_gradient_norm" and value is not None:
            allowed = POSITIVE
        if allowed is not None and value not in allowed:
            raise TrainingError(
                f"{type(self).__name__}.{name}: expected {allowed}, got {shown(value)}."
            )
        if name in _HELPERS and not isinstance(value, (_HELPERS[name], type(None))):
            raise TrainingError(
                f"{type(self).__name__}.{name}: expected a {_HELPERS[name].__name__} or None, got "
                f"{shown(value)}."
            )
        if name == "groups":
            value = checked_groups(self, value)
            if self._traces is not None:
                self._group_parameters(value)
        object.__setattr__(self, name, value)
        if self._traces is not None and (name in _PARTS or self._depends_on(name)):
            self._traces = Traces()  # a step now consists of other operations

    def _depends_on(self, name: str) -> bool:
        """Return whether an attribute may decide which operations an update consists of."""
        is_number = name.startswith("_") or name in self.hyperparameters or name in _CHANGING
        return self.is_traceable and not is_number

    @property
    def handler(self) -> Any:
        """The handler of the network."""
        return self.net.handler

    @property
    def traces(self) -> Mapping[Hashable, Trace]:
        """The traces of its steps, by the part of a step, T, B and so on; last used comes last."""
        return self._traces.kept

    @property
    def parameters(self) -> Array:
        """All parameters of the network, flat."""
        return self.net.buffer.parameters

    @property
    def gradients(self) -> Array:
        """All gradients of the network, flat, in the order of the parameters."""
        return self.net.buffer.gradients

    def start(self, net: Any) -> None:
        """Attach to a network: allocate the state, zero or as given to `set_state`.

        Must be called again after the handler of the network has changed.

        Raises:
            TrainingError: The network has no loss or was never initialized; or the state given to
                `set_state` belongs to another network or stepper; or a group names parameters that
                the network does not have.
        """
        if self.learns:
            self._check_can_learn(net)
        self.net, self._holder = net, net.handler
        self._traces = Traces()
        shape = tuple(self.parameters.shape)
        self.state = {name: self.handler.zeros(shape) for name in self.state_names}
        self.scratch = {name: self.handler.zeros(shape) for name in self.scratch_names}
        restored, self._restored = self._restored or {}, None
        self._restore(restored, shape)
        self._group_parameters(self.groups, restored)
        self._limit = self.handler.zeros((1,))
        self._before = self.handler.zeros(shape) if self._replaces("look_ahead") else None
        scaling = self.loss_scaling
        net.loss_scale = scaling and scaling.start(self.handler, self._changed())
        if self.accumulation is not None:
            self.accumulation.start(self.handler, *shape)
        if self.reducer is not None:
            self.reducer.start(self)

    def _check_can_learn(self, net: Any) -> None:
        if not net.loss_layers:
            raise TrainingError(
                f"{type(self).__name__}.start: expected a network with a Loss layer, got none: "
                f"there is nothing to learn. Wire one: output - 'loss' >> Loss()."
            )
        if net.parameters_size and not net.initializers and not net.get("parameters").any():
            raise TrainingError(
                f"{type(self).__name__}.start: expected parameters to begin with, got zeros only. "
                f"Call net.initialize, e.g. net.initialize(DenseSqrtFanIn(), fallback=0)."
            )

    def _group_parameters(
        self, groups: Sequence[ParameterGroup], weights: Mapping[str, Any] | None = None
    ) -> None:
        if weights is None:  # during a training
            weights = self._grouped.get_weights()
        self._grouped = GroupedParameters(self, groups, weights)
        self.numbers = self._grouped.numbers

    def _changed(self) -> list[Array]:
        """Return the arrays that a step changes."""
        return [self.parameters, *self.state.values(), self._grouped.memory_of_parts]

    def run(self) -> None:
        """Do one step on the data in the network: traced the first time, then replayed.

        After the first steps, nothing is allocated. A batch whose passes raise an error does not
        count: the next one takes its place in the update.
        """
        begins = not self.is_within_update
        self.steps += begins
        self.refresh()
        if self._before is not None:
            self.handler.copy_to(self.parameters, self._before)
        try:
            self._run()
        except BaseException:
            self.steps -= begins
            self._come_back()
            raise

    @property
    def is_within_update(self) -> bool:
        """Whether more batches must be added to the gradients before an update."""
        return self.accumulation is not None and self.accumulation.given > 0

    def _go_ahead(self) -> None:
        if self._before is not None:
            self._do_parts("look_ahead")

    def _come_back(self) -> None:
        """Undo `look_ahead`."""
        if self._before is not None:
            self.handler.copy_to(self._before, self.parameters)

    def _run(self) -> None:
        """Do a step; the numbers are already where `update` reads them."""
        accumulation, reducer = self.accumulation, self.reducer
        sequences = 0 if self.is_idle else self.net.batch_size
        if self._is_one_trace:
            if reducer is not None:
                reducer.begin(sequences)
            self.do_traced("step")
            if reducer is not None:
                reducer.finish()
            return
        if accumulation is not None:
            accumulation.weigh(sequences)
        self.do_traced("do_passes")
        if accumulation is not None:
            accumulation.count(sequences)
            if not accumulation.is_complete:
                return
            sequences = accumulation.sequences
            accumulation.finish(self.gradients)
        if reducer is not None:
            reducer.reduce(self.gradients, sequences)
        self.do_traced("finish_update")

    @property
    def _is_one_trace(self) -> bool:
        """Whether a step is traced as a whole."""
        return self.accumulation is None and (self.reducer is None or self.reducer.is_in_step)

    @property
    def _takes_one_batch(self) -> bool:
        """Whether the gradients of an update come from one backward pass without changes."""
        return self.accumulation is None and self.reducer is None

    def refresh(self) -> None:
        """Write the values of `scalars` to the arrays that `update` reads."""
        self._grouped.refresh(self)
        if self.max_gradient_norm is not None:
            self.handler.set_from_numpy(self._limit, np.array([self.max_gradient_norm]))

    def do_traced(self, method: str) -> None:
        """Call one of the methods of a step, by its trace if there is one."""
        function = getattr(self, method)
        scaling = self.loss_scaling
        if self._is_replaced or type(scaling) not in (LossScaling, type(None)):
            function()  # a trace would repeat handler operations only
            return
        interval = scaling and scaling.growth_interval
        purpose = method, *self._grouped.purpose, interval
        self.net.do_traced(self._traces, function, purpose)

    @property
    def _is_replaced(self) -> bool:
        """Whether a subclass replaces methods that a trace would skip."""
        if any(name in vars(self) for name in _METHODS):
            return True
        return not self.is_traceable and any(map(self._replaces, _METHODS))

    def _replaces(self, method: str) -> bool:
        """Return whether a method differs from that of the base class."""
        return (
            method in vars(self) or getattr(type(self), method) is not vars(TrainingStepper)[method]
        )

    def step(self) -> None:
        """Do a whole step, if one batch makes an update."""
        self.do_passes()
        self.finish_update()

    def do_passes(self) -> None:
        """Do both passes for a batch, with the parameters that `look_ahead` sets."""
        self._go_ahead()
        self.net.forward_pass(training_pass=True)
        self.net.backward_pass(modify=self._takes_one_batch)
        if self.accumulation is not None:
            self.accumulation.add(self.handler, self.gradients)
            self._come_back()

    def finish_update(self) -> None:
        """Do everything after the passes of the last batch of an update."""
        scaling, g = self.loss_scaling, self.gradients
        if self.accumulation is not None:
            self._go_ahead()  # penalties must be taken where the gradients were
        if self.reducer is not None and self._is_one_trace:
            self.reducer.reduce_in_step(self.handler)
        if not self._takes_one_batch:
            self.net.apply_gradient_modifiers()
        self._grouped.freeze(self)
        if scaling is not None:
            scaling.judge(self.handler, g)
        if self.max_gradient_norm is not None:
            self.handler.compute(within_norm, [g, self._limit], [g])
        self._grouped.add_decays(self)
        self._come_back()
        if scaling is not None:
            scaling.keep(self.handler, self._changed())
        self._do_parts("update")
        if scaling is not None:
            scaling.finish(self.handler, self._changed())

    def _do_parts(self, method: str) -> None:
        """Call `look_ahead` or `update` for each part of the parameters."""

        def run() -> None:
            for part in self._grouped.parts(self):
                getattr(part, method)()

        with self.handler.running.at(f"{type(self).__name__}, {method}"):
            if self.is_traceable and method not in vars(self):
                run()
            else:
                self.handler.call(run)

    def scalars(self) -> dict[str, float]:
        """Return the numbers that `update` uses in this step, always with the same names."""
        return {}

    def look_ahead(self) -> None:
        """Move the parameters to where gradients are computed, by handler operations only.

        Called before the passes of each batch, and undone before `update`.
        """

    def update(self) -> None:
        """Change the parameters after the passes, by handler operations on fixed arrays only."""
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

    def get_state(self) -> dict[str, Any]:
        """Return copies of everything that the next step depends on.

        Returns:
            ``'steps'``, the hyperparameters, and one NumPy array per name in ``state_names``
            (only after `start`); and the states of loss scaling and accumulation.
        """
        values = {name: getattr(self, name) for name in self.hyperparameters}
        values.update((name, part.get_state()) for name, part in self._kept_parts().items())
        if self._restored is not None:  # and not started since
            return {**self._restored, **values}
        arrays = {name: self._holder.get_numpy_copy(a) for name, a in self.state.items()}
        weights = self._grouped.get_weights() if self._grouped is not None else {}
        return {"steps": self.steps, **values, **arrays, **weights}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set the hyperparameters from `get_state` at once, and the arrays at the next `start`.

        Raises:
            TrainingError: The names are not those of this stepper, or a number is not valid.
        """
        expected = {"steps", *self.hyperparameters}
        state = dict(state)
        parts = self._kept_parts()
        states = {name: state.pop(name) for name in parts if name in state}
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
        self._restored = state
        for name, values in states.items():
            parts[name].set_state(values)

    def _kept_parts(self) -> dict[str, Any]:
        """Return the parts of the stepper that have a state of their own, by name."""
        parts = {name: getattr(self, name) for name in ("loss_scaling", "accumulation")}
        return {name: part for name, part in parts.items() if part is not None}

    def _restore(self, saved: Mapping[str, Any], shape: tuple[int, ...]) -> None:
        weights = (len(self.net.parameter_slices),) if self.weight_names else ()
        shapes = dict.fromkeys(self.state_names, shape) | dict.fromkeys(self.weight_names, weights)
        for name in set(shapes).intersection(saved):
            if np.shape(saved[name]) != shapes[name]:
                raise TrainingError(
                    f"{type(self).__name__}.start, state {name!r}: expected shape {shapes[name]} "
                    f"like the parameters, got {np.shape(saved[name])}. Is it the state of another "
                    f"network?"
                )
        for name in set(self.state_names).intersection(saved):
            self.handler.set_from_numpy(self.state[name], saved[name])
        self.steps = saved.get("steps", 0)


#: The methods of a step that `run` traces. A class that replaces any of these is called in every
#: step, unless it is declared traceable.
_METHODS = ("step", "do_passes", "finish_update")
