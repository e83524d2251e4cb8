"""Schedules: formulas, limits, descriptions, and the texts of errors."""

from __future__ import annotations

import json
import math

import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, UnknownPathError
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


def by_epochs(schedule, epochs, interval=1):
    return [schedule(e, 1000 + e, "epoch", interval, None, None, None) for e in epochs]


def by_updates(schedule, updates, interval=1):
    return [schedule(0, u, "update", interval, None, None, None) for u in updates]


def test_linear_goes_straight_and_stays_at_the_final_value():
    assert by_epochs(Linear(1.0, 0.5, 5), range(8)) == pytest.approx(
        [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5]
    )


def test_interval_and_timescale_make_the_count():
    assert by_updates(Linear(0.0, 4.0, 4), [0, 2, 3, 5, 6, 100], interval=3) == [0, 0, 1, 1, 2, 4]


def test_cosine_is_half_a_wave():
    expected = [3 + 4 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)] + [3.0]
    assert by_epochs(Cosine(7.0, 3.0, 4), range(6)) == pytest.approx(expected)
    assert by_epochs(Cosine(7.0, 3.0, 4), [0, 2, 4, 5]) == pytest.approx([7, 5, 3, 3])


def test_cosine_restarts_begins_again_and_takes_longer_each_time():
    even = by_epochs(CosineRestarts(7.0, 3.0, 2), range(6))
    assert even == pytest.approx([7, 5, 7, 5, 7, 5])
    growing = by_epochs(CosineRestarts(7.0, 3.0, 1, growth=2), range(8))
    quarter = 3 + 4 * (1 + math.cos(math.pi / 4)) / 2
    assert growing == pytest.approx([7, 7, 5, 7, quarter, 5, 10 - quarter, 7])
    assert by_epochs(CosineRestarts(7.0, 3.0, 1), [10**15]) == [7.0]


def test_one_cycle_rises_and_falls_to_almost_nothing():
    schedule = OneCycle(1.0, 10, rise=0.4)
    values = by_epochs(schedule, [0, 2, 4, 7, 10, 99])
    middle = (1.0 + 1 / 250_000) / 2
    assert values == pytest.approx([0.04, 0.52, 1.0, middle, 1 / 250_000, 1 / 250_000])
    given = OneCycle(1.0, 10, initial_value=0.5, final_value=0.1)
    assert by_epochs(given, [0, 3, 10]) == pytest.approx([0.5, 1.0, 0.1])


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


def test_plateaus_know_which_values_are_better():
    rising = [0.1, 0.2, 0.3]
    assert ReduceOnPlateau("validation.Accuracy", 1.0, 0.5, 0).after(rising) == 1.0
    assert ReduceOnPlateau("validation.loss", 1.0, 0.5, 0).after(rising) == 0.25
    assert ReduceOnPlateau("F1", 1.0, 0.5, 0, criterion="max").after(rising) == 1.0


def test_plateaus_are_those_of_a_log():
    schedule = ReduceOnPlateau("validation.loss", 1.0, 0.5, patience=0)
    logs = {"validation": {"loss": [3.0, 3.0]}}
    assert schedule(2, 20, "epoch", 1, None, None, logs) == 0.5
    assert schedule(0, 0, "epoch", 1, None, None, None) == 1.0
    assert schedule(1, 10, "epoch", 1, None, None, {}) == 1.0
    with pytest.raises(UnknownPathError, match="unknown log 'validation.loss'"):
        schedule(2, 20, "epoch", 1, None, None, {"training": [1.0]})


def test_exponential_is_clipped():
    assert by_epochs(Exponential(8.0, 0.5, minimum=1.5), range(5)) == [8, 4, 2, 1.5, 1.5]
    assert by_epochs(Exponential(1.0, 2.0, maximum=5), range(4)) == [1, 2, 4, 5]
    assert by_epochs(Exponential(1.0, 10.0, maximum=5), [10**6]) == [5]
    assert by_epochs(Exponential(-1.0, 10.0, minimum=-5), [10**6]) == [-5]


def test_multi_step_is_a_staircase():
    assert by_epochs(MultiStep(1.0, [2, 4], [0.1, 0.01]), range(6)) == [1, 1, 0.1, 0.1, 0.01, 0.01]


def test_decrease_after_epoch_counts_epochs_on_every_timescale():
    schedule = DecreaseAfterEpoch(2.0, 4)
    assert by_epochs(schedule, [0, 3, 4, 7]) == pytest.approx([2, 2, 8 / 5, 1])
    assert schedule(7, 99999, "update", 5, None, None, None) == pytest.approx(1)


def test_warmup_leads_to_a_constant():
    assert by_updates(Warmup(4, 2.0), [0, 1, 2, 4, 50]) == [0, 0.5, 1, 2, 2]
    assert by_updates(Warmup(2, 2.0, initial_value=1.0), [0, 3, 6], interval=3) == [1, 1.5, 2]


def test_warmup_hands_over_to_a_schedule_that_starts_from_there():
    assert by_epochs(Warmup(2, Exponential(8.0, 0.5)), range(5)) == [0, 4, 8, 4, 2]
    assert by_epochs(Warmup(2, DecreaseAfterEpoch(8.0, 1)), range(4)) == [0, 4, 8, 4]


def test_warmup_takes_any_function():
    seen = []

    def constant(*args):
        seen.append(args)
        return 6.0

    assert Warmup(3, constant)(1, 7, "update", 2, "net", "stepper", "logs") == 6.0
    assert seen == [(1, 1, "update", 2, "net", "stepper", "logs")]


@pytest.mark.parametrize(
    "schedule",
    [
        Linear(1.0, 0.0, 3),
        Cosine(1.0, 0.0, 3),
        CosineRestarts(1.0, 0.0, 2),
        CosineRestarts(1.0, 0.0, 2, 3),
        OneCycle(1.0, 5),
        OneCycle(1.0, 5, 0.5, 0.1, 0.2),
        Exponential(1.0, 0.9),
        Exponential(1.0, 0.9, -math.inf, math.inf),
        Exponential(1.0, 0.9, minimum=0.1),
        MultiStep(1.0, (1, 2), (3.0, 4.0)),
        DecreaseAfterEpoch(1.0, 2),
        Warmup(2, Linear(1.0, 0.0, 3)),
        Warmup(2, 0.1, 0.01),
    ],
    ids=lambda s: type(s).__name__,
)
def test_description_is_strict_json_and_gives_the_same_schedule(schedule):
    text = json.dumps(get_description(schedule), allow_nan=False)
    again = create_from_description(json.loads(text))
    assert by_epochs(again, range(6)) == by_epochs(schedule, range(6))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Linear("a", 1.0, 3), r"Linear.initial_value: expected a finite number, got 'a'"),
        (lambda: Linear(1.0, math.nan, 3), r"Linear.final_value: expected a finite number"),
        (lambda: Cosine(1.0, 2.0, 0), r"Cosine.num_changes: expected an integer >= 1, got 0"),
        (
            lambda: OneCycle(1.0, 3, rise=1.0),
            r"OneCycle.rise: expected a number between 0 and 1, got 1.0",
        ),
        (
            lambda: ReduceOnPlateau("loss", 1.0, 1.5),
            r"ReduceOnPlateau.factor: expected a number between 0 and 1, got 1.5",
        ),
        (
            lambda: ReduceOnPlateau("F1", 1.0),
            r"ReduceOnPlateau.criterion: expected 'min' or 'max' for 'F1', got None",
        ),
        (
            lambda: ReduceOnPlateau("loss", 1.0, patience=-1),
            r"ReduceOnPlateau.patience: expected an integer >= 0, got -1",
        ),
        (lambda: Linear(1.0, 2.0, 1.5), r"Linear.num_changes: expected an integer >= 1, got 1.5"),
        (lambda: Exponential(1.0, -2.0), r"Exponential.factor: expected a number > 0, got -2.0"),
        (
            lambda: Exponential(1.0, 2.0, 3.0, 2.0),
            r"Exponential.maximum: expected at least the minimum 3.0, got 2.0",
        ),
        (
            lambda: MultiStep(1.0, [1, 2], [3.0]),
            r"MultiStep.values: expected 2 values, one per step, got \[3.0\]",
        ),
        (
            lambda: MultiStep(1.0, [2, 1], [3.0, 4.0]),
            r"MultiStep.steps: expected increasing numbers, got \[2, 1\]",
        ),
        (lambda: DecreaseAfterEpoch(1.0, 0), r"DecreaseAfterEpoch.T: expected a number > 0"),
        (lambda: Warmup(3, True), r"Warmup.then: expected a finite number, got True"),
        (
            lambda: MultiStep(1.0, [1], [2.0])(1, 1, "epoch", 2, None, None, None),
            r"MultiStep: expected a hook with interval 1, got 2",
        ),
    ],
)
def test_errors(make, text):
    with pytest.raises(TrainingError, match=text):
        make()


def test_a_schedule_of_ones_own_needs_only_at():
    class Squares(Schedule):
        def at(self, k):
            return k * k

    assert by_updates(Squares(), [0, 4, 6], interval=2) == [0, 4, 9]
