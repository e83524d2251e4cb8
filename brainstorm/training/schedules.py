"""Schedules: how a number, such as the learning rate, changes during training.

A schedule is called as ``schedule(epoch_nr, update_nr, timescale, interval, net, stepper, logs)``
by the hook `ModifyStepperAttribute`; any function with these arguments is a schedule. Those below
depend on ``k = nr // interval``, where ``nr`` counts epochs or updates, depending on `timescale`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from brainstorm.constraints import Constraint, number, one_of, several, whole
from brainstorm.describable import Describable
from brainstorm.errors import TrainingError
from brainstorm.hooks.base import find_values
from brainstorm.hooks.criteria import CRITERIA, find_criterion
from brainstorm.hooks.modifiers import takes_counts


class _Call(NamedTuple):
    """The arguments of a schedule."""

    epoch_nr: int
    update_nr: int
    timescale: str
    interval: int
    net: Any
    stepper: Any
    logs: Any


class Schedule(Describable):
    """Base class of schedules that depend only on the number of possible changes so far.

    A subclass implements `at`; it can depend on something else by overriding `count`.
    """

    __argument_error__ = TrainingError

    def __call__(
        self,
        epoch_nr: int,
        update_nr: int,
        timescale: str,
        interval: int,
        net: Any = None,
        stepper: Any = None,
        logs: Any = None,
    ) -> float:
        """Return the value for these counts."""
        return self._at_call(_Call(epoch_nr, update_nr, timescale, interval, net, stepper, logs))

    def _at_call(self, now: _Call) -> float:
        """Return the value of a call with these arguments."""
        return self.at(self.count(*now[:4]))

    def count(self, epoch_nr: int, update_nr: int, timescale: str, interval: int) -> int:
        """Return the number of possible changes so far, for a hook with these counts."""
        return (epoch_nr if timescale == "epoch" else update_nr) // interval

    def at(self, k: int) -> float:
        """Return the value after `k` changes."""
        raise NotImplementedError(f"{type(self).__name__} has no value by k alone: call it")


class _Transition(Schedule):
    """A transition from `initial_value` to `final_value`, where it stays after `num_changes`."""

    __constraints__ = {
        "initial_value": number(),
        "final_value": number(),
        "num_changes": whole(),
    }

    def __init__(self, initial_value: float, final_value: float, num_changes: int) -> None:
        self.initial_value = initial_value
        self.final_value = final_value
        self.num_changes = num_changes

    def at(self, k: int) -> float:
        return self.final_value if k >= self.num_changes else self.on_the_way(k)

    def on_the_way(self, k: int) -> float:
        """Return the value after `k` changes, fewer than `num_changes`."""
        raise NotImplementedError


class Linear(_Transition):
    """A straight line: ``initial + (final - initial) * k / num_changes``, then `final_value`."""

    def on_the_way(self, k: int) -> float:
        return self.initial_value + (self.final_value - self.initial_value) * k / self.num_changes


class Cosine(_Transition):
    """Half a cosine: ``final + (initial - final) * (1 + cos(pi * k / num_changes)) / 2``.

    Stays at `final_value` afterwards. (Loshchilov and Hutter, arXiv:1608.03983, one cycle.)
    """

    def on_the_way(self, k: int) -> float:
        return _half_wave(self.initial_value, self.final_value, k / self.num_changes)


def _half_wave(start: float, end: float, share: float) -> float:
    """Return the value at a fraction of half a cosine from `start` to `end`."""
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0


class CosineRestarts(_Transition):
    """Half a cosine, as in `Cosine`, restarted again and again.

    (Loshchilov and Hutter, "SGDR", arXiv:1608.03983.)

    Args:
        initial_value: The value at the start of each cycle.
        final_value: The value approached at the end of each cycle.
        num_changes: The length of the first cycle.
        growth: The ratio of the lengths of successive cycles.
    """

    __default_values__ = {"growth": 1}
    __constraints__ = {"growth": whole()}

    def __init__(
        self, initial_value: float, final_value: float, num_changes: int, growth: int = 1
    ) -> None:
        super().__init__(initial_value, final_value, num_changes)
        self.growth = growth

    def at(self, k: int) -> float:
        length = self.num_changes
        if self.growth == 1:
            k %= length
        while k >= length:
            k, length = k - length, length * self.growth
        return _half_wave(self.initial_value, self.final_value, k / length)


class OneCycle(Schedule):
    """Half a cosine up to the largest value, and a longer one down to nearly zero.

    (Smith and Topin, "Super-Convergence", arXiv:1708.07120; defaults as in PyTorch.)

    Args:
        largest_value: The value between the two.
        num_changes: Number of changes until the final value.
        rise: The fraction of them in which the value rises.
        initial_value: The value at k = 0; `None` is ``largest_value / 25``.
        final_value: The value at the end; `None` is ``initial_value / 10000``.
    """

    __default_values__ = {"rise": 0.3, "initial_value": None, "final_value": None}
    __constraints__ = {
        **dict.fromkeys(("largest_value", "initial_value", "final_value"), number()),
        "num_changes": whole(),
        "rise": number(0, 1, low_open=True, high_open=True),
    }

    def __init__(
        self,
        largest_value: float,
        num_changes: int,
        rise: float = 0.3,
        initial_value: float | None = None,
        final_value: float | None = None,
    ) -> None:
        self.largest_value = largest_value
        self.num_changes = num_changes
        self.rise = rise
        self.initial_value = largest_value / 25 if initial_value is None else initial_value
        self.final_value = self.initial_value / 10_000 if final_value is None else final_value

    def at(self, k: int) -> float:
        top = self.rise * self.num_changes
        if k < top:
            return _half_wave(self.initial_value, self.largest_value, k / top)
        share = min((k - top) / (self.num_changes - top), 1.0)
        return _half_wave(self.largest_value, self.final_value, share)


@dataclass(eq=False, repr=False)
class Exponential(Schedule):
    """Growth or decay: ``initial * factor^k``, kept between `minimum` and `maximum`.

    Args:
        initial_value: The value at k = 0.
        factor: Positive.
        minimum: Lower limit, or `None`.
        maximum: Upper limit, or `None`.
    """

    initial_value: float
    factor: float
    minimum: float | None = None
    maximum: float | None = None

    __default_values__ = {"minimum", "maximum"}
    __constraints__ = {
        "initial_value": number(),
        "factor": number(0, low_open=True),
    }

    def __post_init__(self) -> None:
        low, high = self.minimum, self.maximum
        if low is not None and high is not None and low > high:
            raise self.fail("maximum", f"at least the minimum {low!r}", high)

    def at(self, k: int) -> float:
        try:
            value = self.initial_value * self.factor**k
        except OverflowError:
            value = self.initial_value and math.copysign(math.inf, self.initial_value)
        if self.minimum is not None:
            value = max(value, self.minimum)
        return value if self.maximum is None else min(value, self.maximum)


_STEPS = several(whole(), "a list of increasing integers >= 1")


@dataclass(eq=False, repr=False)
class MultiStep(Schedule):
    """A staircase: `initial_value`, then ``values[i]`` from count ``steps[i]`` on.

    Only for hooks with an interval of 1, so that no step is missed.

    Args:
        initial_value: The value before ``steps[0]``.
        steps: Increasing epoch or update numbers.
        values: One value per step.
    """

    initial_value: float
    steps: Sequence[int]
    values: Sequence[float]

    __constraints__ = {
        "initial_value": number(),
        "steps": Constraint(
            _STEPS.expected,
            lambda v: v in _STEPS and sorted(set(v)) == list(v),
            convert=_STEPS.convert,
        ),
        "values": several(number(), "a list of finite numbers"),
    }

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values):
            raise self.fail("values", f"{len(self.steps)} values, one per step", self.values)

    def count(self, epoch_nr: int, update_nr: int, timescale: str, interval: int) -> int:
        """Return the number of epochs or updates.

        Raises:
            TrainingError: The interval of the hook is not 1.
        """
        if interval != 1:
            raise TrainingError(
                f"MultiStep: expected a hook with interval 1, got {interval}. Its steps count "
                f"single epochs or updates."
            )
        return super().count(epoch_nr, update_nr, timescale, interval)

    def at(self, k: int) -> float:
        reached = sum(k >= step for step in self.steps)
        return self.values[reached - 1] if reached else self.initial_value


@dataclass(eq=False, repr=False)
class DecreaseAfterEpoch(Schedule):
    """Constant for `T` epochs, then decreasing: ``initial * T / max(epoch_nr + 1, T)``.

    ``epoch_nr`` counts the current epoch, as everywhere. With timescale ``'update'`` the value
    therefore falls one epoch earlier; choose a T larger by one.
    """

    initial_value: float
    T: float

    __constraints__ = {"initial_value": number(), "T": number(0, low_open=True)}

    def count(self, epoch_nr: int, update_nr: int, timescale: str, interval: int) -> int:
        """Return the number of epochs, whatever the timescale of the hook."""
        return epoch_nr

    def at(self, k: int) -> float:
        return self.initial_value * self.T / max(k + 1, self.T)


@dataclass(eq=False, repr=False)
class Warmup(Schedule):
    """A straight line up to the first value of another schedule, followed by that schedule.

    Use it with ``timescale="update"``: by epochs, the first epoch is trained at `initial_value`, 0.

    Args:
        num_changes: Number of changes from `initial_value` to the first value of `then`; `then`
            counts from there.
        then: A number, or a schedule (any callable with its arguments).
        initial_value: The value at k = 0.
    """

    num_changes: int
    then: float | Callable[..., float]
    initial_value: float = 0.0

    __default_values__ = {"initial_value"}
    __constraints__ = {
        "num_changes": whole(),
        "then": Constraint(
            "a finite number or a schedule", lambda v: takes_counts(v) or v in number()
        ),
        "initial_value": number(),
    }

    def _at_call(self, now: _Call) -> float:
        k = self.count(*now[:4])
        goal = self.then
        if callable(goal):
            name = f"{now.timescale}_nr"
            later = max(getattr(now, name) - self.num_changes * now.interval, 0)
            goal = goal(*now._replace(**{name: later}))
        if k >= self.num_changes:
            return goal
        return self.initial_value + (goal - self.initial_value) * k / self.num_changes


@dataclass(eq=False, repr=False)
class ReduceOnPlateau(Schedule):
    """Multiplies a value by a factor whenever a log has not improved for some time.

    The value follows from the log alone, so a resumed training continues with the same value.
    Give the hook that calls it the timescale of the log and an interval of 1.

    Args:
        log_name: Dotted path of the log, e.g. ``'validation.total_loss'``.
        initial_value: The value at the start.
        factor: Between 0 and 1.
        patience: Reduce when more than this many values in a row are no better than the best.
        threshold: The fraction of the best value by which another must be better to count.
        cooldown: How many values after a reduction are not counted as bad.
        minimum: Lower limit.
        criterion: ``'min'`` or ``'max'``: which values are better; `None`: as the log's name or its
            scorer says.
    """

    log_name: str
    initial_value: float
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    cooldown: int = 0
    minimum: float = 0.0
    criterion: str | None = None

    __default_values__ = {"threshold", "cooldown", "minimum", "criterion"}
    __constraints__ = {
        **dict.fromkeys(("initial_value", "threshold", "minimum"), number()),
        "factor": number(0, 1, low_open=True, high_open=True),
        **dict.fromkeys(("patience", "cooldown"), whole(0)),
        "criterion": one_of(*CRITERIA).or_none(),
    }

    def _at_call(self, now: _Call) -> float:
        """Return the value for the current content of the log.

        Raises:
            UnknownPathError: There is no such log after an epoch.
            TrainingError: Neither the schedule nor the log has a criterion.
        """
        may_lack = now.epoch_nr <= 1  # logs of the end of epochs are still empty
        values = find_values(type(self).__name__, now.logs or {}, self.log_name, may_lack)
        return self.after(values, now.net, getattr(now.logs, "scorers", None))

    def after(
        self,
        values: Sequence[float],
        net: Any = None,
        scorers: Mapping[str, Sequence[Any]] | None = None,
    ) -> float:
        """Return the value after these values of the log, which may be those of a scorer."""
        sign = -1.0 if find_criterion(self, net, scorers or {}) == "max" else 1.0
        best, bad, rest, result = math.inf, 0, 0, self.initial_value
        for cost in (sign * value for value in values):
            if cost < best - self.threshold * abs(best if math.isfinite(best) else 0.0):
                best, bad = cost, 0
            else:
                bad += 1
            if rest > 0:
                rest, bad = rest - 1, 0
            if bad > self.patience:
                result = min(result, max(result * self.factor, self.minimum))
                rest, bad = self.cooldown, 0
        return result
