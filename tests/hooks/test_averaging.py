"""Averages of the weights: the formula, what sees them, and exact resume."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, UnknownPathError
from brainstorm.hooks import (
    AverageWeights,
    EarlyStopper,
    MonitorLoss,
    ReturnToCheckpoint,
    SaveBestNetwork,
    SaveCheckpoint,
    StopAfterThresholdReached,
    WithAverages,
)
from brainstorm.layers import FullyConnected
from brainstorm.tools import evaluate
from brainstorm.training import GradientAccumulation, MomentumStepper, SgdStepper
from tests.networks import trainable
from tests.trainings import Call, Spy, fail_after, make_trainer, refused

RND = np.random.default_rng(0)
DATA = {"default": RND.standard_normal((1, 24, 4)), "targets": RND.integers(0, 3, (1, 24, 1))}


def remember():
    """Return a hook that logs the parameters after every update, those before the first too."""
    return Call(lambda epoch_nr, update_nr, net: net.get("parameters"), "seen", role="reader")


def network():
    return trainable(FullyConnected(5, "tanh"))


def train(*hooks):
    net = network()
    trainer = make_trainer(*hooks, stepper=MomentumStepper(0.5, 0.9), epochs=2)
    trainer.train(net, Minibatches(4, shuffle=False, **DATA), valid=Minibatches(8, **DATA))
    return trainer, net


@pytest.mark.parametrize("decay", [0.0, 0.6, 0.999])
def test_formula(decay):
    """Also in a second training, which goes on."""
    averages = AverageWeights(decay)
    trainer, net = train(remember(), averages)
    trainer.hooks["StopAfterEpoch"].max_epochs = 3
    trainer.train(net, Minibatches(4, shuffle=False, **DATA))
    expected, *seen = trainer.logs["seen"]  # the first are those before the training
    for n, parameters in enumerate(seen):
        d = min(decay, (1 + n) / (10 + n))
        expected = d * expected + (1 - d) * parameters
    assert len(seen) == 18
    np.testing.assert_allclose(averages.average, expected, rtol=1e-9, atol=1e-12)
    assert not np.allclose(averages.average, net.get("parameters")) or decay == 0.0


def test_the_network_with_the_averages():
    averages = AverageWeights(0.9)
    _, net = train(averages)
    before = net.get("parameters")
    copied = averages.network(net)
    assert np.array_equal(copied.get("parameters"), averages.average)
    with averages.applied(net):
        assert np.array_equal(net.get("parameters"), averages.average)
    assert np.array_equal(net.get("parameters"), before)
    with pytest.raises(ZeroDivisionError), averages.applied(net):
        raise ZeroDivisionError
    assert np.array_equal(net.get("parameters"), before)


def test_hooks_that_see_the_averages():
    averages = AverageWeights(0.9)
    best = SaveBestNetwork("averaged.total_loss", criterion="min")
    trainer, net = train(
        averages,
        WithAverages(MonitorLoss("valid", name="averaged")),
        WithAverages(best),
        MonitorLoss("valid", name="plain"),
    )
    losses = trainer.logs["averaged.total_loss"]
    assert len(losses) == len(trainer.logs["plain.total_loss"]) == 3
    valid = Minibatches(8, **DATA)
    found = evaluate(averages.network(net), valid)["total_loss"]
    assert losses[-1] == pytest.approx(found, rel=1e-9)
    assert trainer.logs["plain.total_loss"][-1] == pytest.approx(evaluate(net, valid)["total_loss"])
    assert losses[-1] == min(losses)
    assert np.array_equal(best.load_best_network().get("parameters"), averages.average)
    assert trainer.evaluate(net, valid=valid)["averaged.total_loss"] == [pytest.approx(found)]


def test_a_stopper_restores_the_averages_that_were_best():
    stopper = EarlyStopper("averaged.total_loss", 1, "max", restore_best=True)
    trainer, net = train(
        AverageWeights(0.9),
        WithAverages(MonitorLoss("valid", name="averaged")),
        WithAverages(stopper),
    )
    found = evaluate(net, Minibatches(8, **DATA))["total_loss"]
    assert found == pytest.approx(max(trainer.logs["averaged.total_loss"][1:]), rel=1e-9)
    assert len(trainer.logs["EarlyStopper"]) == 1


def test_a_stopper_by_updates_sees_the_averages_of_an_epoch_at_its_end():
    stopper = WithAverages(StopAfterThresholdReached("loss", 1, timescale="update"))
    loss = Call(lambda epoch_nr, *_: 2 - epoch_nr, "loss", "epoch")
    trainer, _ = train(AverageWeights(), loss, stopper)
    assert trainer.current_update_nr == 6


def test_the_other_hook_learns_of_an_error():
    calls = []
    with pytest.raises(RuntimeError, match="lost"):
        train(AverageWeights(), WithAverages(Spy(calls)), fail_after(3))
    assert calls[-2:] == ["Spy error RuntimeError", "Spy end"]


def test_options_of_the_other_hook_are_those_of_both():
    stopper = EarlyStopper("averaged.total_loss", 9)
    averaged = WithAverages(MonitorLoss("valid", name="averaged"))
    hooks = averaged, WithAverages(stopper)
    averaged.interval, stopper.restore_best = 2, True
    assert averaged.hook.interval == 2
    assert [hook.role for hook in hooks] == ["writer", "editor"]
    trainer, _ = train(AverageWeights(), *hooks)
    assert len(trainer.logs["averaged.total_loss"]) == 2
    assert trainer.logs.moments["averaged"].interval == 2
    assert stopper.trainer is trainer
    copied = create_from_description(get_description(averaged))
    assert (copied.interval, copied.hook.interval, copied.role) == (2, 2, "writer")


def of_another_network():
    averages = AverageWeights()
    averages.set_state({"count": 2, "average": np.zeros(3)})
    return averages


@pytest.mark.parametrize(
    ("act", "text"),
    [
        *(
            (lambda hook=hook: WithAverages(hook), "WithAverages, hook: expected a monitor, a save")
            for hook in (SaveCheckpoint("run"), MonitorLoss, ReturnToCheckpoint(), AverageWeights())
        ),
        (lambda: AverageWeights().network(network()), "(AverageWeights): nothing was averaged yet"),
        (lambda: train(WithAverages(MonitorLoss("valid"))), "unknown hook 'AverageWeights'"),
        (
            lambda: train(
                MonitorLoss("valid"), WithAverages(MonitorLoss("valid", "m"), "MonitorLoss")
            ),
            "averages: expected the name of an AverageWeights, got",
        ),
        (lambda: train(of_another_network()), "parameters, got '3 of another network'"),
        (lambda: of_another_network().network(network()), "got '3 of another network'"),
    ],
)
def test_errors(act, text):
    error = UnknownPathError if text.startswith("unknown") else TrainingError
    with refused(text, error):
        act()


def test_averages_are_not_lost_in_a_start_that_fails():
    hook = AverageWeights()
    train(hook)
    expected = hook.get_state()
    with refused("of another network"):
        hook.start(trainable(FullyConnected(9)), None, False, {})
    np.testing.assert_equal(hook.get_state(), expected)


def test_updates_are_counted_and_neither_batches_nor_the_call_before_them():
    hook, stepper = AverageWeights(0.5), SgdStepper(0.1)
    stepper.accumulation = GradientAccumulation(2)
    trainer = make_trainer(hook, stepper=stepper, epochs=2)
    trainer.train(network(), Minibatches(4, **DATA))
    assert trainer.current_update_nr == hook.get_state()["count"] == 6
