"""Going back to a checkpoint: what is restored, how often, and what is logged."""

from __future__ import annotations

import copy
import math
import threading

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.files import read_run_file
from brainstorm.hooks import (
    AverageWeights,
    EarlyStopper,
    Hook,
    LogPlotter,
    ModifyStepperAttribute,
    ReturnToCheckpoint,
    SaveBestNetwork,
    SaveCheckpoint,
    WithAverages,
)
from brainstorm.network.parameters import take_values
from brainstorm.training import Linear, LossScaling, MomentumStepper
from brainstorm.training.team import Team
from tests.trainings import Call, make_trainer, refused, run_threads, spoil

PAGE = ". See docs/not_learning.md#the-loss-is-nan-or-infinite."


def went_back(update, rate=0.05, why="parameters are not finite"):
    """Return what is logged when a training goes back."""
    return f"{why}: back to update {update}, learning rate {rate}"


def run(train, tmp_path, *hooks, stepper=None, **options):
    """Return the trainer, and what there was after each update: values, learning rate, state."""
    stepper, seen = stepper or MomentumStepper(0.1, 0.9), {}

    def keep(epoch_nr, update_nr, net):
        seen[update_nr] = take_values(net), stepper.learning_rate, stepper.get_state()

    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=2, keep=2)
    back, look = ReturnToCheckpoint(**options), Call(keep, "keep", role="reader")
    return train(*hooks, save, back, look, stepper=stepper), seen


def test_it_goes_back_with_half_the_rate_and_goes_on(train, tmp_path):
    trainer, seen = run(train, tmp_path, spoil(5))
    assert trainer.current_update_nr == 8
    assert trainer.logs["ReturnToCheckpoint"] == [went_back(4)]
    np.testing.assert_equal(seen[5][0], seen[4][0])
    assert len(seen[4][0]) > 1
    assert np.isfinite(seen[8][0]["parameters"]).all()
    assert [seen[n][1] for n in (4, 5, 8)] == [0.1, 0.05, 0.05]


def test_values_of_the_network_that_is_discarded_are_not_taken_for_those_of_the_checkpoint(
    train, tmp_path
):
    value = Call(lambda epoch_nr, update_nr, net: 100 if update_nr == 5 else update_nr, "value")
    best = SaveBestNetwork("value", criterion="max", timescale="update")
    stopper = EarlyStopper("value", 9, criterion="max", timescale="update", restore_best=True)
    save = SaveCheckpoint(tmp_path / "run.hdf5", "s", "update", best="value", criterion="max")
    draw = LogPlotter(["value"], tmp_path / "logs.png", timescale="update")
    trainer = train(value, spoil(5), save, ReturnToCheckpoint(), best, stopper, draw)
    assert trainer.logs["value"] == [0, 1, 2, 3, 4, 100, 6, 7, 8]
    assert (best.best_so_far, best.best_t) == (8, 8)
    assert stopper.get_state()["best"] == 8
    assert save.best_so_far == 8


def test_for_one_bad_value_of_a_log_it_goes_back_once(train, tmp_path):
    value = Call(
        lambda epoch_nr, update_nr, net: math.nan if epoch_nr == 1 else 0, "value", "epoch"
    )
    trainer, _ = run(train, tmp_path, value, logs_to_check=["value"])
    assert trainer.logs["ReturnToCheckpoint"] == [went_back(2, why="value is nan")]


def test_a_checkpoint_that_is_not_finite_is_none_to_go_back_to(train, tmp_path):
    trainer, _ = run(train, tmp_path, spoil(4), interval=3)
    assert trainer.logs["ReturnToCheckpoint"] == [went_back(2)]


def test_a_checkpoint_whose_statistics_are_not_finite_is_none_either(train, tmp_path):
    def spoil_statistics(epoch_nr, update_nr, net):
        if update_nr == 3:
            net.buffer.Norm.internals.running_mean[0] = np.nan

    trainer, seen = run(train, tmp_path, Call(spoil_statistics), spoil(5), interval=5)
    assert trainer.logs["ReturnToCheckpoint"] == [went_back(2)]
    assert all(np.isfinite(array).all() for array in seen[8][0].values())


def test_of_several_hooks_the_newest_file_counts_wherever_the_program_has_gone(
    train, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    saves = SaveCheckpoint("a.hdf5", "a"), SaveCheckpoint("b.hdf5", "b", timescale="update")
    move = Call(lambda epoch_nr, update_nr, net: monkeypatch.chdir("/"), "move")
    trainer = train(spoil(6), move, *saves, ReturnToCheckpoint())
    assert trainer.logs["ReturnToCheckpoint"] == [went_back(5)]


def test_the_stepper_goes_back_too(train, tmp_path):
    stepper = MomentumStepper(0.1, 0.9)
    stepper.loss_scaling = LossScaling(8.0, growth_interval=3)
    _, seen = run(train, tmp_path, spoil(5), stepper=stepper)
    before, after, last = (seen[update][2] for update in (4, 5, 8))
    np.testing.assert_equal({**after, "learning_rate": before["learning_rate"]}, before)
    assert after["steps"] == 4
    assert last["loss_scaling"] == {"scale": 32.0, "good_steps": 1}


def test_a_schedule_becomes_smaller_too(train, tmp_path):
    schedule = ModifyStepperAttribute(Linear(0.1, 0.1, 4), timescale="update")
    _, seen = run(train, tmp_path, spoil(3), schedule, factor=0.1)
    assert seen[8][1] == pytest.approx(0.01)


class Updates(Hook):
    """Counts updates, and is told of returns."""

    state_names = ("count",)
    count = 0
    told = None

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        self.count += update_nr > 0

    def go_back(self, state, factor, net, stepper):
        self.told = factor, np.isfinite(net.get("parameters")).all(), stepper.get_state()["steps"]
        self.set_state(state)


def test_hooks_of_users_are_told_and_can_go_back(train, tmp_path):
    own, wrapped = Updates("own", "update"), Updates("wrapped", "update")
    wrapped.role = "reader"
    run(train, tmp_path, spoil(5), own, AverageWeights(), WithAverages(wrapped), factor=0.25)
    assert own.told == wrapped.told == (0.25, True, 4)
    assert own.count == 4 + 3
    assert wrapped.count == 4 + 4  # as a reader it counts the fifth update after the return


def test_it_stops_when_it_has_gone_back_too_often(train, tmp_path):
    trainer, _ = run(train, tmp_path, spoil(3, 5, 6), most_returns=2)
    assert trainer.current_update_nr == 6
    assert trainer.logs["ReturnToCheckpoint"] == [
        went_back(2),
        went_back(4, rate=0.025),
        f"parameters are not finite, after 2 returns{PAGE}",
    ]
    assert trainer.hooks["ReturnToCheckpoint"].returns == 2


@pytest.mark.parametrize("there_are_others", [False, True])
def test_without_a_good_checkpoint_of_this_run_it_stops(train, tmp_path, there_are_others):
    if there_are_others:
        run(train, tmp_path)
    trainer, _ = run(train, tmp_path, spoil(1))
    assert trainer.current_update_nr == 1
    assert trainer.logs["ReturnToCheckpoint"] == [
        f"parameters are not finite, and there is no good checkpoint{PAGE}"
    ]


def test_after_an_older_state_is_resumed_it_goes_back_to_one_before_that(train, tmp_path, batches):
    file = tmp_path / "run.hdf5"
    save = SaveCheckpoint(file, timescale="update", interval=2, keep=9)
    train(spoil(5), save, ReturnToCheckpoint(factor=1.0))
    assert read_run_file(file).state["trainer"]["current_update_nr"] == 8
    again = bs.Trainer.resume(tmp_path / "run-4.hdf5")
    again.hooks["spoil"].function = spoil(5).function
    again.train(again.net, batches, valid=batches)
    assert again.logs["ReturnToCheckpoint"] == [went_back(4, rate=0.1)]


@pytest.mark.parametrize("updates", [0, 4])
@pytest.mark.parametrize("is_first", [True, False])
def test_averages_go_back_too(train, net, batches, tmp_path, updates, is_first):
    """Averages that the checkpoint does not have, because they were added later, begin anew."""
    averages, back = AverageWeights(0.5), ReturnToCheckpoint()
    seen = {}

    def look(epoch_nr, update_nr, net):
        seen[update_nr] = averages.average.copy(), net.get("parameters")

    save = SaveCheckpoint(tmp_path / "run", timescale="update", interval=2)
    trainer = train(save, epochs=updates // 4)
    hooks = [averages, back] if is_first else [back, averages]
    for hook in (spoil(5), *hooks, Call(look, "look", role="reader")):
        trainer.add_hook(hook)
    trainer.hooks["end"].max_epochs = 2
    trainer.train(net, batches, valid=batches)
    assert len(trainer.logs["ReturnToCheckpoint"]) == 1
    assert np.isfinite(seen[8][0]).all()
    expected = {(0, True): seen.get(4, [None])[0], (4, True): seen[5][1]}.get((updates, is_first))
    if expected is not None:
        assert np.array_equal(seen[5][0], expected)


def test_how_often_is_in_the_run_file(train, tmp_path):
    run(train, tmp_path, spoil(3))
    state = read_run_file(tmp_path / "run.hdf5").state
    assert state["trainer"]["hooks"]["ReturnToCheckpoint"] == {"returns": 1}
    again = bs.Trainer.resume(tmp_path / "run.hdf5")
    assert again.hooks["ReturnToCheckpoint"].returns == 1
    assert again.stepper.learning_rate == 0.05


class Rank(Team):
    """One of two threads that train together."""

    size = 2

    def __init__(self, rank, said, meeting):
        self.rank, self.said, self.meeting = rank, said, meeting

    def gather(self, value):
        self.said[self.rank] = value
        self.meeting.wait()
        values = list(self.said)
        self.meeting.wait()
        return values

    def share(self, value):
        return copy.deepcopy(self.gather(value)[0])


@pytest.mark.parametrize("spoiled", [[0], [1], [0, 1]])
def test_all_of_a_team_go_back_to_what_rank_0_has_found(net, batches, tmp_path, spoiled):
    said, meeting, states = [None, None], threading.Barrier(2, timeout=60), [None, None]

    def work(rank):
        trainer = make_trainer(
            Call(lose if rank == 0 else None, "lose"),
            spoil(*[5] * (rank in spoiled)),
            SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=2, keep=2),
            ReturnToCheckpoint(),
            stepper=MomentumStepper(0.1, 0.9),
            epochs=2,
        )
        trainer.team = Rank(rank, said, meeting)
        try:
            trainer.train(copies[rank], batches)
        except BaseException:
            meeting.abort()
            raise
        states[rank] = trainer.logs, trainer.stepper.learning_rate, copies[rank].get("parameters")

    def lose(epoch_nr, update_nr, net):  # the newest file, and the copy of the same content
        if update_nr == 5:
            (tmp_path / "run.hdf5").write_bytes(b"no file")

    copies = [net.copy(), net.copy()]
    run_threads(work, 2)
    (logs, *first), (other_logs, *second) = states
    assert logs["ReturnToCheckpoint"] == [went_back(2)]
    assert other_logs == logs
    assert np.isfinite(first[1]).all()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_it_needs_checkpoints_and_a_learning_rate(train, tmp_path):
    with refused("trainer: expected one with a SaveCheckpoint hook"):
        train(ReturnToCheckpoint())
    with refused("expected one with a learning_rate, got 'ForwardSt"):
        run(train, tmp_path, stepper=bs.training.ForwardStepper())
