"""Stoppers: when they stop, and what they refuse."""

from __future__ import annotations

import math
import os
import signal

import numpy as np
import pytest

from brainstorm.errors import UnknownPathError
from brainstorm.hooks import (
    EarlyStopper,
    Hook,
    MonitorLoss,
    SaveBestNetwork,
    SaveCheckpoint,
    StopAfterEpoch,
    StopAfterThresholdReached,
    StopOnNan,
    StopOnSigQuit,
)
from brainstorm.training import SgdStepper, Trainer
from tests.trainings import Call, fail_after, refused, run_threads

PAGE = ". See docs/not_learning.md#the-loss-is-nan-or-infinite."

NAN = math.nan


def stops(hook, *values, net=None, update_nr=4):
    try:
        hook(1, update_nr, net, None, {"a": {"b": list(values)}})
    except StopIteration as reason:
        return reason.value
    return None


def test_stop_after_epoch(train):
    for options in ({}, {"timescale": "update", "interval": 5}):
        trainer = train(StopAfterEpoch(3, **options), epochs=10)
        assert (trainer.current_epoch_nr, trainer.current_update_nr) == (3, 12)
        assert trainer.logs["StopAfterEpoch"] == ["reached max_epochs=3"]
    assert train(epochs=0).current_update_nr == 0


@pytest.mark.parametrize(
    ("options", "values", "expected"),
    [
        ({}, [], None),
        ({}, [3], None),
        ({}, [3, 2], None),
        ({}, [3, 2, 2], "a.b was best 1 values ago"),
        ({}, [1, 2], "a.b was best 1 values ago"),
        ({"patience": 2}, [3, 1, 2], None),
        ({"patience": 2}, [3, 1, 2, 4], "a.b was best 2 values ago"),
        ({"criterion": "max"}, [1, 2], None),
        ({"criterion": "max"}, [2, 1], "a.b was best 1 values ago"),
        ({}, [3, NAN, 2], None),
        ({}, [NAN, 2], None),
        ({}, [2, NAN], "a.b was best 1 values ago"),
        ({"patience": 2}, [NAN, NAN, NAN], "a.b was best 2 values ago"),
        ({"min_delta": 0.5}, [3, 2.4], None),
        ({"min_delta": 0.5}, [3, 2.6], "a.b was best 1 values ago"),
        ({"min_delta": 0.5, "patience": 2}, [3, 2.6, 2.4], None),  # both compared with 3
        ({"min_delta": 0.5, "criterion": "max"}, [3, 3.5], "a.b was best 1 values ago"),
    ],
)
def test_early_stopper(options, values, expected):
    assert stops(EarlyStopper("a.b", **{"criterion": "min", **options}), *values) == expected


class GivenValues(Hook):
    """Logs values, the first one before the training; afterwards parameters are its number.

    Until the training is stopped: what belongs to the end of an epoch comes after a stop in it.
    """

    _number = -1
    state_names = ("_number",)

    def __init__(self, *values, timescale="epoch"):
        super().__init__("given", timescale)
        self.values = values

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        self._number += 1
        if "EarlyStopper" not in logs:
            net.handler.fill(net.buffer.parameters, self._number)
            net.handler.fill(net.buffer.Norm.internals.running_mean, self._number)
        return {"loss": self.values[self._number]}


@pytest.mark.parametrize(
    ("patience", "restore_best", "found"), [(2, True, 2), (2, False, 4), (5, True, 2)]
)
def test_the_best_network_is_restored_whichever_hook_stops(
    train, net, patience, restore_best, found
):
    stopper = EarlyStopper("given.loss", patience, restore_best=restore_best)
    train(GivenValues(0.0, 3, 1, 2, 2, 2), stopper, epochs=5)
    assert set(net.get("parameters")) == set(net.get("Norm.internals.running_mean")) == {found}


def test_the_last_network_stays_before_the_first_epoch_that_counts_and_after_an_error(
    train, net, batches
):
    stopper = EarlyStopper("given.loss", 9, restore_best=True, first_epoch=3)
    values = GivenValues(0.0, 1, 2, 3)
    values.interval = 2
    trainer = train(values, stopper, epochs=3)
    assert set(net.get("parameters")) != {1}
    trainer.hooks["end"].max_epochs = 9
    trainer.add_hook(fail_after(17))
    with pytest.raises(RuntimeError):
        trainer.train(net, batches, valid=batches)
    assert set(stopper.get_state()["kept"]["parameters"]) == {2}
    assert set(net.get("parameters")) != {2}


@pytest.mark.parametrize("log", ["epoch", "update"])
@pytest.mark.parametrize("timescale", ["epoch", "update"])
@pytest.mark.parametrize("interval", [1, 2])
def test_the_network_of_the_best_value_is_restored_at_any_rhythm(
    train, net, log, timescale, interval
):
    values = GivenValues(0, 5, 4, 1, *[9] * 50, timescale=log)
    stopper = EarlyStopper("given.loss", 2, None, None, timescale, interval, restore_best=True)
    train(values, stopper, stepper=SgdStepper(0.0), epochs=9)
    assert set(net.get("parameters")) == {3}


@pytest.mark.parametrize("options", [{"interval": 5}, {"timescale": "update"}, {}])
def test_values_before_the_first_epoch_do_not_count_at_any_rhythm(train, net, options):
    stopper = EarlyStopper("given.loss", 2, first_epoch=5, restore_best=True, **options)
    values = GivenValues(0, 1, 1, 1, 0.1, 3, 2, 4, *[4] * 9)
    trainer = train(values, stopper, stepper=SgdStepper(0.0), epochs=12)
    assert set(net.get("parameters")) == {6}
    assert trainer.current_epoch_nr == (10 if "interval" in options else 8)


def test_values_from_before_the_hook_are_no_rivals_where_the_network_is_restored(
    train, net, batches
):
    trainer = train(GivenValues(0, 1, 5, 4, 6, 6, 6), stepper=SgdStepper(0.0), epochs=2)
    trainer.add_hook(EarlyStopper("given.loss", 2, restore_best=True))
    trainer.hooks["end"].max_epochs = 9
    trainer.train(net, batches)
    assert (trainer.current_epoch_nr, *set(net.get("parameters"))) == (5, 3)


def test_an_early_stopper_is_resumed_exactly(train, net, batches, tmp_path):
    stopper = EarlyStopper("given.loss", 3, restore_best=True)
    save = SaveCheckpoint(tmp_path / "run.hdf5", keep=9)
    whole = train(GivenValues(0.0, 2, 1, 2, 2, 2, 2), stopper, save, epochs=6)
    again = Trainer.resume(tmp_path / "run-12.hdf5")
    again.train(again.net, batches, valid=batches)
    assert whole.current_epoch_nr == again.current_epoch_nr == 5
    assert set(again.net.get("parameters")) == {2}


@pytest.mark.parametrize(
    ("criterion", "values", "expected"),
    [
        ("min", [0.6, 0.7], None),
        ("min", [0.6, 0.5, 0.7], "a.b reached 0.5"),
        ("max", [0.4, 0.3], None),
        ("max", [0.4, 0.5, 0.3], "a.b reached 0.5"),
        ("max", [NAN], None),
        ("min", [NAN], None),
    ],
)
def test_stop_after_threshold(criterion, values, expected):
    assert stops(StopAfterThresholdReached("a.b", 0.5, criterion), *values) == expected


@pytest.mark.parametrize(
    "stopper",
    [
        EarlyStopper("given.loss", timescale="update"),
        StopAfterThresholdReached("given.loss", 2, "max", timescale="update", interval=2),
        StopOnNan("given.loss", timescale="update"),
    ],
)
def test_a_stopper_by_updates_sees_the_log_of_an_epoch_at_its_end(train, stopper):
    values = 0, 1, math.inf if isinstance(stopper, StopOnNan) else 2, 3
    trainer = train(GivenValues(*values), stopper, epochs=3)
    assert trainer.current_update_nr == 8


def test_a_threshold_by_epochs_stops_at_the_end_of_one_although_it_was_reached_before(train):
    values = GivenValues(0, 5, *[1] * 20, timescale="update")
    trainer = train(values, StopAfterThresholdReached("given.loss", 5, "max"), epochs=3)
    assert trainer.current_update_nr == 4


@pytest.mark.parametrize("make", [EarlyStopper, StopAfterThresholdReached, SaveBestNetwork])
@pytest.mark.parametrize("name", ["a.c", "a"])
def test_a_missing_log_is_an_error_once_training_runs(net, make, name):
    """And one of further logs, which has no values."""
    options = {"threshold": 1} if make is StopAfterThresholdReached else {}
    hook = make(name, criterion="min", **options)
    assert stops(hook, net=net, update_nr=0) is None
    text = rf"^hook '.*' \(.*\): unknown log '{name}'. Choices are: a.b.* Add the hook that"
    with pytest.raises(UnknownPathError, match=text):
        stops(hook, 1.0)


@pytest.mark.parametrize("value", ["a text", None, [1.0], np.ones(2), np.array("1")], ids=repr)
def test_values_that_are_no_numbers_are_named(net, value):
    judges = EarlyStopper, SaveBestNetwork
    hooks = [make("a.b", criterion="min") for make in judges]
    hooks += [StopAfterThresholdReached("a.b", 1, "min"), StopOnNan("a.b", False, False)]
    for hook in hooks:
        text = f"{hook.place}: expected numbers in the log 'a.b', got {value!r}."
        with refused(text, is_whole=True):
            stops(hook, 1.0, value, net=net)
        stops(hook, np.array(1.0), np.float32(2), 2, np.bool_(True), net=net)  # these are


# -- NaN -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["parameters", "Norm.internals.running_var"])
def test_nan_in_the_parameters_or_statistics(net, path):
    assert stops(StopOnNan(check_training_loss=False), net=net) is None
    for bad in (np.nan, np.inf):
        net.buffer[path][1] = bad
        hook = StopOnNan(check_training_loss=False)
        assert stops(hook, net=net) == f"{path} are not finite{PAGE}"
        assert stops(StopOnNan(check_parameters=False, check_training_loss=False), net=net) is None


def test_nan_in_logs(net):
    one, several, absent = (
        StopOnNan(names, check_training_loss=False) for names in ("a.b", ["a.b"], ["a.c"])
    )
    assert stops(one, 1.0, net=net) is None
    assert stops(one, 1.0, NAN, net=net) == f"a.b is nan{PAGE}"
    assert stops(one, NAN, 1.0, net=net) is None
    assert stops(several, math.inf, net=net) == f"a.b is inf{PAGE}"
    assert stops(absent, net=net, update_nr=0) is None
    with pytest.raises(UnknownPathError, match=r"unknown log 'a.c'"):
        stops(absent, net=net)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("timescale", "interval", "updates"), [("update", 1, 2), ("update", 3, 3), ("epoch", 1, 4)]
)
def test_no_batch_is_missed_whatever_else_runs(train, timescale, interval, updates):
    def overflow(epoch_nr, update_nr, net):
        values = np.array([math.inf if update_nr == 1 else 0.0, 0.0])
        net.handler.set_from_numpy(net.buffer.Projection.parameters.bias, values)

    trainer = train(
        Call(overflow),
        MonitorLoss("valid", timescale="update"),  # which leaves other data in the network
        StopOnNan(check_parameters=False, timescale=timescale, interval=interval),
        stepper=SgdStepper(0.0),
        epochs=5,
    )
    assert trainer.current_update_nr == updates
    assert trainer.logs["StopOnNan"] == [f"the training loss is inf{PAGE}"]


# -- signals -------------------------------------------------------------------------------------


def kill(epoch_nr, update_nr, net):
    """Send the signal after the second update."""
    if update_nr == 2:
        os.kill(os.getpid(), signal.SIGQUIT)


@pytest.fixture
def own_handler():
    seen = []
    previous = signal.signal(signal.SIGQUIT, lambda *args: seen.append(args))
    yield seen
    signal.signal(signal.SIGQUIT, previous)


@pytest.mark.parametrize(("timescale", "updates"), [("update", 2), ("epoch", 4)])
def test_sigquit_stops(train, own_handler, timescale, updates):
    before = signal.getsignal(signal.SIGQUIT)
    trainer = train(Call(kill), StopOnSigQuit(timescale=timescale), epochs=5)
    assert trainer.current_update_nr == updates
    assert trainer.logs["StopOnSigQuit"] == ["received SIGQUIT"]
    assert signal.getsignal(signal.SIGQUIT) is before
    assert own_handler == []
    os.kill(os.getpid(), signal.SIGQUIT)
    assert len(own_handler) == 1


def test_sigquit_is_given_back_after_an_error_and_does_not_stop_the_next_training(
    train, own_handler
):
    before, hook = signal.getsignal(signal.SIGQUIT), StopOnSigQuit(timescale="update")
    with pytest.raises(RuntimeError):
        train(Call(kill), fail_after(2), hook)
    assert signal.getsignal(signal.SIGQUIT) is before
    assert train(hook, epochs=1).current_epoch_nr == 1


def test_in_another_thread_it_says_so_and_does_nothing(train, own_handler, capsys):
    before = signal.getsignal(signal.SIGQUIT)
    trainers = []
    run_threads(lambda _: trainers.append(train(StopOnSigQuit(verbose=True), epochs=1)), 1)
    assert trainers[0].current_epoch_nr == 1
    assert "StopOnSigQuit >> not in the main thread" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGQUIT) is before


def test_without_sigquit_it_says_so(train, monkeypatch, capsys):
    monkeypatch.delattr(signal, "SIGQUIT")
    train(StopOnSigQuit(verbose=True), epochs=1)
    assert "StopOnSigQuit >> this system has no SIGQUIT" in capsys.readouterr().out
