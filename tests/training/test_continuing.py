"""Trainings that are continued, whatever ended them, and beside predictions of other threads."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from functools import partial

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import AddGaussianNoise, Minibatches, SequenceChunks, Undivided
from brainstorm.hooks import (
    EarlyStopper,
    Hook,
    ModifyStepperAttribute,
    MonitorLoss,
    MonitorScores,
    SaveBestNetwork,
    SaveCheckpoint,
    StopAfterEpoch,
    StopAfterThresholdReached,
    StopOnNan,
)
from brainstorm.layers import BatchNorm, Dropout, Lstm
from brainstorm.scorers import Accuracy
from brainstorm.training import (
    AdamStepper,
    GradientAccumulation,
    Linear,
    Logs,
    MomentumStepper,
    ReduceOnPlateau,
    SgdStepper,
    Trainer,
)
from brainstorm.value_modifiers import ClipValues
from tests import trainings
from tests.networks import trainable
from tests.trainings import Call, fail_after, given, refused

X = np.random.RandomState(0).randn(1, 11, 3)  # as in `batches`
DATA = Undivided(default=X, targets=(X[:, :, :1] > 0).astype(float))

RND = np.random.RandomState(3)
CHUNKED = {"default": RND.normal(size=(8, 6, 4)), "targets": RND.randint(0, 3, (8, 6, 1))}

make_trainer = partial(trainings.make_trainer, epochs=2)


def make_data():
    return Minibatches(3, **DATA.data)


def run_in_parts(net, stepper, parts, interrupted=None, other_data=False):
    """Train for epochs of 4 updates, in parts or with an interruption; return all there is."""
    bs.global_rnd.set_seed(1)
    net = net.copy()
    data, end = make_data(), StopAfterEpoch(3)
    trainer = make_trainer(end, stepper=stepper, epochs=None)
    if interrupted is not None:
        trainer.add_hook(fail_after(interrupted))
        with pytest.raises(RuntimeError, match="lost"):
            trainer.train(net, data)
        del trainer.hooks["fail"]
    for epochs in parts:
        end.max_epochs = epochs
        trainer.train(net, make_data() if other_data else data)
    return trainer, net


@pytest.mark.parametrize(
    "make",
    [
        lambda: MomentumStepper(0.05, 0.9),
        lambda: given(AdamStepper(0.01), accumulation=GradientAccumulation(3)),
    ],
    ids=["momentum", "accumulating adam"],
)
@pytest.mark.parametrize(("parts", "interrupted"), [([1, 2, 3], None), ([3], 1), ([2, 3], 4)])
def test_a_training_in_parts_is_that_in_one(net, make, parts, interrupted):
    whole, in_parts = (run_in_parts(net, make(), *run) for run in (([3],), (parts, interrupted)))
    assert in_parts[0].current_update_nr == whole[0].current_update_nr
    assert in_parts[0].current_epoch_nr == 3
    assert np.array_equal(in_parts[1].get("parameters"), whole[1].get("parameters"))
    losses = [run[0].logs["rolling_training.total_loss"] for run in (whole, in_parts)]
    assert losses[0] == losses[1]


def test_an_interrupted_epoch_is_begun_again_with_other_data(net):
    run = run_in_parts(net, MomentumStepper(0.05, 0.9), [3], interrupted=1, other_data=True)
    assert (run[0].current_epoch_nr, run[0].current_update_nr) == (3, 13)


def test_a_new_stepper_and_another_network_begin_without_a_state(net):
    trainer, trained = run_in_parts(net, AdamStepper(0.01), [1])
    trainer.stepper = AdamStepper(0.01)
    for epochs, each in ((2, trained), (3, net)):
        trainer.hooks["StopAfterEpoch"].max_epochs = epochs
        trainer.train(each, make_data())
        assert trainer.stepper.steps == 4


def test_a_training_without_an_update_says_which_hook_ended_it(net, batches, tmp_path, caplog):
    trainer = make_trainer(SaveCheckpoint(tmp_path / "run"), epochs=1)
    trainer.train(net, batches)
    assert not caplog.records
    resumed = Trainer.resume(tmp_path / "run")
    for each, level in ((trainer, "WARNING"), (resumed, "INFO")):
        with caplog.at_level("INFO"):
            each.train(each.net, batches)
        assert (caplog.records[-1].levelname, caplog.messages[-1]) == (
            level,
            "Trainer.train made no update, because of trainer.hooks['StopAfterEpoch'] (reached "
            "max_epochs=1). Change or delete the hook.",
        )


class KeepCopies(Hook):
    """Copies the trainer in the second epoch, and ends it with an error."""

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if update_nr == 6:
            KEPT[:] = copy.deepcopy(self.trainer), pickle.loads(pickle.dumps(self.trainer))
            raise RuntimeError("lost")


KEPT: list[Trainer] = []


def test_a_copy_of_a_trainer_begins_an_epoch_that_has_not_ended_again(net):
    data = AddGaussianNoise(make_data(), {"default": 0.1})  # its batches come from a generator
    trainer = make_trainer(KeepCopies(timescale="update"))
    with pytest.raises(RuntimeError, match="lost"):
        trainer.train(net, data)
    for kept in (*KEPT, copy.deepcopy(trainer)):
        del kept.hooks["KeepCopies"]
        kept.train(kept.net, data)
        assert (kept.current_epoch_nr, kept.current_update_nr) == (2, 10)


def after_three_updates(act):
    return Call(lambda epoch_nr, update_nr, net: act(net) if update_nr == 3 else None)


def test_a_stepper_that_a_hook_sets_is_started(net, batches):
    change = after_three_updates(lambda _: setattr(trainer, "stepper", MomentumStepper(0.1)))
    trainer = make_trainer(change)
    trainer.train(net, batches)
    assert trainer.stepper.steps == trainer.current_update_nr - 3 > 0


def test_a_stepper_that_trains_another_network_meanwhile_is_refused(net, batches):
    def train_a_copy(net):
        make_trainer(stepper=trainer.stepper).train(net.copy(), batches)

    trainer = make_trainer(after_three_updates(train_a_copy))
    with refused("meanwhile it was started with another one. Give the"):
        trainer.train(net, batches)


def test_an_epoch_whose_data_failed_is_begun_again(net):
    class Flaky(Minibatches):
        fails = True

        def __call__(self, handler=None):
            for number, batch in enumerate(super().__call__(handler)):
                if number == 2 and self.fails:
                    raise OSError("no file")
                yield batch

    trainer, data = make_trainer(epochs=1), Flaky(3, **DATA.data)
    with pytest.raises(OSError, match="no file"):
        trainer.train(net, data)
    data.fails = False
    trainer.train(net, data)
    assert (trainer.current_epoch_nr, trainer.current_update_nr) == (1, 2 + 4)


@pytest.mark.parametrize("method", ["provide_external_data", "carry_context", "leave_batch"])
@pytest.mark.parametrize("number", [1, 2, 3, 5])
@pytest.mark.parametrize("is_done", [False, True])
def test_a_chunk_whose_loading_was_interrupted_is_loaded_again(
    monkeypatch, method, number, is_done
):
    def run(interrupts):
        bs.global_rnd.set_seed(1)
        net, trainer, calls = trainable(Lstm(5)), make_trainer(stepper=SgdStepper(0.5)), []
        function = getattr(type(net), method)

        def interrupted(self, *arguments):
            calls.append(arguments)
            if is_done:
                function(self, *arguments)
            if len(calls) == number:
                raise KeyboardInterrupt
            if not is_done:
                function(self, *arguments)

        chunks = SequenceChunks(3, 3, **CHUNKED)
        if interrupts:
            with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
                patch.setattr(type(net), method, interrupted)
                trainer.train(net, chunks)
        trainer.train(net, chunks)
        return trainer.current_update_nr, net.get("parameters").tolist()

    assert run(True) == run(False)


def test_counts_and_logs_go_on_and_nothing_is_logged_twice(net, batches):
    trainer = make_trainer(MonitorLoss("valid"))
    for epochs in (2, 3, 3):
        trainer.hooks["StopAfterEpoch"].max_epochs = epochs
        trainer.train(net, batches, valid=batches)
        assert (trainer.current_epoch_nr, trainer.current_update_nr) == (epochs, 4 * epochs)
        assert len(trainer.logs["MonitorLoss.total_loss"]) == 1 + epochs


def test_schedules_apply_at_once_when_a_training_is_continued(net, batches):
    trainer = make_trainer()
    trainer.train(net, batches)
    trainer.add_hook(ModifyStepperAttribute(Linear(1.0, 0.0, 4)))
    trainer.train(net, batches)
    assert trainer.stepper.learning_rate == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda loss: ModifyStepperAttribute(
            ReduceOnPlateau("valid.total_loss", 0.5, 0.5, 0, threshold=0.9), timescale="update"
        ),
        lambda loss: StopAfterThresholdReached("valid.total_loss", loss, timescale="update"),
    ],
    ids=["schedule", "stopper"],
)
def test_after_an_update_nothing_of_the_end_of_its_epoch_is_seen(net, batches, tmp_path, make):
    def run(hooks, *parts):
        trainer, trained = make_trainer(MonitorLoss("data", name="valid"), *hooks), net.copy()
        for trainer.hooks["StopAfterEpoch"].max_epochs in parts:
            trainer.train(trained, DATA, data=batches)
        return trainer

    def outcome(trainer):
        return trainer.current_update_nr, *trainer.net.get("parameters")

    after_one = run([], 1).logs["valid.total_loss"][-1]
    whole = run([make(after_one), SaveCheckpoint(tmp_path / "run.hdf5", keep=9)], 4)
    assert outcome(run([make(after_one)], 1, 4)) == outcome(whole)
    resumed = Trainer.resume(tmp_path / "run-1.hdf5")
    resumed.train(resumed.net, DATA, data=batches)
    assert outcome(resumed) == outcome(whole)


def test_another_network_or_schedule_is_another_occasion(net, batches):
    rates = ModifyStepperAttribute(lambda *_: 1.0, timescale="update", name="rates")
    stop = StopOnNan(check_training_loss=False, timescale="update", name="stop")
    trainer = make_trainer(rates, stop)
    trainer.train(net, batches)
    rates.schedule = lambda *_: 2.0
    trainer.train(net, batches)  # which ends at once
    assert trainer.stepper.learning_rate == 2.0
    other = net.copy()
    other.buffer.parameters[:] = np.nan
    trainer.train(other, batches)
    assert trainer.current_update_nr == 8
    assert "not finite" in trainer.logs["stop"][-1]


def full_trainer(epochs):
    return make_trainer(
        MonitorScores("valid", [Accuracy()], name="validation"),
        ModifyStepperAttribute(Linear(0.1, 0.01, 6)),
        SaveBestNetwork("validation.Accuracy"),
        EarlyStopper("validation.total_loss", patience=100),
        stepper=AdamStepper(),
        epochs=epochs,
    )


def test_state_is_a_copy_and_passes_over_unknown_hooks(net, batches):
    trainer = full_trainer(1)
    trainer.train(net, batches, valid=batches)
    state = trainer.get_state()
    accuracies = trainer.logs["validation.Accuracy"].copy()
    trainer.logs["validation.Accuracy"].append(7)
    other = Trainer(AdamStepper())
    other.set_state(state)
    assert other.current_update_nr == 4
    assert isinstance(other.logs, Logs)
    assert other.logs["validation.Accuracy"] == accuracies


# -- threads --------------------------------------------------------------------------------------

OTHER = np.random.RandomState(5).normal(size=(3, 5, 4))


class Slow(SgdStepper):
    """Lets another thread try to predict between the arrival of a batch and the step."""

    asked, answered = threading.Event(), threading.Event()

    def run(self):
        self.asked.set()
        self.answered.wait(0.02)
        self.answered.clear()
        super().run()


def train_recurrently(client=False):
    """Return the parameters after a training, and what was predicted at any time."""
    net = trainable(Lstm(5, name="Lstm"), Dropout(0.5), BatchNorm())
    net.output_name = "Out.outputs.predictions"
    net.set_weight_modifiers({"Lstm": ClipValues(-0.6, 0.6)})
    seen, answers, done = [net.predict(OTHER)], [], threading.Event()
    scores = MonitorScores("validation", [Accuracy()], timescale="update", name="scores")
    look = Call(lambda *_: seen.append(net.predict(OTHER)))
    trainer = make_trainer(scores, look, stepper=Slow(0.5))
    trainer.train_scorers = [Accuracy()]

    def predict():
        while not done.is_set():
            if Slow.asked.wait(0.02):
                Slow.asked.clear()
                answers.append(net.predict(OTHER))
                Slow.answered.set()

    thread = threading.Thread(target=predict)
    if client:
        thread.start()
    try:
        chunks = SequenceChunks(2, 2, **CHUNKED)
        trainer.train(net, chunks, validation=Minibatches(4, shuffle=False, **CHUNKED))
    finally:
        done.set()
        if client:
            thread.join(30)
    return net.get("parameters"), trainer.logs, seen, answers


def test_predictions_of_another_thread_do_not_disturb_a_training():
    """Neither its steps, its scores nor its evaluations; and they are right themselves."""
    bs.global_rnd.set_seed(7)
    expected, logs, _, _ = train_recurrently()
    bs.global_rnd.set_seed(7)
    got, same_logs, seen, answers = train_recurrently(client=True)
    np.testing.assert_array_equal(got, expected)
    assert same_logs.get_state() == logs.get_state()
    assert len(answers) >= 12
    assert all(any(np.array_equal(answer, right) for right in seen) for answer in answers)
