"""Hooks that hand values on."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest

from brainstorm.errors import TrainingError, shown
from brainstorm.hooks import Hook, InfoUpdater, ModifyStepperAttribute, MonitorLoss
from brainstorm.training import Linear, MomentumStepper


class Watch(Hook):
    """Logs the learning rate that the next updates use."""

    role = "reader"

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        return stepper.learning_rate


def test_schedules_by_epoch_and_by_update(train):
    hook = ModifyStepperAttribute(Linear(1.0, 0.0, 4))
    trainer = train(Watch("epochs"), hook, stepper=MomentumStepper())
    assert trainer.logs["epochs"] == [1.0, 0.75, 0.5]
    hook = ModifyStepperAttribute(Linear(1.0, 0.0, 8), timescale="update", interval=2)
    trainer = train(Watch("updates", timescale="update"), hook, epochs=1)
    assert trainer.logs["updates"] == [1.0, 1.0, 0.875, 0.875, 0.75]


def test_other_attributes_and_any_function(train):
    seen = []
    hook = ModifyStepperAttribute(lambda *args: seen.append(args) or 0.25, "momentum")
    trainer = train(hook, epochs=1, stepper=MomentumStepper(momentum=0.9))
    assert trainer.stepper.momentum == 0.25
    assert seen[1] == (1, 4, "epoch", 1, trainer.net, trainer.stepper, trainer.logs)


def test_unknown_attribute(train):
    with pytest.raises(
        TrainingError,
        match=r"hook 'ModifyStepperAttribute' \(ModifyStepperAttribute\): unknown attribute of "
        r"MomentumStepper 'learn_rate'. Choices are: learning_rate, momentum, scale_learning_rate. "
        r"Did you mean 'learning_rate'",
    ):
        train(ModifyStepperAttribute(Linear(1, 0, 4), "learn_rate"), stepper=MomentumStepper())


@pytest.mark.parametrize("name", ["update", "net", "parameters", "state", "is_within_update"])
def test_only_numbers_can_be_modified(train, name):
    text = (
        rf"^hook 'ModifyStepperAttribute' \(ModifyStepperAttribute\), attr_name: expected a number "
        rf"of MomentumStepper that can be modified, got '{name}', .*\. Choices are: learning_rate, "
        r"momentum, scale_learning_rate\."
    )
    with pytest.raises(TrainingError, match=text):
        train(ModifyStepperAttribute(Linear(1, 0, 4), name), stepper=MomentumStepper())


def test_a_value_that_the_stepper_refuses(train):
    with pytest.raises(
        TrainingError, match=r"MomentumStepper.momentum: expected .* got 1.5"
    ) as caught:
        train(ModifyStepperAttribute(Linear(1.5, 0, 4), "momentum"), stepper=MomentumStepper())
    assert caught.value.__notes__ == [
        "Raised by the hook 'ModifyStepperAttribute' (ModifyStepperAttribute)."
    ]


@pytest.mark.parametrize("wrong", [0.1, lambda epoch_nr: 0.1])
def test_a_schedule_is_called_with_counts_network_and_logs(wrong):
    text = re.escape(
        "schedule: expected a schedule or a function (epoch_nr, update_nr, timescale, interval, "
        f"net, stepper, logs), got {shown(wrong)}."
    )
    with pytest.raises(TrainingError, match=text):
        ModifyStepperAttribute(wrong)
    ModifyStepperAttribute(lambda *counts: 0.1)
    ModifyStepperAttribute(math.hypot)  # compiled, any number of arguments


def test_info_updater(train, net):
    run = SimpleNamespace(info={"own": 1})
    logs = train(InfoUpdater(run), MonitorLoss("valid")).logs
    counts = {"epoch_nr": 2, "update_nr": 8, "nr_parameters": net.parameters_size}
    assert run.info == {"own": 1, "logs": logs, **counts}


def test_info_updater_needs_an_info():
    with pytest.raises(TrainingError, match=r"run: expected an object with a dict 'info', got 3"):
        InfoUpdater(3)
