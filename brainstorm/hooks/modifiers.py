"""Hooks that pass values on: to the stepper, or to an experiment that records the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from brainstorm.errors import TrainingError, unknown
from brainstorm.hooks.base import Hook, Iterators
from brainstorm.utils import is_number


def takes_counts(schedule: Any) -> bool:
    """Return whether something can be called with the arguments of a schedule, and is no class."""
    if isinstance(schedule, type):
        return False
    try:
        inspect.signature(schedule).bind(*range(7))
    except (TypeError, ValueError) as error:
        return isinstance(error, ValueError)  # compiled functions have no signature
    return True


class ModifyStepperAttribute(Hook):
    """Set an attribute of the stepper to the value of a schedule.

    Args:
        schedule: Called as ``(epoch_nr, update_nr, timescale, interval, net, stepper, logs)``;
            see `brainstorm.training.schedules`.
        attr_name: The attribute.
        timescale, interval, name, verbose: See `Hook`.

    Attributes:
        factor: The values are multiplied by it; `ReturnToCheckpoint` makes it smaller.
    """

    __default_values__ = {"attr_name": "learning_rate", "factor": 1.0}

    role = "editor"
    idempotent = True

    def __init__(
        self,
        schedule: Callable[..., float],
        attr_name: str = "learning_rate",
        timescale: str = "epoch",
        interval: int = 1,
        name: str | None = None,
        verbose: bool | None = None,
    ) -> None:
        super().__init__(name, timescale, interval, verbose)
        if not takes_counts(schedule):
            raise self.fail(
                "schedule",
                "a schedule or a function (epoch_nr, update_nr, timescale, interval, net, stepper, "
                "logs)",
                schedule,
            )
        self.schedule = schedule
        self.attr_name = attr_name
        self.factor = 1.0

    @property
    def occasion(self) -> tuple[Any, ...]:
        """Another schedule is another occasion."""
        return *super().occasion, self.schedule

    def begin_anew(self, logs: Mapping[str, Any]) -> None:
        super().begin_anew(logs)
        self.factor = 1.0

    def go_back(
        self, state: Mapping[str, Any] | None, factor: float, net: Any, stepper: Any
    ) -> None:
        """Reduce the learning rates of the schedule, too."""
        if self.attr_name == "learning_rate":
            self.factor *= factor

    def start(self, net: Any, stepper: Any, verbose: bool, named_data_iters: Iterators) -> None:
        super().start(net, stepper, verbose, named_data_iters)
        kind, described = type(stepper), [key for key in stepper.__describe__() if key != "@type"]
        if not hasattr(stepper, self.attr_name):
            what = f"attribute of {kind.__name__}"
            raise TrainingError(f"{self.place}: " + unknown(what, self.attr_name, described))
        value = getattr(stepper, self.attr_name)
        is_read_only = getattr(getattr(kind, self.attr_name, None), "fset", self) is None
        if is_read_only or not (value is None or is_number(value)):
            raise TrainingError(
                f"{self.place}, attr_name: expected a number of {kind.__name__} that can be "
                f"modified, got {self.attr_name!r}, a {type(value).__name__}. Choices are: "
                f"{', '.join(described)}."
            )

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        value = self.schedule(
            epoch_nr, update_nr, self.timescale, self.interval, net, stepper, logs
        )
        setattr(stepper, self.attr_name, value if self.factor == 1.0 else self.factor * value)


class InfoUpdater(Hook):
    """Keep the ``info`` of an experiment (e.g. a run of Sacred) up to date.

    Sets ``'epoch_nr'``, ``'update_nr'``, ``'logs'`` and ``'nr_parameters'``.

    Args:
        run: Any object with a dict ``info``.
        name, timescale, interval: See `Hook`.
    """

    __undescribed__ = {"run": None}

    role = "reader"

    def __init__(
        self, run: Any, name: str | None = None, timescale: str = "epoch", interval: int = 1
    ) -> None:
        super().__init__(name, timescale, interval)
        if not hasattr(run, "info"):
            raise self.fail("run", "an object with a dict 'info'", run)
        self.run = run

    def __call__(self, epoch_nr: int, update_nr: int, net: Any, stepper: Any, logs: Any) -> None:
        self.run.info.update(
            epoch_nr=epoch_nr, update_nr=update_nr, logs=logs, nr_parameters=net.parameters_size
        )
