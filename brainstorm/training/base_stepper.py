"""Steppers: one training step each, i.e. forward pass, backward pass, change of the parameters.

The rule of an update is apart, see `UpdateRule`. A step consists of everything else: the passes,
accumulation, the gradients of other processes, loss scaling, groups, the limit of the norm. It uses
only arrays at fixed addresses, so it can be traced once and replayed.

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

import contextlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from brainstorm.constraints import LARGEST, instance, number
from brainstorm.errors import TrainingError
from brainstorm.handlers.traces import Trace
from brainstorm.interrupts import uninterrupted
from brainstorm.network.tracing import Traces
from brainstorm.training.accumulation import GradientAccumulation
from brainstorm.training.kept_state import unless_error
from brainstorm.training.loss_scaling import LossScaling
from brainstorm.training.parameter_groups import GroupedParameters, ParameterGroup, checked_groups
from brainstorm.training.update_rule import UpdateRule, check_can_learn, check_start, replaced
from brainstorm.utils import Array
from brainstorm.value_modifiers import within_norm

#: Attributes that decide what a step consists of, beside the update; other threads set them between
#: two steps.
_PARTS = ("max_gradient_norm", "loss_scaling", "accumulation", "groups", "reducer")

#: Attributes with values that change from step to step, or that a step reads from memory.
_NUMBERS = ("steps", "is_idle", "numbers", "max_gradient_norm")

#: Attributes that hold an object with arrays, or `None`.
_HELPERS = ("loss_scaling", "accumulation")


class TrainingStepper(UpdateRule):
    """Base class of all steppers; `UpdateRule` says what a subclass declares.

    Attributes:
        learns: Whether the stepper changes the parameters at all; set by the class.
        max_gradient_norm: If the Euclidean norm of all gradients together is larger, they are
            scaled to it, after the gradient modifiers (Pascanu et al., arXiv:1211.5063); `None`:
            no limit.
        loss_scaling: A `LossScaling`, or `None`.
        accumulation: A `GradientAccumulation`; `None`: one update per batch.
        groups: A list of `ParameterGroup`: parameters with a learning rate or decay of their own,
            or that are frozen.
        reducer: Combines the gradients of several processes. It has ``start(stepper)``, called at
            the end of `start`, and ``reduce(gradients, sequences)``, called before every update
            with the number of sequences over which the gradients are means. If its ``is_in_step``
            is true, these are called instead: ``begin(sequences)``; ``passes()``, the context of
            the passes, and ``reduce_in_step(handler)``, which a trace both repeats; ``finish()``.
            Gradient modifiers then act on the combined gradients.
            `None` for a single process.
        is_idle: Whether the batch in the network does not count: its sequences belong to other
            processes.
    """

    __undescribed__ = {
        "reducer", "is_idle", "_grouped", "_traces", "_traced", "_limit", "_scale", "_before",
        "_own_numbers",
    }  # fmt: skip
    __default_values__ = {
        "max_gradient_norm": None,
        "loss_scaling": None,
        "accumulation": None,
        "groups": [],
    }

    __constraints__ = {
        "max_gradient_norm": number(float(np.finfo(np.float32).tiny), LARGEST).or_none(),
        "loss_scaling": instance(LossScaling).or_none(),
        "accumulation": instance(GradientAccumulation).or_none(),
    }

    learns = True

    max_gradient_norm: float | None = None
    loss_scaling: LossScaling | None = None
    accumulation: GradientAccumulation | None = None
    groups: Sequence[ParameterGroup] = ()
    reducer: Any = None
    is_idle: bool = False

    _grouped: GroupedParameters = None  # type: ignore[assignment]  # made by start
    _limit: Array = None
    _scale: Array = None  # that of loss_scaling
    _before: Array = None  # the parameters while `look_ahead` has moved them; None without it
    _traces: Traces = None  # type: ignore[assignment]  # made by start
    _traced: Any = None  # the revisions with which they were made
    _own_numbers: dict[str, Array]  # of the helpers that this stepper has started, made by start

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "groups":
            value = checked_groups(self, value)
        if self._traces is None or name not in _PARTS:
            super().__setattr__(name, value)
            return
        with self.net.alone():
            if name == "groups":
                self._grouped = GroupedParameters(self, value, self._grouped.get_weights())
                self.numbers = self._grouped.numbers
            super().__setattr__(name, value)
            if name in _HELPERS:
                self._start_helper(name)
                if value is not None:
                    value.started()

    def __delattr__(self, name: str) -> None:
        if name in _PARTS:
            setattr(self, name, getattr(TrainingStepper, name))
        super().__delattr__(name)

    def decides_operations(self, name: str) -> bool:
        if name in _NUMBERS or name in self.hyperparameters:
            return False
        return name in _PARTS or (self.is_traceable and super().decides_operations(name))

    @property
    def traces(self) -> Mapping[Hashable, Trace]:
        """Traces by part of a step, T, B...; last used last. Use them within ``net.alone()``."""
        return self._traces.kept

    def start(self, net: Any) -> None:
        """Attach to a network: allocate the state, zero or as given to `set_state`.

        Must be called again after the handler of the network has changed.

        Raises:
            TrainingError: The network has no loss or was never initialized; or the state given to
                `set_state` belongs to another network or stepper; or a group names parameters that
                the network does not have. The stepper then stays as it was.
        """
        with uninterrupted(), unless_error(self, *self._kept_parts().values()):
            if self.learns:
                check_can_learn(self, net)
            self._traces = None  # type: ignore[assignment]  # until all has worked
            restored, shape = self.attach(net), tuple(self.parameters.shape)
            self._grouped = GroupedParameters(self, self.groups, restored)
            self.numbers = self._grouped.numbers
            self._limit = self.handler.zeros((1,))
            self._before = self.handler.zeros(shape) if self._replaces("look_ahead") else None
            self._own_numbers = {}
            for name in _HELPERS:
                self._start_helper(name)
            if self.reducer is not None:
                self.reducer.start(self)
            for part in (self, *self._kept_parts().values()):
                part.started()
            self._traces = Traces()

    def _start_helper(self, name: str) -> None:
        helper = getattr(self, name)
        if name == "loss_scaling":
            self._scale = helper and helper.start(self.handler, self._changed())
            self.net.loss_scale = self._scale
        elif helper is not None:
            helper.start(self.handler, *self.parameters.shape)
        self._own_numbers.pop(name, None)
        if helper is not None:
            self._own_numbers[name] = helper.numbers

    def _changed(self) -> list[Array]:
        """Return the arrays that a step changes."""
        return [self.parameters, *self.state.values(), self._grouped.memory_of_parts]

    def run(self) -> None:
        """Do one step on the data in the network: traced the first time, then replayed.

        After the first steps, nothing is allocated. Ctrl-C waits for the end. A batch whose passes,
        gradient modifiers or update raise an error does not count: the next one takes its place.
        Only random numbers, running statistics and what an `update` has changed before it stay.

        Raises:
            MissingDataError: The batch is one of `net.predict`, without targets.
        """
        self._do(self._run)

    def apply(self) -> None:
        """Do an update by the gradients that are there, after a backward pass of your own.

        Raises:
            TrainingError: The stepper needs passes of its own, or several for an update.
        """
        needed = ("run", "step", "do_passes", "look_ahead")
        if not self._takes_one_batch or any(map(self._replaces, needed)):
            raise TrainingError(
                f"{type(self).__name__}.apply: expected a stepper that updates after one backward "
                f"pass, without accumulation or reducer. Call run(), which does the passes, too."
            )
        self._do(lambda: self.do_traced("finish_update"))

    def _do(self, function: Callable[[], None]) -> None:
        check_start(self, is_started=self._traces is not None)
        # Threads that change the stepper wait; but processes wait for each other in a reducer.
        alone = self.net.alone() if self.reducer is None else contextlib.nullcontext()
        with alone, uninterrupted(most=2):  # a step that was done counts
            self.net.check_complete()
            begins = not self.is_within_update
            if self._before is not None:
                self.handler.copy_to(self.parameters, self._before)
            if begins:
                self.steps += 1
            try:
                self.refresh()
                function()
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
        if self._before is not None:
            self.handler.copy_to(self._before, self.parameters)

    def _run(self) -> None:
        """Do a step; the numbers are already where `update` reads them."""
        for name, numbers in self._own_numbers.items():
            if getattr(self, name).numbers is not numbers:
                raise self.fail(name, "one of its own", "that of another stepper")
        accumulation, reducer = self.accumulation, self.reducer
        sequences = 0 if self.is_idle else self.net.batch_size
        if self._is_one_trace:
            if reducer is not None:
                reducer.begin(sequences)
            self.do_traced("step")
            if reducer is not None:
                reducer.finish()
            return
        self.do_traced("do_passes")
        if accumulation is not None:
            is_last = accumulation.is_at_last
            sequences = accumulation.add(self.gradients, sequences)
            if not is_last:
                return
        if reducer is not None:
            reducer.reduce(self.gradients, sequences)
        self.do_traced("finish_update")
        if accumulation is not None:
            accumulation.clear()

    @property
    def _is_one_trace(self) -> bool:
        """Whether a step is traced as a whole."""
        return self.accumulation is None and (self.reducer is None or self.reducer.is_in_step)

    @property
    def _takes_one_batch(self) -> bool:
        """Whether the gradients of an update come from one backward pass without changes."""
        return self.accumulation is None and self.reducer is None

    def refresh(self) -> None:
        """Write the values of `scalars` to the arrays that `update` reads, and set the network."""
        if not self._grouped.are(self.groups):  # the list itself was changed
            self.groups = self.groups
        self._grouped.refresh(self)
        if self.net.loss_scale is not self._scale:  # another stepper has set its own
            self.net.loss_scale = self._scale
        if self.max_gradient_norm is not None:
            self.handler.set_from_numpy(self._limit, np.array([self.max_gradient_norm]))

    def do_traced(self, method: str) -> None:
        """Call one of the methods of a step, by its trace if there is one."""
        function = getattr(self, method)
        if self._is_replaced:
            function()  # a trace would repeat handler operations only
            return
        revisions = self.revision, self.loss_scaling and self.loss_scaling.revision
        if revisions != self._traced:
            self._traces, self._traced = Traces(), revisions
        purpose = method, self.max_gradient_norm is None, *self._grouped.purpose
        self.net.do_traced(self._traces, function, purpose)

    @property
    def _is_replaced(self) -> bool:
        """Whether a subclass, also of `LossScaling`, replaces methods that a trace would skip."""
        if self.loss_scaling is not None and not self.loss_scaling.is_traceable:
            return True
        if self.is_traceable:
            return not vars(self).keys().isdisjoint(_METHODS)
        return any(map(self._replaces, _METHODS))

    def _replaces(self, method: str) -> bool:
        """Return whether a method differs from that of the base class."""
        own = getattr(type(self), method)
        return method in vars(self) or own is not getattr(TrainingStepper, method)

    def step(self) -> None:
        """Do a whole step, if one batch makes an update."""
        with contextlib.nullcontext() if self.reducer is None else self.reducer.passes():
            self.do_passes()
        self.finish_update()

    def do_passes(self) -> None:
        """Do both passes for a batch, with the parameters that `look_ahead` sets."""
        self._go_ahead()
        self.net.forward_pass(training_pass=True)
        self.net.backward_pass(modify=self._takes_one_batch)
        if self.accumulation is not None:
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
                with replaced(self, part):
                    getattr(self, method)()

        with self.handler.running.at(f"{type(self).__name__}, {method}"):
            if self.is_traceable and method not in vars(self):
                run()
            else:
                self.handler.call(run)

    # -- state ------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of the rule, see `UpdateRule`, and those of scaling and accumulation."""
        with self.between_steps():
            parts = {name: part.get_state() for name, part in self._kept_parts().items()}
            return {**super().get_state(), **parts}

    def read_state(self) -> dict[str, Any]:
        weights = {} if self._grouped is None else self._grouped.get_weights()
        return {**super().read_state(), **weights}

    def set_state(self, state: Mapping[str, Any]) -> None:
        parts = self._kept_parts()
        super().set_state({name: values for name, values in state.items() if name not in parts})
        for name in parts.keys() & state:
            parts[name].set_state(state[name])

    def __setstate__(self, state: tuple[dict[str, Any], Any]) -> None:
        """Start a copy as from its state: the arrays of a step belong to its own network."""
        vars(self).update(state[0])
        if self._traces is not None:
            self.set_state(self.get_state())
            self.start(self.net)

    def _kept_parts(self) -> dict[str, Any]:
        """Return the parts of the stepper that have a state of their own, by name."""
        return {name: part for name in _HELPERS if (part := getattr(self, name)) is not None}


#: The methods that `run` traces; a class that replaces any, and is not traceable, is called.
_METHODS = ("step", "do_passes", "finish_update")
