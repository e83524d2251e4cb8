"""Savers: what they keep, and that it can be had back."""

from __future__ import annotations

import errno
import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import DescriptionError, TrainingError, UnknownPathError
from brainstorm.hooks import (
    EarlyStopper,
    Hook,
    LogPlotter,
    MonitorLoss,
    SaveBestNetwork,
    SaveCheckpoint,
    SaveLogs,
    SaveNetwork,
    StopAfterThresholdReached,
    StopOnNan,
)
from brainstorm.tools import evaluate
from brainstorm.training import Logs, Trainer
from tests.hooks.test_stoppers import GivenValues
from tests.trainings import Call, fail_after, make_trainer, refused


def logs_with(*values):
    return {"valid": {"score": list(values)}}


def shift(net, value):
    """Make the parameters and the running statistics recognisable."""
    net.handler.fill(net.buffer.parameters, value)
    net.handler.fill(net.buffer.Norm.internals.running_mean, -value)


def test_save_network(train, net, batches, tmp_path):
    hook = SaveNetwork(tmp_path / "net.hdf5", interval=2)
    train(hook, epochs=4)
    again = hook.load_network()
    assert isinstance(again, bs.Network)
    assert evaluate(again, batches) == evaluate(net, batches)
    assert [p.name for p in tmp_path.iterdir()] == ["net.hdf5"]


def test_save_logs_has_the_last_entries_even_if_the_training_fails(train, tmp_path):
    saver = SaveLogs(tmp_path / "logs.hdf5", interval=100)
    trainer = train(saver, MonitorLoss("valid"))
    assert Logs.load_hdf5(saver.filename) == trainer.logs
    assert "end" in trainer.logs
    with pytest.raises(RuntimeError, match="lost"):
        train(saver, MonitorLoss("valid", timescale="update"), fail_after(6))
    assert len(Logs.load_hdf5(saver.filename)["MonitorLoss.total_loss"]) == 7


def test_logs_that_cannot_be_saved_do_not_keep_the_file(train, tmp_path):
    saver = SaveLogs(tmp_path / "logs.hdf5", interval=100)
    with pytest.raises(TrainingError, match=r"log 'pair': .* cannot be saved as HDF5"):
        train(saver, Call(lambda *_: ({},), "pair"), epochs=1)
    trainer = train(SaveLogs(saver.filename), epochs=1)
    assert Logs.load_hdf5(saver.filename) == trainer.logs


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize(("timescale", "length"), [("epoch", 1), ("update", 10)])
@pytest.mark.parametrize(
    ("criterion", "values", "best"),
    [
        ("max", [1.0, 3.0, 2.0, 3.0], 2),
        ("min", [1.0, 3.0, 0.5, 0.7], 3),
        ("max", [math.nan, 3.0, math.nan, 2.0], 2),
    ],
)
def test_save_best_network(net, tmp_path, in_file, timescale, length, criterion, values, best):
    file = tmp_path / "best.hdf5" if in_file else None
    hook = SaveBestNetwork("valid.score", file, criterion, timescale=timescale)
    hook.start(net, None, False, {})
    for epoch in range(1, 5):
        shift(net, epoch)
        hook(epoch, epoch * 10, net, None, logs_with(*values[:epoch]))
    assert hook.best_so_far == values[best - 1]
    assert hook.best_t == best * length
    hook.finalize(net, None, {})
    again = SaveBestNetwork("valid.score", hook.filename, criterion)
    again.set_state(hook.get_state())
    again.start(net, None, False, {})
    again(5, 50, net, None, logs_with(math.nan))
    assert (again.best_so_far, again.best_t) == (values[best - 1], hook.best_t)
    for each in (hook, again):
        loaded = each.load_best_network()
        assert isinstance(loaded, bs.Network)
        assert set(loaded.get("parameters")) == {best}
        assert set(loaded.get("Norm.internals.running_mean")) == {-best}
        assert loaded.output_name == net.output_name
    assert set(net.get("parameters")) == {4}
    assert (hook.parameters is None) == in_file


def drift(epoch_nr, update_nr, net):
    net.handler.fill(net.buffer.parameters, 99.0)


@pytest.mark.parametrize(
    ("log", "first"),
    [
        *itertools.product([("epoch", 1), ("epoch", 3), ("update", 1), ("update", 3)], [0.0, 9.0]),
        *((log, None) for log in (("epoch", 1), ("update", 1), ("update", 3))),
    ],
)
@pytest.mark.parametrize("own", [("epoch", 1), ("epoch", 2), ("update", 1), ("update", 2)])
def test_no_value_is_missed_and_none_is_that_of_another_network(train, log, own, first):
    scores = [first, 3.0, 1.0, 4.0, 1.0, 5.0, *[2.0] * 40]
    values, steps = GivenValues(*scores, timescale=log[0]), Call(drift, "drift", "update")
    values.interval = log[1]
    saver = SaveBestNetwork("given.loss", None, "max", None, *own)
    trainer = train(steps, values, saver, epochs=6)
    seen = trainer.logs["given.loss"]
    if log == (own[0], 1):  # the hook has a multiple of its interval
        seen = seen[own[1] - 1 if first is None else 0 :: own[1]]
    assert saver.best_so_far == max(seen)
    assert {scores[int(p)] for p in saver.parameters} == {max(seen)}


@pytest.mark.parametrize("log", [("epoch", 2), ("update", 2)])
@pytest.mark.parametrize("own", [("epoch", 1), ("epoch", 3), ("update", 3)])
def test_no_value_is_missed_after_a_run_is_resumed(train, batches, tmp_path, log, own):
    values = GivenValues(*(number * 7 % 11 for number in range(21)), timescale=log[0])
    values.interval = log[1]
    saver = SaveBestNetwork("given.loss", None, "max", None, *own)
    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", keep=99)
    whole = train(values, saver, save, epochs=5)
    assert whole.logs.moments["given"].update > 0
    for name in save.kept[2::7]:
        again = Trainer.resume(name)
        again.train(again.net, batches, valid=batches)
        found = again.hooks["SaveBestNetwork"]
        assert (found.best_so_far, found.best_t) == (saver.best_so_far, saver.best_t), name
        np.testing.assert_array_equal(found.parameters, saver.parameters)
        assert again.logs.moments == whole.logs.moments


@pytest.mark.parametrize("in_file", [False, True])
def test_best_network_exists_from_the_first_call_even_of_one_filled_by_hand(net, tmp_path, in_file):
    net = bs.Network.from_architecture(net.architecture, handler=net.handler)
    hook = SaveBestNetwork("valid.score", tmp_path / "best" if in_file else None, "max")
    with refused("hook 'SaveBestNetwork' (SaveBestNetwork): there is no best network"):
        hook.load_best_network()
    shift(net, 7)
    hook(0, 0, net, None, {})
    shift(net, 8)
    hook(1, 4, net, None, logs_with(math.nan))
    assert hook.best_so_far is None
    assert set(hook.load_best_network().get("parameters")) == {7}


def test_what_it_says(net, capsys):
    hook = SaveBestNetwork("valid.score", criterion="max", verbose=True, name="best")
    hook.start(net, None, False, {})
    for epoch, values in enumerate([(1.0,), (1.0, 2.0), (1.0, 2.0, 0.0)]):
        hook(epoch, 5, net, None, logs_with(*values))
    assert capsys.readouterr().out.splitlines() == [
        "best >> valid.score improved from 1 to 2",
        "best >> best valid.score is 2, at 1",
    ]


# -- whole runs ----------------------------------------------------------------------------------


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def updates_in(folder):
    return {path.name: Trainer.resume(path).current_update_nr for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({}, [4, 8, 12]),
        ({"interval": 2}, [8]),
        ({"timescale": "update", "interval": 5}, [5, 10]),
        ({"timescale": "update", "interval": 4}, [4, 8, 12]),
        ({"minutes": 0}, [*range(1, 13)]),
        ({"minutes": 0.001}, [3, 6, 9, 12]),
        ({"minutes": 1}, []),
    ],
)
def test_when_a_run_is_saved(train, tmp_path, monkeypatch, options, updates):
    """In time that passes with the updates, 0.02 seconds each."""
    times = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: times[-1])
    clock = Call(lambda epoch, update, net: times.append(0.02 * update + 1e-9))
    hook = SaveCheckpoint(tmp_path / "run.hdf5", keep=100, **options)
    train(clock, hook, epochs=3)
    assert [int(name.rpartition("-")[2].partition(".")[0]) for name in hook.kept] == updates


def test_the_best_state_is_kept(train, tmp_path):
    scores = [0.0, math.nan, 3.0, 1.0, 2.0]
    for criterion, epoch in (("min", 3), ("max", 2)):
        folder = tmp_path / criterion
        folder.mkdir()
        hook = SaveCheckpoint(folder / "run", best="score", criterion=criterion)
        train(hook, Call(lambda epoch, *_: scores[epoch], "score", "epoch"), epochs=4)
        assert updates_in(folder) == {"run": 16, "run-best": 4 * epoch}
        assert hook.best_so_far == {"min": 1.0, "max": 3.0}[criterion]


def test_they_save_the_network_of_the_value_where_another_hook_restores_its_own(train, tmp_path):
    """The loss is best at once, the score in the epoch in which the training ends."""
    losses = [9.0, 1.0, 2.0, 3.0]
    trainer = train(
        Call(lambda epoch, *_: losses[epoch], "loss", "epoch"),
        GivenValues(0.0, 1.0, 2.0, 3.0),
        EarlyStopper("loss", 2, restore_best=True),
        best := SaveBestNetwork("given.loss", criterion="max"),
        SaveCheckpoint(tmp_path / "run", best="given.loss", criterion="max"),
        epochs=9,
    )
    assert set(trainer.net.get("parameters")) == {1}
    for kept in (best.load_best_network(), Trainer.resume(tmp_path / "run-best").net):
        assert set(kept.get("parameters")) == {3}


@pytest.mark.parametrize("timescale", ["epoch", "update"])
def test_a_missing_log_is_an_error_unless_its_hook_has_yet_to_log(
    train, net, batches, tmp_path, timescale
):
    def readers(log):
        yield SaveCheckpoint(tmp_path / "a", timescale=timescale, best=log)
        yield SaveBestNetwork(log, timescale=timescale)
        yield EarlyStopper(log, 99, timescale=timescale)
        yield StopAfterThresholdReached(log, -1, timescale=timescale)
        yield StopOnNan(log, timescale=timescale)
        yield LogPlotter(log, tmp_path / "logs.png", timescale=timescale, interval=2)  # slow

    train(*readers("rolling_training.total_loss"))
    assert files_in(tmp_path) == ["a", "a-best", "logs.png"]
    trainer = train(epochs=1)
    for hook in (MonitorLoss("valid", interval=3), *readers("MonitorLoss.total_loss")):
        trainer.add_hook(hook)
    trainer.hooks["end"].max_epochs = 4
    trainer.train(net, batches, valid=batches)
    assert len(trainer.logs["MonitorLoss.total_loss"]) == 1
    for hook in (*readers("rolling.loss"), *readers("rolling_training.loss")):
        with pytest.raises(UnknownPathError, match=r"unknown log 'rolling.*\.loss'"):
            train(hook)


def test_a_resumed_run_tidies_up_what_the_first_has_kept(net, batches, train, tmp_path):
    train(SaveCheckpoint(tmp_path / "run.hdf5", keep=2), epochs=3)
    again = Trainer.resume(tmp_path / "run.hdf5")
    again.hooks["end"].max_epochs = 4
    again.train(again.net, batches, valid=batches)
    assert files_in(tmp_path) == ["run-12.hdf5", "run-16.hdf5", "run.hdf5"]


def refuse_links(source, target):
    raise PermissionError("no links here")


@pytest.mark.parametrize(("target", "left"), [("run-4.hdf5", 2), ("run.hdf5", 1)])
def test_what_was_cut_short_is_tidied_up(train, tmp_path, monkeypatch, target, left):
    real = Path.replace

    def killed(self, new):
        if new.name == target:
            raise KeyboardInterrupt
        real(self, new)

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", killed)
        patched.setattr("pathlib.Path.unlink", lambda *args, **kwargs: None)  # there is no after
        with pytest.raises(KeyboardInterrupt):
            train(SaveCheckpoint(tmp_path / "run.hdf5", keep=2), epochs=1)
    assert len(list(tmp_path.glob(".run.hdf5.????????.tmp"))) == left
    train(SaveCheckpoint(tmp_path / "run.hdf5", keep=2), epochs=2)
    assert files_in(tmp_path) == ["run-4.hdf5", "run-8.hdf5", "run.hdf5"]


def test_a_copy_for_which_there_is_no_space_leaves_nothing(train, tmp_path, monkeypatch):
    copied, seen = [], []

    def copy(source, target):
        copied.append(target)
        target.write_bytes(source.read_bytes()[: 100 if len(copied) == 2 else None])
        if len(copied) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    def look(*_):
        seen.append([name for name in files_in(tmp_path) if name != ".run.lock"])

    monkeypatch.setattr("os.link", refuse_links)
    monkeypatch.setattr("shutil.copyfile", copy)
    train(SaveCheckpoint(tmp_path / "run", keep=2), Call(look, "look", "epoch"), epochs=3)
    assert seen == [[], [], ["run", "run-4"], ["run", "run-4"]]
    assert updates_in(tmp_path) == {"run": 12, "run-4": 4, "run-12": 12}


RATE = bs.hooks.ModifyStepperAttribute(lambda *counts: 0.1, name="rate")


@pytest.mark.parametrize(
    ("hooks", "valid", "file", "text"),
    [
        ([RATE], None, "run", "[Trainer.hooks][rate][ModifyStepperAttribute.schedule]: a func"),
        ([], lambda handler: iter(()), "run", "(SaveCheckpoint), valid: expected a DataIterator"),
        ([], None, "nowhere/run", "filename: expected a file in a folder that exists"),
    ],
)
def test_a_run_that_cannot_be_saved_says_so_before_the_first_update(
    net, batches, tmp_path, hooks, valid, file, text
):
    trainer = make_trainer(SaveCheckpoint(tmp_path / file), *hooks, epochs=1)
    with refused(text, DescriptionError if hooks else TrainingError) as caught:
        trainer.train(net, batches, valid=valid or batches)
    assert caught.value.__notes__ == ["Raised by the hook 'SaveCheckpoint' (SaveCheckpoint)."]
    assert files_in(tmp_path) == []


def test_a_state_that_no_file_can_hold_is_named_and_the_old_file_stays(net, batches, tmp_path):
    odd = Call(lambda epoch, *_: {"thing": object()} if epoch == 2 else None, "Odd", "epoch")
    with refused("run file, trainer.logs.Odd.thing[0]: expected numbers, texts, None"):
        make_trainer(SaveCheckpoint(tmp_path / "run.hdf5"), odd).train(net, batches)
    assert updates_in(tmp_path) == {"run.hdf5": 4}


def test_the_best_value_is_that_of_a_state_that_was_saved(net, batches, tmp_path):
    class Unsaved(Hook):
        state_names = ("thing",)
        thing = None
        role = "editor"

        def __call__(self, epoch_nr, update_nr, net, stepper, logs):
            self.thing = object() if epoch_nr == 2 else None

    scores = [9.0, 5.0, 1.0, 3.0]
    score = Call(lambda epoch, *_: scores[epoch], "score", "epoch")
    save = SaveCheckpoint(tmp_path / "run", best="score", criterion="min", keep=2)
    trainer = make_trainer(score, Unsaved(), save, epochs=3)
    with refused("thing"):
        trainer.train(net, batches)
    assert (save.best_so_far, save.kept) == (5.0, [str(tmp_path / "run-4")])
    trainer.train(net, batches)
    assert save.best_so_far == 3.0
    assert updates_in(tmp_path) == {"run": 12, "run-4": 4, "run-12": 12, "run-best": 12}


# -- disks that are full ---------------------------------------------------------------------------


@pytest.fixture
def full_in(monkeypatch):
    """Let files be written but in some epochs, of which a hook tells by a log that improves."""

    def begin(*bad_epochs):
        now, real = [0], os.fsync

        def fsync(handle):
            if now[0] in bad_epochs:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        def tell(epoch_nr, update_nr, net):
            now[0] = epoch_nr
            return 5 - epoch_nr

        monkeypatch.setattr("os.fsync", fsync)
        return Call(tell, "Calendar", "epoch")

    return begin


def logged_epochs(file):
    return len(Logs.load_hdf5(file)["Calendar"])


SAVERS = {
    "network": lambda file: SaveNetwork(file),
    "best": lambda file: SaveBestNetwork("Calendar", file, "min"),
    "logs": lambda file: SaveLogs(file),
    "run": lambda file: SaveCheckpoint(file),
    "plot": lambda file: LogPlotter("Calendar", file),
}


def test_a_value_whose_network_could_not_be_saved_is_not_that_of_a_later_one(
    train, tmp_path, full_in
):
    score = Call(lambda epoch, *_: 5 - epoch if epoch < 3 else None, "score", "epoch")
    hook = SaveBestNetwork("score", tmp_path / "best.hdf5", "min")
    with pytest.raises(TrainingError, match="expected to write .* The file, if .* is older"):
        train(full_in(2), score, hook, epochs=3)
    assert (hook.best_so_far, hook.best_t) == (4, 1)


@pytest.mark.parametrize("kind", SAVERS)
def test_a_disk_that_is_full_for_a_while(train, tmp_path, full_in, caplog, kind):
    hook = SAVERS[kind](tmp_path / "file.hdf5")
    trainer = train(full_in(2, 3), hook, epochs=4)
    assert trainer.current_epoch_nr == 4
    assert len(caplog.records) == 2
    assert caplog.records[0].getMessage() == (
        f"{hook.place}: {tmp_path}/file.hdf5 could not be written, and will be tried again when it "
        "is due: [Errno 28] No space left on device"
    )
    assert files_in(tmp_path) == ["file.hdf5"]
    if kind == "logs":
        assert logged_epochs(hook.filename) == 5
    elif kind == "plot":
        assert Path(hook.filename).read_bytes().startswith(b"\x89PNG")
    else:
        saved = bs.Network.from_hdf5(hook.filename).get("parameters")
        np.testing.assert_array_equal(saved, trainer.net.get("parameters"))


@pytest.mark.parametrize("kind", SAVERS)
def test_a_disk_that_is_full_at_the_end(net, batches, tmp_path, full_in, monkeypatch, kind):
    hook = SAVERS[kind](tmp_path / "file.hdf5")
    trainer = make_trainer(full_in(3), hook, epochs=3)
    with refused(
        f"{hook.place}: expected to write {tmp_path}/file.hdf5, got: [Errno 28] No space left on "
        "device. The file, if there is one, is older"
    ) as caught:
        trainer.train(net, batches)
    assert isinstance(caught.value.__cause__, OSError)
    assert trainer.current_epoch_nr == 3
    assert files_in(tmp_path) == ["file.hdf5"]
    if kind == "run":
        assert Trainer.resume(hook.filename).current_epoch_nr == 2
    elif kind == "logs":
        assert logged_epochs(hook.filename) == 3
    monkeypatch.undo()
    trainer.hooks["StopAfterEpoch"].max_epochs = 5
    trainer.train(net, batches)  # and now there is space


@pytest.mark.parametrize("kind", SAVERS)
def test_an_error_of_the_training_comes_first(net, batches, tmp_path, full_in, kind):
    hooks = full_in(2, 3), SAVERS[kind](tmp_path / "file"), fail_after(12)
    with pytest.raises(RuntimeError, match="lost"):
        make_trainer(*hooks).train(net, batches)


def test_what_a_checkpoint_keeps_while_the_disk_is_full(train, tmp_path, full_in):
    hook = SaveCheckpoint(tmp_path / "run", keep=2, best="Calendar", criterion="min")
    train(full_in(3), hook, epochs=4)
    assert updates_in(tmp_path) == {"run": 16, "run-8": 8, "run-16": 16, "run-best": 16}
    assert hook.kept == [str(tmp_path / "run-8"), str(tmp_path / "run-16")]


@pytest.mark.parametrize("kind", SAVERS)
def test_a_folder_that_cannot_be_written(train, tmp_path, monkeypatch, kind):
    monkeypatch.setattr("os.access", lambda *_: False)
    with refused("expected a file in a folder that exists and can be w"):
        train(SAVERS[kind](tmp_path / "file.hdf5"))


@pytest.mark.parametrize(
    ("saver", "name"), [("logs", "l.csv"), ("run", "r.json"), ("plot", "p.pdf")]
)
def test_files_are_not_called_after_other_formats(train, tmp_path, saver, name):
    hook = SAVERS[saver](tmp_path / name)
    endings = ".png" if saver == "plot" else ".hdf5 or .h5"
    with refused(f"{hook.place}, filename: expected a file that ends with {endings}, which is its"):
        train(hook)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("saver", [SaveNetwork, SaveLogs, SaveCheckpoint])
def test_savers_take_verbose_as_other_hooks_do(saver):
    hook = create_from_description(get_description(saver("file.hdf5", verbose=False)))
    assert (hook.verbose, saver("file.hdf5").verbose) == (False, None)
