"""Hooks that hand values on."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from brainstorm.errors import TrainingError, shown
from brainstorm.hooks import InfoUpdater, ModifyStepperAttribute, MonitorLoss
from brainstorm.training import Linear, MomentumStepper
from tests.trainings import Call, refused


@pytest.mark.parametrize(
    ("changes", "interval", "timescale", "rates"),
    [
        (4, 1, "epoch", [1.0, 0.75, 0.5]),
        (8, 2, "update", [1.0, 1.0, 0.875, 0.875, 0.75, 0.75, 0.625, 0.625, 0.5]),
    ],
)
def test_schedules_by_epoch_and_by_update(train, changes, interval, timescale, rates):
    stepper = MomentumStepper()
    hook = ModifyStepperAttribute(Linear(1.0, 0.0, changes), timescale=timescale, interval=interval)
    watch = Call(lambda *_: stepper.learning_rate, "rates", timescale, role="reader")
    assert train(watch, hook, stepper=stepper).logs["rates"] == rates


def test_other_attributes_and_any_function(train):
    seen = []
    hook = ModifyStepperAttribute(lambda *args: seen.append(args) or 0.25, "momentum")
    trainer = train(hook, epochs=1, stepper=MomentumStepper(momentum=0.9))
    assert trainer.stepper.momentum == 0.25
    assert seen[1] == (1, 4, "epoch", 1, trainer.net, trainer.stepper, trainer.logs)


class Twice(MomentumStepper):
    """Has a number that is computed."""

    twice = property(lambda self: 2 * self.learning_rate)


PLACE = "hook 'ModifyStepperAttribute' (ModifyStepperAttribute)"
CHOICES = "Choices are: learning_rate, momentum, scale_learning_rate."


def test_unknown_attribute(train):
    text = (
        f"{PLACE}: unknown attribute of MomentumStepper 'learn_rate'. {CHOICES} Did you mean 'lea"
    )
    with refused(text):
        train(ModifyStepperAttribute(Linear(1, 0, 4), "learn_rate"), stepper=MomentumStepper())


@pytest.mark.parametrize(
    "name", ["update", "net", "parameters", "state", "is_within_update", "twice"]
)
def test_only_numbers_can_be_modified(train, name):
    text = f"{PLACE}, attr_name: expected a number of Twice that can be modified, got {name!r}, a "
    with refused(text) as caught:
        train(ModifyStepperAttribute(Linear(1, 0, 4), name), stepper=Twice())
    assert CHOICES in str(caught.value)


def test_a_value_that_the_stepper_refuses(train):
    text = r"MomentumStepper.momentum: expected .* got 1.5"
    with pytest.raises(TrainingError, match=text) as caught:
        train(ModifyStepperAttribute(Linear(1.5, 0, 4), "momentum"), stepper=MomentumStepper())
    assert caught.value.__notes__ == [f"Raised by the {PLACE}."]


@pytest.mark.parametrize("wrong", [0.1, lambda epoch_nr: 0.1])
def test_a_schedule_is_called_with_counts_network_and_logs(wrong):
    text = (
        "schedule: expected a schedule or a function (epoch_nr, update_nr, timescale, interval, "
        f"net, stepper, logs), got {shown(wrong)}."
    )
    with refused(text):
        ModifyStepperAttribute(wrong)
    ModifyStepperAttribute(lambda *counts: 0.1)
    ModifyStepperAttribute(math.hypot)  # compiled, any number of arguments


def test_info_updater(train, net):
    run = SimpleNamespace(info={"own": 1})
    logs = train(InfoUpdater(run), MonitorLoss("valid")).logs
    counts = {"epoch_nr": 2, "update_nr": 8, "nr_parameters": net.parameters_size}
    assert run.info == {"own": 1, "logs": logs, **counts}


def test_info_updater_needs_an_info():
    with refused("run: expected an object with a dict 'info', got 3"):
        InfoUpdater(3)
