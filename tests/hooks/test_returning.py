"""Going back to a checkpoint: what is restored, how often, and what is logged."""

from __future__ import annotations

import copy
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import TrainingError
from brainstorm.files import read_run_file
from brainstorm.hooks import Hook, ModifyStepperAttribute, ReturnToCheckpoint, SaveCheckpoint
from brainstorm.training import Linear, LossScaling, MomentumStepper
from brainstorm.training.team import Team
from tests.trainings import Call, make_trainer, run_threads

PAGE = ". See docs/not_learning.md#the-loss-is-nan-or-infinite."


class Spoil(Hook):
    """Makes a parameter NaN after some updates, and keeps what there was after the next."""

    def __init__(self, *updates):
        super().__init__("spoil", timescale="update")
        self.updates = list(updates)

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if update_nr in self.updates:
            net.handler.set_from_numpy(
                net.buffer.Hidden.parameters.bias, np.array([1.0, np.nan, 0, 0])
            )


class Keep(Hook):
    """Keeps the parameters and the learning rate after each update."""

    __undescribed__ = {"seen": {}}

    role = "reader"

    def __init__(self):
        super().__init__("keep", timescale="update")
        self.seen = {}

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        persistent = net.get_file_content().persistent
        self.seen[update_nr] = (net.get("parameters"), persistent, stepper.learning_rate)


def run(train, tmp_path, *hooks, stepper=None, **options):
    file = tmp_path / "run.hdf5"
    keep = Keep()
    save = SaveCheckpoint(file, timescale="update", interval=2, keep=2)
    back = ReturnToCheckpoint(**options)
    trainer = train(*hooks, save, back, keep, stepper=stepper or MomentumStepper(0.1, 0.9))
    return trainer, keep.seen


def test_it_goes_back_with_half_the_rate_and_goes_on(train, tmp_path):
    trainer, seen = run(train, tmp_path, Spoil(5))
    assert trainer.current_update_nr == 8
    assert trainer.logs["ReturnToCheckpoint"] == [
        "parameters are not finite: back to update 4, learning rate 0.05"
    ]
    assert np.array_equal(seen[5][0], seen[4][0])
    assert seen[4][1]
    assert all(np.array_equal(seen[5][1][path], values) for path, values in seen[4][1].items())
    assert np.isfinite(seen[8][0]).all()
    assert [seen[n][2] for n in (4, 5, 8)] == [0.1, 0.05, 0.05]


def test_the_stepper_goes_back_too(train, tmp_path):
    stepper = MomentumStepper(0.1, 0.9)
    stepper.loss_scaling = LossScaling(8.0, growth_interval=3)
    velocities = {}

    def watch(epoch_nr, update_nr, net):
        velocities[update_nr] = stepper.get_state()

    run(train, tmp_path, Spoil(5), Call(watch, role="reader"), stepper=stepper)
    assert np.array_equal(velocities[5]["velocity"], velocities[4]["velocity"])
    assert velocities[5]["loss_scaling"] == velocities[4]["loss_scaling"]
    assert velocities[5]["steps"] == 4
    assert velocities[8]["loss_scaling"] == {"scale": 32.0, "good_steps": 1}


def test_a_schedule_becomes_smaller_too(train, tmp_path):
    schedule = ModifyStepperAttribute(Linear(0.1, 0.1, 4), timescale="update")
    _, seen = run(train, tmp_path, Spoil(3), schedule, factor=0.1)
    assert seen[8][2] == pytest.approx(0.01)


def test_it_stops_when_it_has_gone_back_too_often(train, tmp_path):
    trainer, _ = run(train, tmp_path, Spoil(3, 5, 6), most_returns=2)
    assert trainer.current_update_nr == 6
    assert trainer.logs["ReturnToCheckpoint"] == [
        "parameters are not finite: back to update 2, learning rate 0.05",
        "parameters are not finite: back to update 4, learning rate 0.025",
        f"parameters are not finite, after 2 returns{PAGE}",
    ]
    assert trainer.hooks["ReturnToCheckpoint"].returns == 2


@pytest.mark.parametrize("there_are_others", [False, True])
def test_without_a_good_checkpoint_of_this_run_it_stops(train, tmp_path, there_are_others):
    if there_are_others:
        run(train, tmp_path)
    trainer, _ = run(train, tmp_path, Spoil(1))
    assert trainer.current_update_nr == 1
    assert trainer.logs["ReturnToCheckpoint"] == [
        f"parameters are not finite, and there is no good checkpoint{PAGE}"
    ]


def test_a_damaged_or_bad_file_is_passed_over(train, tmp_path):
    def damage(epoch_nr, update_nr, net):
        if update_nr == 5:
            (tmp_path / "run.hdf5").write_bytes(b"no file")
            (tmp_path / "run-4.hdf5").unlink()

    trainer, _ = run(train, tmp_path, Spoil(5), Call(damage))
    assert "back to update 2," in trainer.logs["ReturnToCheckpoint"][0]


def test_how_often_is_in_the_run_file(train, tmp_path, batches):
    run(train, tmp_path, Spoil(3))
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


class Lose(Hook):
    """Makes the newest file useless, and the copy with which it shares its content."""

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if update_nr == 5 and self.trainer.team.rank == 0:
            Path(self.trainer.hooks["SaveCheckpoint"].filename).write_bytes(b"no file")


@pytest.mark.parametrize("spoiled", [[0], [1], [0, 1]])
def test_all_of_a_team_go_back_to_what_rank_0_has_found(net, batches, tmp_path, spoiled):
    said, meeting, states = [None, None], threading.Barrier(2, timeout=60), [None, None]

    def work(rank):
        trainer = make_trainer(
            Lose("lose", "update"),
            Spoil(*[5] * (rank in spoiled)),
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

    copies = [net.copy(), net.copy()]
    run_threads(work, 2)
    (logs, *first), (other_logs, *second) = states
    assert logs["ReturnToCheckpoint"] == [
        "parameters are not finite: back to update 2, learning rate 0.05"
    ]
    assert other_logs == logs
    assert np.isfinite(first[1]).all()
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"factor": 0}, "factor: expected a number above 0 and at most 1, got 0."),
        ({"factor": 1.5}, "factor: expected a number above 0 and at most 1, got 1.5."),
        ({"most_returns": 0.5}, "most_returns: expected an integer >= 1, got 0.5."),
    ],
)
def test_options(options, text):
    with pytest.raises(
        TrainingError, match=re.escape(f"'ReturnToCheckpoint' (ReturnToCheckpoint), {text}")
    ):
        ReturnToCheckpoint(**options)


def test_it_needs_checkpoints_and_a_learning_rate(train, tmp_path):
    with pytest.raises(TrainingError, match="trainer: expected one with a SaveCheckpoint hook"):
        train(ReturnToCheckpoint())
    with pytest.raises(TrainingError, match="expected one with a learning_rate, got 'ForwardSt"):
        run(train, tmp_path, stepper=bs.training.ForwardStepper())
