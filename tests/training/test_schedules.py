"""Schedules: formulas, limits, descriptions, and the texts of errors."""

from __future__ import annotations

import inspect
import json
import math

import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import UnknownPathError
from brainstorm.training import (
    Cosine,
    CosineRestarts,
    DecreaseAfterEpoch,
    Exponential,
    Linear,
    MultiStep,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    Warmup,
)
from tests.trainings import refused


def by_epochs(schedule, epochs, interval=1):
    return [schedule(e, 1000 + e, "epoch", interval, None, None, None) for e in epochs]


def by_updates(schedule, updates, interval=1):
    return [schedule(0, u, "update", interval, None, None, None) for u in updates]


FORMULAS = {
    "linear": (Linear(1.0, 0.5, 5), [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5]),
    "cosine": (Cosine(7.0, 3.0, 4), [7, 5 + 2**0.5, 5, 5 - 2**0.5, 3, 3]),
    "restarts": (CosineRestarts(7.0, 3.0, 2), [7, 5, 7, 5, 7, 5]),
    "growing restarts": (
        CosineRestarts(7.0, 3.0, 1, growth=2),
        [7, 7, 5, 7, 5 + 2**0.5, 5, 5 - 2**0.5, 7],
    ),
    "one cycle": (OneCycle(1.0, 4, initial_value=0.5, rise=0.5), [0.5, 0.75, 1, 0.500025, 5e-5]),
    "default one cycle": (OneCycle(1.0, 4, rise=0.5), [0.04, 0.52, 1, 0.500002, 1 / 250_000]),
    "minimum": (Exponential(8.0, 0.5, minimum=1.5), [8, 4, 2, 1.5, 1.5]),
    "maximum": (Exponential(1.0, 2.0, maximum=5), [1, 2, 4, 5]),
    "multi step": (MultiStep(1.0, [2, 4], [0.1, 0.01]), [1, 1, 0.1, 0.1, 0.01, 0.01]),
    "decrease": (DecreaseAfterEpoch(2.0, 3), [2, 2, 2, 1.5, 1.2]),
    "warmup": (Warmup(4, 2.0), [0, 0.5, 1, 1.5, 2, 2]),
    "then exponential": (Warmup(2, Exponential(8.0, 0.5)), [0, 4, 8, 4, 2]),
    "then decrease": (Warmup(2, DecreaseAfterEpoch(8.0, 1)), [0, 4, 8, 4]),
    "without limits": (Exponential(1.0, 0.5, -math.inf, math.inf), [1, 0.5, 0.25]),
    "steps in tuples": (MultiStep(1.0, (1, 2), (3.0, 4.0)), [1, 3, 4]),
    "warmup from above 0": (Warmup(2, 0.1, 0.01), [0.01, 0.055, 0.1, 0.1]),
}


def test_what_begins_at_zero_stays_there():
    assert [Exponential(x, 2.0).at(5000) for x in (0.0, 1.0, -1.0)] == [0, math.inf, -math.inf]


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_also_of_what_is_read_from_strict_json(name):
    schedule, expected = FORMULAS[name]
    text = json.dumps(get_description(schedule), allow_nan=False)
    for each in (schedule, create_from_description(json.loads(text))):
        assert by_epochs(each, range(len(expected))) == pytest.approx(expected)


def test_far_away():
    for schedule, value in [
        (CosineRestarts(7.0, 3.0, 1), 7.0),
        (OneCycle(1.0, 10), 1 / 250_000),
        (Exponential(1.0, 10.0, maximum=5), 5),
        (Exponential(-1.0, 10.0, minimum=-5), -5),
    ]:
        assert by_epochs(schedule, [10**15]) == [pytest.approx(value)]


def test_interval_and_timescale_make_the_count():
    assert by_updates(Linear(0.0, 4.0, 4), [0, 2, 3, 5, 6, 100], interval=3) == [0, 0, 1, 1, 2, 4]
    assert by_updates(Warmup(2, 2.0, initial_value=1.0), [0, 3, 6], interval=3) == [1, 1.5, 2]


def plateau(values, **options):
    return ReduceOnPlateau("validation.loss", 1.0, 0.5, **options).after(values)


def test_plateaus_reduce_when_patience_is_over():
    falling = [5.0, 4.0, 3.0]
    assert plateau([]) == plateau(falling, patience=0) == 1.0
    assert plateau([*falling, 3.0, 3.5], patience=2) == 1.0
    assert plateau([*falling, 3.0, 3.5, 3.1], patience=2) == 0.5
    assert plateau([*falling, 3.0, 3.5, 2.0, 3.1], patience=2) == 1.0
    assert plateau([3.0] * 7, patience=2) == 0.25
    assert plateau([3.0] * 7, patience=2, cooldown=2) == 0.5
    assert plateau([3.0] * 7, patience=2, minimum=0.4) == 0.4
    assert plateau([3.0] * 7, patience=2, minimum=1.5) == 1.0  # below it from the beginning
    assert plateau([3.0, 2.9999], patience=0) == 0.5  # better by less than the threshold
    assert plateau([3.0, 2.9999], patience=0, threshold=0.0) == 1.0
    assert plateau([3.0, math.nan, math.inf], patience=0) == 0.25
    assert plateau([-1.0, -1.1, -1.2], patience=0) == 1.0


def test_plateaus_are_those_of_a_log_whose_name_or_criterion_says_what_is_better():
    rising = [0.1, 0.2, 0.3]
    assert ReduceOnPlateau("validation.Accuracy", 1.0, 0.5, 0).after(rising) == 1.0
    assert ReduceOnPlateau("validation.loss", 1.0, 0.5, 0).after(rising) == 0.25
    assert ReduceOnPlateau("F1", 1.0, 0.5, 0, criterion="max").after(rising) == 1.0
    schedule = ReduceOnPlateau("validation.loss", 1.0, 0.5, patience=0)
    logs = {"validation": {"loss": [3.0, 3.0]}}
    assert schedule(2, 20, "epoch", 1, None, None, logs) == 0.5
    assert schedule(0, 0, "epoch", 1, None, None, None) == 1.0
    assert schedule(1, 10, "epoch", 1, None, None, {}) == 1.0
    with refused(
        "ReduceOnPlateau.criterion: expected 'min' or 'max', because it is unknown which values of "
        "'F1' are better, got None.",
        is_whole=True,
    ):
        ReduceOnPlateau("F1", 1.0)(0, 0, "epoch", 1, None, None, None)
    with pytest.raises(UnknownPathError, match="unknown log 'validation.loss'"):
        schedule(2, 20, "epoch", 1, None, None, {"training": [1.0]})


def test_decrease_after_epoch_counts_epochs_on_every_timescale():
    assert DecreaseAfterEpoch(2.0, 4)(7, 99999, "update", 5) == pytest.approx(1)


def test_warmup_takes_any_function():
    seen = []

    def constant(*args):
        seen.append(args)
        return 6.0

    assert Warmup(3, constant)(1, 7, "update", 2, "net", "stepper", "logs") == 6.0
    assert seen == [(1, 1, "update", 2, "net", "stepper", "logs")]


@pytest.mark.parametrize(
    ("cls", "arguments", "text"),
    [
        (Linear, ("a", 1.0, 3), "initial_value: expected a finite number, got 'a'"),
        (Linear, (1.0, math.nan, 3), "final_value: expected a finite number, got nan"),
        (Cosine, (1.0, 2.0, 0), "num_changes: expected an integer >= 1, got 0"),
        (Linear, (1.0, 2.0, 1.5), "num_changes: expected an integer >= 1, got 1.5"),
        (OneCycle, (1.0, 3, 1.0), "rise: expected a number in (0, 1), got 1.0"),
        (ReduceOnPlateau, ("loss", 1.0, 1.5), "factor: expected a number in (0, 1), got 1.5"),
        (ReduceOnPlateau, ("loss", 1.0, 0.1, -1), "patience: expected an integer >= 0, got -1"),
        (Exponential, (1.0, -2.0), "factor: expected a finite number > 0, got -2.0"),
        (Exponential, (1.0, 2.0, 3, 2), "maximum: expected at least the minimum 3, got 2"),
        (MultiStep, (1.0, [1, 2], [3.0]), "values: expected 2 values, one per step, got [3.0]"),
        (MultiStep, (1.0, [2, 1], [3, 4]), "steps: expected a list of increasing integers >= 1, got"
         " [2, 1]"),
        (DecreaseAfterEpoch, (1.0, 0), "T: expected a finite number > 0, got 0"),
        (Warmup, (3, True), "then: expected a finite number or a schedule, got True"),
    ],
)  # fmt: skip
def test_errors_of_constructors_and_of_the_same_in_files(cls, arguments, text):
    names = inspect.signature(cls).parameters
    read = {name: known.default for name, known in names.items() if known.default is not None}
    read |= {"@type": cls.__name__, **dict(zip(names, arguments, strict=False))}
    for make in (lambda: cls(*arguments), lambda: create_from_description(read)):
        with refused(f"{cls.__name__}.{text}.", is_whole=True):
            make()


def test_steps_are_single_epochs_or_updates():
    with refused("MultiStep: expected a hook with interval 1, got 2"):
        by_epochs(MultiStep(1.0, [1], [2.0]), [1], interval=2)


def test_a_schedule_of_ones_own_needs_only_at():
    class Squares(Schedule):
        def at(self, k):
            return k * k

    assert by_updates(Squares(), [0, 4, 6], interval=2) == [0, 4, 9]
