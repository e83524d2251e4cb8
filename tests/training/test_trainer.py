"""The trainer: the loop, the order and the life cycle of hooks, printing, and continuing."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import DataIterator, Undivided
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, ValidationError
from brainstorm.hooks import (
    Hook,
    MonitorLoss,
    MonitorScores,
    SaveBestNetwork,
    SaveCheckpoint,
    SaveLogs,
    StopAfterEpoch,
)
from brainstorm.layers import FullyConnected, Input, SquaredError
from brainstorm.scorers import Accuracy, MeanSquaredError
from brainstorm.training import AdamStepper, Logs, SgdStepper, Trainer
from tests import trainings
from tests.networks import wire_loss
from tests.training.test_continuing import DATA, full_trainer
from tests.trainings import Call, Spy, given, refused

make_trainer = partial(trainings.make_trainer, epochs=2)


# -- the loop ------------------------------------------------------------------------------------


def test_it_learns(net, batches):
    trainer = make_trainer(stepper=AdamStepper(0.05), epochs=30)
    trainer.train_scorers = (scorer for scorer in [Accuracy()])  # anything that yields them
    trainer.train(net, batches)
    rolling = trainer.logs["rolling_training"]
    assert len(rolling["total_loss"]) == len(rolling["Accuracy"]) == 30
    assert rolling["total_loss"][-1] < 0.2 * rolling["total_loss"][0]
    assert rolling["Accuracy"][-1] == 1.0
    assert (trainer.current_epoch_nr, trainer.current_update_nr) == (30, 120)


def test_hooks_fire_by_timescale_and_interval_and_once_before(net, batches):
    calls = []
    make_trainer(
        Spy(calls, "E"),
        Spy(calls, "E2", interval=2),
        Spy(calls, "U", timescale="update"),
        Spy(calls, "U3", timescale="update", interval=3),
    ).train(net, batches)
    fired = [call for call in calls if "/" in call]
    assert fired == [
        "U 0/0", "U3 0/0", "E 0/0", "E2 0/0",
        "U 1/1", "U 1/2", "U 1/3", "U3 1/3", "U 1/4", "E 1/4",
        "U 2/5", "U 2/6", "U3 2/6", "U 2/7", "U 2/8", "E 2/8", "E2 2/8",
    ]  # fmt: skip


def test_hooks_run_by_role_and_then_as_they_were_added(net, batches):
    calls = []
    make_trainer(
        Spy(calls, "reader", role="reader"),
        Spy(calls, "editor", role="editor"),
        Spy(calls, "writer", role="writer"),
        Spy(calls, "writer2", role="writer"),
        epochs=0,
    ).train(net, batches)
    order = ["writer", "writer2", "editor", "reader"]
    assert calls == [
        *(f"{name} start" for name in order),
        *(f"{name} 0/0" for name in order),
        *(f"{name} end" for name in reversed(order)),
    ]


def test_stop_during_an_epoch(net, batches):
    calls = []
    trainer = make_trainer(
        Spy(calls, "A", timescale="update", fail_at="2/6", error=StopIteration("enough")),
        Spy(calls, "B", timescale="update"),
        Spy(calls, "C"),
        epochs=None,
    )
    trainer.train(net, batches)
    assert trainer.current_update_nr == 6
    assert trainer.logs["A"] == ["enough"]
    assert len(trainer.logs["rolling_training.total_loss"]) == 2
    assert calls[-6:] == ["A 2/6", "B 2/6", "C 2/6", "C end", "B end", "A end"]


@pytest.mark.parametrize("make", [float, lambda n: {"a": n}], ids=["numbers", "logs"])
def test_a_reason_is_logged_apart_from_values(net, batches, make, tmp_path):
    """They could not be saved together, nor read by a hook that wants numbers."""

    def measure(epoch, *_):
        if epoch == 2:
            raise StopIteration("enough")
        return make(epoch)

    path = "A" if make is float else "A.a"
    trainer = make_trainer(
        Call(measure, "A", "epoch"),
        SaveBestNetwork(path, criterion="max"),
        SaveLogs(tmp_path / "logs.hdf5"),
        epochs=None,
    )
    trainer.train(net, batches)
    assert trainer.logs[path] == [0, 1]
    assert trainer.logs["stopped"] == ["A: enough"]
    assert Logs.load_hdf5(tmp_path / "logs.hdf5") == trainer.logs
    assert trainer.hooks["SaveBestNetwork"].best_so_far == 1


def test_stop_before_the_first_update(net, batches):
    calls = []
    stopper = Spy(calls, "U", timescale="update", fail_at="0/0", error=StopIteration())
    trainer = make_trainer(stopper, Spy(calls, "E"), epochs=None)
    trainer.train(net, batches)
    assert calls == ["U start", "E start", "U 0/0", "E end", "U end"]
    assert trainer.logs == {"U": ["no reason given"]}


def test_entries_are_logged_by_kind_and_nothing_is_printed_for_nothing(net, batches, capsys):
    entries = {
        "Dict": lambda epoch, *_: {"a": {"b": epoch}, "c": None},
        "Number": lambda epoch, *_: epoch * 2,
        "Empty": lambda *_: {},
        "None": lambda *_: None,
    }
    hooks = [Call(entry, name, "epoch") for name, entry in entries.items()]
    hooks.append(MonitorLoss("training_data_iter", name="loss"))
    trainer = make_trainer(*hooks, verbose=True)
    trainer.train(net, batches)
    assert trainer.logs["Dict"] == {"a": {"b": [0, 1, 2]}}
    assert trainer.logs["Number"] == [0, 2, 4]
    assert len(trainer.logs["loss.total_loss"]) == 3  # one more than of the training
    assert len(trainer.logs["rolling_training.total_loss"]) == 2
    out = capsys.readouterr().out
    assert [name for name in entries if name in out] == ["Dict", "Number"]


# -- errors and endings --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("oh"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_all_hooks_learn_of_an_error_and_clean_up(net, batches, error):
    calls = []
    trainer = make_trainer(
        Spy(calls, "A"), Spy(calls, "B", fail_at="1/4", error=error), Spy(calls, "C"), epochs=None
    )
    with pytest.raises(type(error)) as caught:
        trainer.train(net, batches)
    kind = type(error).__name__
    assert calls[-8:] == [
        "A 1/4", "B 1/4",
        f"C error {kind}", "C end", f"B error {kind}", "B end", f"A error {kind}", "A end",
    ]  # fmt: skip
    notes = getattr(caught.value, "__notes__", [])
    assert notes == (["Raised by the hook 'B' (Spy)."] if kind == "ValueError" else [])


def test_errors_of_a_start_and_of_the_stepper_reach_the_started_hooks(net, batches):
    calls, broken = [], SgdStepper()
    spies = [Spy(calls, name, fail_at="start", error=OSError("no")) for name in "BC"]
    with pytest.raises(OSError, match="no") as caught:
        make_trainer(Spy(calls, "A"), *spies).train(net, batches)
    assert caught.value.__notes__ == ["Raised by the hook 'B' (Spy)."]
    assert calls == ["A start", "B start", "B error OSError", "B end", "A error OSError", "A end"]
    broken.update = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        make_trainer(Spy(calls, "A"), stepper=broken).train(net, batches)
    assert calls[-2:] == ["A error ZeroDivisionError", "A end"]


def test_a_failing_cleanup_does_not_keep_others_from_theirs(net, batches):
    calls = []
    trainer = make_trainer(
        Spy(calls, "A"),
        Spy(calls, "B", fail_at="end", error=OSError("disk full")),
        Spy(calls, "C", fail_at="error ValueError", error=OSError("pipe")),
        Spy(calls, "D", fail_at="0/0", error=ValueError("first")),
    )
    with pytest.raises(OSError, match="disk full") as caught:
        trainer.train(net, batches)
    assert [c for c in calls if c.endswith(" end")] == ["D end", "C end", "B end", "A end"]
    chain = [caught.value, caught.value.__context__, caught.value.__context__.__context__]
    assert [str(e) for e in chain] == ["disk full", "pipe", "first"]


class Empty(DataIterator):
    def __call__(self, handler=None):
        return iter(())


def incomplete(**attributes):
    """Return an iterator whose constructor does not call that of the base class."""
    vars(iterator := object.__new__(Empty)).update(attributes)
    return iterator


def training(data=DATA, **attributes):
    return lambda trainer, net: vars(trainer).update(attributes) or trainer.train(net, data)


def adding(hook):
    return lambda trainer, net: trainer.add_hook(hook)


DATA_OF_INPUT = (
    "Trainer.train, training_data_iter (Undivided): expected data for 'default', 'targets'"
)
X, Y = DATA.data.values()
NO_DATA = "expected a data iterator, such as Minibatches(100, default=x, targets=y)"
NO_STEPPER = "Trainer: expected a stepper such as SgdStepper(0.1), got {}. The "


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (training(Undivided(default=X)),
         f"{DATA_OF_INPUT}, got 'default'. Add 'targets' to the iterator."),
        (training(Undivided(default=X, targets=Y, mask=Y)),
         f"{DATA_OF_INPUT}, got 'default', 'mask', 'targets'. Leave out 'mask', or add it to the "
         "out_shapes of the Input layer."),
        (training([1]), "(list): expected a data iterator, such as Mini"),
        (training(incomplete()), "calls super().__init__(shapes, length)."),
        *((training(incomplete(data_shapes={"default": (3,), "targets": (1,)}, **more)),
           "(Empty): expected a data iterator, such as Mini") for more in ({}, {"_length": 1})),
        (lambda trainer, net: trainer.train(net, DATA, valid=(X, Y)),
         f"Trainer.train, valid: {NO_DATA}, got tuple."),
        (lambda trainer, net: trainer.train(net, DATA, epochs=3),
         f"Trainer.train, epochs: {NO_DATA}, got int. A hook sets the number of epochs: "
         "trainer.add_hook(StopAfterEpoch(3))."),
        (lambda trainer, net: trainer.evaluate(net, valid=None),
         f"Trainer.evaluate, valid: {NO_DATA}, got NoneType."),
        (lambda trainer, net: Trainer(SgdStepper()).evaluate(net, valid=DATA),
         "Trainer.evaluate: expected a hook that writes logs, such as MonitorLoss('valid'), got "
         "none. Without hooks: bs.tools.evaluate(net, data)."),
        (training(train_scorers=[3]), "scorers: expected a list such as [brainstorm.scorers."),
        (adding(object.__new__(Hook)), "from brainstorm.hooks.Hook and calls super().__init__()."),
        (adding(StopAfterEpoch(3)),
         "the name 'StopAfterEpoch' is taken. Give the hook another one: name='...'. Or change the "
         "present one, as by trainer.hooks['StopAfterEpoch'].max_epochs = 3, or delete it: del "
         "trainer.hooks['StopAfterEpoch']."),
        (adding(given(Hook(), __name__="Spy")), "by trainer.hooks['Spy'].timescale = 'epoch', or"),
        (adding(StopAfterEpoch(3, "rolling_training")), "the name 'rolling_training' is taken"),
        (adding(StopAfterEpoch(3, "interrupted")), "the name 'interrupted' is taken"),
        (adding(StopAfterEpoch(3, "stopped")), "the name 'stopped' is taken"),
        (adding(3), "expected a hook, got 3. A schedule is used by"),
        (adding(Spy([], "own", role="boss")),
         "role: expected one of 'writer', 'editor', 'reader', got 'boss'"),
        (lambda *_: Trainer("adam"), NO_STEPPER.format("'adam'")),
        (lambda *_: Trainer(SgdStepper),
         NO_STEPPER.format("the class SgdStepper instead of an object, SgdStepper(...)")),
        (lambda *_: Trainer(None), NO_STEPPER.format("None")),
        (training(stepper=None), NO_STEPPER.format("None")),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_anything_happens(net, act, text):
    calls = []
    trainer = make_trainer(Spy(calls))
    with refused(text, ValidationError) as caught:
        act(trainer, net)
    assert isinstance(caught.value, TrainingError) or text.startswith("scorers")
    assert calls == []
    assert list(trainer.hooks) == ["Spy", "StopAfterEpoch"]
    trainer.add_hook(StopAfterEpoch(3, name="again"))
    assert [hook.priority for hook in trainer.hooks.values()] == [1, 2, 3]


@pytest.mark.parametrize("owner", [None, make_trainer()])
def test_a_hook_that_was_put_there_without_add_hook_is_refused(net, batches, owner):
    trainer, hook = make_trainer(), StopAfterEpoch(3, name="again")
    if owner is None:
        trainer.hooks["again"] = hook
    else:
        trainer.add_hook(hook)
        owner.add_hook(hook)
    with refused("hooks['again']: expected a hook that trainer.add_hook has added, and no other"):
        trainer.train(net, batches)


@pytest.mark.parametrize("update", [1, 8])
def test_scorers_that_a_hook_sets(net, batches, update):
    def change(epoch_nr, update_nr, net):
        if update_nr == update:
            with refused("scorers: expected a list such as", ValidationError):
                trainer.train_scorers = Accuracy()
            trainer.train_scorers = [Accuracy()]

    trainer = make_trainer(Call(change), stepper=AdamStepper(0.05))
    trainer.train(net, batches)
    *_, last = trainer.logs["rolling_training.Accuracy"]
    assert 0 < last <= 1 if update == 1 else np.isnan(last)  # nothing was counted after it


def test_a_hook_that_is_deleted_in_a_training_runs_no_more(net, batches, tmp_path):
    def delete(epoch_nr, update_nr, net):
        if update_nr == 2:
            del trainer.hooks["Spy"], trainer.hooks["SaveCheckpoint"]

    calls, file = [], tmp_path / "run.hdf5"
    trainer = make_trainer(Call(delete), Spy(calls, timescale="update"), SaveCheckpoint(file))
    trainer.train(net, batches)
    assert calls == ["Spy start", "Spy 0/0", "Spy 1/1", "Spy end"]
    assert not file.exists()


def test_data_that_nothing_reads_are_warned_of_once(caplog):
    inp = Input(dict.fromkeys(("default", "targets", "w", "mask", "kept"), ("T", "B", 1)))
    net = bs.Network.from_layer(wire_loss(inp, inp >> FullyConnected(1, "linear"), SquaredError))
    net.initialize(0.0)
    score, out = MeanSquaredError, "Out.outputs.predictions"
    trainer = make_trainer(MonitorScores("valid", [score(out, "kept")]))
    trainer.train_scorers = [score(out, mask_name="mask")]
    data = Undivided(**dict.fromkeys(net.input_names, np.ones((1, 2, 1))))
    trainer.train(net, data, valid=data)
    trainer.hooks["StopAfterEpoch"].max_epochs += 1
    trainer.train(net, data, valid=data)
    (message,) = caplog.messages
    assert message.startswith("layer 'Input', output 'w': nothing reads these data. Connect them: ")


@pytest.mark.parametrize(
    ("act", "got"),
    [
        (lambda trainer, net: trainer.add_hook(Call(None, "late")), "the hook 'late' during one"),
        (lambda trainer, net: trainer.train(net, DATA), "another one. Use a second trainer"),
        (lambda trainer, net: trainer.evaluate(net), "an evaluation during one. Use tools."),
    ],
)
def test_what_cannot_be_done_during_a_training(net, act, got):
    trainer = make_trainer(Call(lambda epoch_nr, update_nr, net: act(trainer, net)))
    with refused(f"expected no training to be running, got {got}"):
        trainer.train(net, DATA)
    trainer.add_hook(Call(None, "late"))


def test_data_without_batches(net):
    empty = Empty({"default": (3,), "targets": (1,)}, 0)
    with refused("epoch 1: the training_data_iter (Empty) gave no"):
        make_trainer().train(net, empty)


# -- evaluation ----------------------------------------------------------------------------------


def test_evaluate_lets_only_writers_run_whatever_their_interval(net, batches):
    calls = []
    trainer = make_trainer(
        MonitorScores("test", [Accuracy()], interval=7),
        Spy(calls, "U", timescale="update"),
        Spy(calls, "E"),
        Spy(calls, "editor", role="editor"),
        Spy(calls, "reader", role="reader"),
    )
    results = trainer.evaluate(net, test=batches)
    whole = bs.tools.evaluate(net, DATA, [Accuracy()])
    assert results["MonitorScores.Accuracy"] == [whole["Accuracy"]]
    assert results is trainer.results
    assert trainer.logs == {}
    assert calls == ["U start", "E start", "E 0/0", "U 0/0", "E end", "U end"]


# -- printing ------------------------------------------------------------------------------------


class ForgetsSuper(Hook):
    def start(self, net, stepper, verbose, named_data_iters):
        pass

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        self.message("heard")


@pytest.mark.parametrize(("verbose", "count"), [(None, 2), (False, 0)])
def test_a_start_of_ones_own_may_do_without_that_of_the_base(net, batches, capsys, verbose, count):
    hook = ForgetsSuper(verbose=verbose)
    trainings.make_trainer(hook, verbose=True, epochs=1).train(net, batches)
    assert capsys.readouterr().out.count("heard") == count


def test_what_is_printed_and_logged(net, batches, capsys, caplog):
    with caplog.at_level("INFO", logger="brainstorm"):
        trainer = make_trainer(MonitorLoss("valid", name="validation"), verbose=True, epochs=1)
        trainer.train(net, batches, valid=batches)
    lines = capsys.readouterr().out.splitlines()
    first, last = trainer.logs["validation.total_loss"]
    assert lines[0] == "validation"
    assert len(str(first)) > 10
    assert lines[1] == f"  total_loss{' ' * 26}: {first:.6g}"
    assert lines[1].index(f"{first:.6g}") == 40
    assert lines[2:4] == ["", "- - - - - - - - - - - - Epoch 1 - - - - - - - - - - - -"]
    assert lines[4] == "rolling_training"
    assert lines[6] == "validation"
    assert lines[8] == f"StopAfterEpoch{' ' * 24}: reached max_epochs=1"

    lines = [record.getMessage() for record in caplog.records]
    count = trainer.current_update_nr
    assert lines[0] == f"epoch 0, update 0, validation.total_loss: {first:.6g}"
    assert f"epoch 1, update {count}, validation.total_loss: {last:.6g}" in lines
    assert lines[-1] == f"epoch 1, update {count}, StopAfterEpoch: reached max_epochs=1"
    assert {record.name for record in caplog.records} == {"brainstorm"}


@pytest.mark.parametrize("verbose", [None, True, False])
@pytest.mark.parametrize("loud", [True, False])
def test_a_hook_may_speak_in_a_silent_training_and_be_silent_in_a_loud_one(
    net, batches, capsys, caplog, loud, verbose
):
    with caplog.at_level("INFO", logger="brainstorm"):
        trainer = make_trainer(MonitorLoss("valid", verbose=verbose), verbose=loud, epochs=0)
        trainer.train(net, batches, valid=batches)
    out = capsys.readouterr().out
    assert ("MonitorLoss\n  total_loss" in out) == (loud if verbose is None else verbose)
    assert loud or verbose or out == ""
    assert "MonitorLoss.total_loss" in caplog.text


def test_description(net, batches):
    trainer = full_trainer(2)
    trainer.train_scorers = [Accuracy()]
    trainer.train(net, batches, valid=batches)
    text = json.dumps(get_description(trainer), allow_nan=False)
    assert set(json.loads(text)) == {"@type", "stepper", "hooks", "train_scorers", "verbose"}
    again = create_from_description(json.loads(text))
    assert get_description(again) == json.loads(text)
    assert again.logs == {}
    assert again.current_epoch_nr == 0
    again.stepper = AdamStepper(0.1)
    again.train(net, batches, valid=batches)
    assert len(again.logs["rolling_training.Accuracy"]) == 2
    assert "verbose" not in get_description(Trainer(SgdStepper()))
