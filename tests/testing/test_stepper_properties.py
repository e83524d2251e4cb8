"""The kit must find what is wrong: for every property a stepper that breaks it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from brainstorm.errors import ValidationError
from brainstorm.ext.optimize import LbfgsStepper
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler
from brainstorm.testing import STEPPER_PROPERTIES, PropertyError, check_stepper
from brainstorm.training import (
    GradientAccumulation,
    LossScaling,
    MomentumStepper,
    ParameterGroup,
    SgdStepper,
    TrainingStepper,
)
from brainstorm.utils import get_inheritors
from tests.trainings import STEPPERS, given, refused


@pytest.mark.parametrize("make", STEPPERS.values(), ids=STEPPERS)
def test_a_built_in_stepper_has_every_property(make):
    check_stepper(make())


def test_every_stepper_of_the_package_is_proved():
    own = [c for c in get_inheritors(TrainingStepper) if c.__module__.startswith("brainstorm.")]
    assert {*STEPPERS, "LbfgsStepper"} == {c.__name__ for c in own}
    pytest.importorskip("scipy")
    check_stepper(LbfgsStepper(3))


def test_what_steppers_can_be_given_has_every_property():
    stepper = given(
        MomentumStepper(0.1, 0.9),
        max_gradient_norm=0.1,
        loss_scaling=LossScaling(),
        groups=[ParameterGroup("Hidden", learning_rate_factor=0.5)],
    )
    check_stepper(stepper)
    stepper.accumulation = GradientAccumulation(3)
    stepper.groups = [ParameterGroup("*.bias", frozen=True), ParameterGroup("*", weight_decay=0.1)]
    check_stepper(stepper)


@pytest.mark.parametrize("make", [NativeHandler, NumpyHandler])
def test_any_handler_can_be_checked_with_and_goes_on_as_before(make):
    handler = make(np.float32)
    check_stepper(SgdStepper(), handler)
    assert handler.replays


class RateInTheOperation(TrainingStepper):
    is_traceable = True
    hyperparameters = SgdStepper.hyperparameters

    def __init__(self, learning_rate=0.1):
        self.learning_rate = learning_rate

    def update(self):
        self.handler.mult_add_st(-self.learning_rate, self.gradients, self.parameters)


class RandomRate(SgdStepper):
    is_traceable = True

    def scalars(self):
        return {"rate": self.learning_rate * np.random.rand()}


class Noise(SgdStepper):
    """Draws from the handler; right in every respect."""

    is_traceable = True
    scratch_names = ("noise",)

    def update(self):
        self.handler.fill_gaussian(0.0, 0.1, self.scratch["noise"])
        self.handler.add_tt(self.scratch["noise"], self.parameters, self.parameters)
        super().update()


class EveryOtherStep(SgdStepper):
    is_traceable = True

    def update(self):
        if self.steps % 2:
            super().update()


class LooksAtGradients(SgdStepper):
    is_traceable = True

    def update(self):
        if self.handler.get_numpy_copy(self.gradients).sum() < np.inf:
            super().update()


class CountsUpdates(SgdStepper):
    is_traceable = True
    count = 0

    def update(self):
        super().update()
        self.count += 1


class RunsByItself(SgdStepper):
    is_traceable = True

    def run(self):
        self.refresh()
        self.step()


class FinishesByItself(SgdStepper):
    """Replaces a part of a step; does not say that it is traceable, and it is not."""

    def finish_update(self):
        if self.steps % 2:
            super().finish_update()


class SlowsDown(SgdStepper):
    """Keeps a number that is neither in its state nor set by start."""

    is_traceable = True
    __undescribed__ = {"_done": 0}
    _done = 0

    def scalars(self):
        return {"rate": self.learning_rate / (1 + self._done)}

    def run(self):
        super().run()
        self._done += 1


class KeepsItsPace(SlowsDown):
    """The same, but for the state."""

    is_traceable = True

    def get_state(self):
        return {**super().get_state(), "done": self._done}

    def set_state(self, state):
        self._done = state["done"]
        super().set_state({name: value for name, value in state.items() if name != "done"})


class StepsWithoutPasses(SgdStepper):
    is_traceable = True

    def step(self):
        self.update()


class ComputesWithArrays(SgdStepper):
    def update(self):
        self.parameters[:] -= self.learning_rate * self.gradients


class ForgetsTheRate(SgdStepper):
    is_traceable = True

    def scalars(self):
        return {"rate": None}


REPLAY = "property 'replay equals direct execution'"
TAKE_OUT = (
    "Take `is_traceable = True` out of class {name}, whose update is then called in every step."
)
NUMBERS = r": expected \S+, got \S+ \(\d+ of \d+ elements? differ\)"
BROKEN = [
    (RandomRate, "property 'equal trainings are equal'",
     rf"step 1, parameters\[0\]{NUMBERS}, in a second training\. Draw by fill_gaussian, .*"),
    (RateInTheOperation, REPLAY, rf"step 2, parameters\[0\]{NUMBERS}, with replays\. {TAKE_OUT}"),
    (EveryOtherStep, REPLAY, rf"step 2, parameters\[0\]{NUMBERS}, with replays\. {TAKE_OUT}"),
    (LooksAtGradients, REPLAY,
     rf"its steps call get_numpy_copy, whose result a replay does not see\. {TAKE_OUT}"),
    (CountsUpdates, REPLAY,
     rf"its steps change the attribute 'count', which a replay does not\. {TAKE_OUT}"),
    (RunsByItself, REPLAY, rf"its steps are not made by traces\. {TAKE_OUT}"),
    (ForgetsTheRate, "property 'parameters stay finite'",
     r"after step 1, parameters are NaN or infinite"),
    (SlowsDown, "property 'a state continues exactly'",
     rf"step 6, .*{NUMBERS}, after set_state\. What .* belongs into state_names\."),
    (StepsWithoutPasses, "property 'steps change parameters'",
     r"the parameters stay as they are\. A step of its own calls do_passes, which .* update\."),
    (KeepsItsPace, "property 'a second start begins anew'",
     rf"step 1, parameters\[0\]{NUMBERS}, after a second start"),
]  # fmt: skip


@pytest.mark.parametrize(("stepper_class", "property", "text"), BROKEN)
def test_a_broken_stepper_is_found(stepper_class, property, text):
    name = stepper_class.__name__
    expected = rf"^{property}: stepper {name}: {text.format(name=name)}$"
    with pytest.raises(PropertyError, match=expected):
        check_stepper(stepper_class())


def test_every_property_is_broken_by_some_stepper():
    others = {"only operations of the handler touch arrays"}
    assert {property.split("'")[1] for _, property, _ in BROKEN} == set(STEPPER_PROPERTIES) - others


def test_a_stepper_that_computes_with_arrays_is_found():
    text = "'DebugArray'"
    with pytest.raises(TypeError, match=text):
        check_stepper(ComputesWithArrays())


@pytest.mark.parametrize("base", [RateInTheOperation, EveryOtherStep, LooksAtGradients])
def test_without_the_line_they_are_right(base):
    check_stepper(type(f"Untraced{base.__name__}", (base,), {})())


def test_random_numbers_of_the_handler_are_right():
    check_stepper(Noise())


def test_a_part_of_a_step_that_is_replaced_is_called_in_every_step():
    check_stepper(FinishesByItself())


def test_who_could_be_traced_is_told_so():
    text = (
        "stepper CouldSayIt: its steps seem to do nothing but handler operations, the same ones "
        "each time. If so, write `is_traceable = True` into class CouldSayIt: then a training step "
        "repeats the operations without calling it."
    )
    with pytest.warns(UserWarning, match=re.escape(text)) as found:
        check_stepper(type("CouldSayIt", (SgdStepper,), {})())
    assert [warning.filename for warning in found] == [__file__]


def test_the_stepper_that_is_given_stays_as_it_is():
    stepper = MomentumStepper(0.5, 0.5)
    before = dict(vars(stepper))
    check_stepper(stepper)
    assert vars(stepper) == before


def test_what_is_no_stepper_is_refused():
    text = "check_stepper: expected a stepper such as SgdStepper(0.1), got 0.1."
    with refused(text, ValidationError, is_whole=True):
        check_stepper(0.1)


@pytest.mark.parametrize("handler", [NumpyHandler(), DebugHandler(NumpyHandler())])
def test_without_replays_nothing_can_be_proved(handler, monkeypatch):
    if isinstance(handler, NumpyHandler):
        monkeypatch.setenv("BRAINSTORM_REPLAY", "0")
    text = (
        "check_stepper: expected replays, to compare them with direct execution, got "
        "BRAINSTORM_REPLAY=0 in the environment or a handler without (a DebugHandler)."
    )
    with refused(text, ValidationError, is_whole=True):
        check_stepper(SgdStepper(), handler)
