"""Signals: they end a training in good order, and nobody else notices."""

from __future__ import annotations

import os
import signal

import pytest

from brainstorm.hooks import SaveCheckpoint, StopAfterEpoch
from tests.runs import ITERATORS, make_network, make_trainer, outcome, resumed_run, train, whole_run
from tests.trainings import Call, Spy, given, run_threads

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def _signals_as_before():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def send(update, *numbers, timescale="update"):
    """Return a hook that sends signals to this process after an update."""

    def kill(epoch_nr, update_nr, net):
        if update_nr == update:
            for number in numbers:
                os.kill(os.getpid(), number)

    return Call(kill, "send", timescale)


NAMES = "dense", "minibatches", "float32"  # four updates an epoch
MOMENTS = [
    (signal.SIGINT, 4, "epoch"),
    *((number, update, "update") for number in SIGNALS for update in (1, 8)),
    (signal.SIGINT, 0, "update"),
    (signal.SIGTERM, 6, "update"),
]


@pytest.mark.parametrize(("number", "update", "timescale"), MOMENTS)
def test_a_signal_ends_the_run_with_a_checkpoint(tmp_path, number, update, timescale):
    """After the first update at the earliest; at the last of an epoch, this is finished first."""
    expected = outcome(*whole_run(*NAMES))
    calls, save = [], SaveCheckpoint(tmp_path / "run.hdf5", interval=100)
    hooks = [send(update, number, timescale=timescale), save, Spy(calls)]
    trainer, _ = whole_run(*NAMES, hooks=hooks)
    assert trainer.current_update_nr == max(update, 1)
    assert trainer.logs["interrupted"] == [f"received {signal.Signals(number).name}"]
    epochs = [f"Spy {epoch}/{4 * epoch}" for epoch in range(1 + update // 4)]
    assert calls == ["Spy start", *epochs, "Spy end"]
    assert len(trainer.logs.get("rolling_training.total_loss", [])) == update // 4
    assert "end" not in trainer.logs
    again, net = resumed_run(tmp_path / "run.hdf5", NAMES[1])
    assert "interrupted" not in again.logs
    assert outcome(again, net) == expected


def test_without_a_checkpoint_it_ends_too(tmp_path):
    trainer, _ = whole_run(*NAMES, hooks=[send(4, signal.SIGTERM, signal.SIGTERM)])
    assert trainer.current_update_nr == 4
    assert trainer.logs["interrupted"] == ["received SIGTERM"]


def test_a_signal_after_the_last_update_is_logged_too():
    end = given(Call(None), finalize=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    trainer, _ = whole_run(*NAMES, hooks=[end])
    assert trainer.logs["end"] == ["reached max_epochs=3"]
    assert trainer.logs["interrupted"] == ["received SIGTERM"]


def test_a_signal_before_a_hook_stops_the_training_at_once_is_logged_too():
    trainer, _ = whole_run(*NAMES, hooks=[send(0, signal.SIGINT), StopAfterEpoch(0)])
    assert trainer.current_update_nr == 0
    assert trainer.logs["interrupted"] == ["received SIGINT"]


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_interrupt_ends_it_at_once(first):
    calls = []
    with pytest.raises(KeyboardInterrupt):
        whole_run(*NAMES, hooks=[Spy(calls), send(2, first, signal.SIGINT)])
    assert calls == ["Spy start", "Spy 0/0", "Spy error KeyboardInterrupt", "Spy end"]


def test_an_old_signal_does_not_end_the_next_training():
    trainer, net = whole_run(*NAMES, hooks=[send(2, signal.SIGINT)])
    train(trainer, net, ITERATORS[NAMES[1]]())
    assert trainer.current_update_nr > 2
    assert trainer.logs["end"] == ["reached max_epochs=3"]


@pytest.mark.parametrize("is_ignored", [False, True])
def test_who_listened_before_listens_again_and_ignored_signals_stay_ignored(is_ignored):
    seen = []
    handler = signal.SIG_IGN if is_ignored else lambda number, frame: seen.append(number)
    before = signal.signal(signal.SIGTERM, handler)
    try:
        trainer, _ = whole_run(*NAMES, hooks=[send(2, signal.SIGTERM)])
        assert seen == []
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ([] if is_ignored else [signal.SIGTERM])
    assert ("interrupted" in trainer.logs) != is_ignored


def test_in_another_thread_nothing_changes():
    trainer, net = make_trainer(epochs=1), make_network()
    run_threads(lambda _: train(trainer, net, ITERATORS["minibatches"]()), 1)
    assert trainer.logs["end"] == ["reached max_epochs=1"]
