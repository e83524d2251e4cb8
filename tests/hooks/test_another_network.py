"""What a hook knows belongs to the network and the trainer that it was taken from."""

from __future__ import annotations

import numpy as np
import pytest

import brainstorm as bs
from brainstorm import hooks
from brainstorm.errors import see
from brainstorm.training import Linear, SgdStepper
from tests.trainings import Call, fail_after, make_trainer, refused, spoil


def logged(*values):
    """Return a hook that logs values after epochs 0, 1, and so on."""
    return Call(lambda epoch_nr, *_: {"loss": values[epoch_nr]}, "given", "epoch")


def stateful(folder):
    return {
        "AverageWeights": hooks.AverageWeights(0.5),
        "EarlyStopper": hooks.EarlyStopper("given.loss", 9, restore_best=True),
        "ReturnToCheckpoint": hooks.ReturnToCheckpoint(),
        "SaveBestNetwork": hooks.SaveBestNetwork("given.loss"),
        "SaveCheckpoint": hooks.SaveCheckpoint(folder / "run.hdf5", keep=2, best="given.loss"),
        "StopAfterThresholdReached": hooks.StopAfterThresholdReached("given.loss", 0.0),
        "WithAverages": hooks.WithAverages(hooks.SaveBestNetwork("given.loss", name="inner")),
    }


def other_network(net):
    other = net.copy()
    other.initialize(bs.initializers.Gaussian(0.5), seed=17)
    return other


def state_of(trainer):
    """Return the states of hooks, but for what says how much of the log does not count."""
    states = {name: hook.get_state() for name, hook in trainer.hooks.items()}
    places = {"ignored", "seen", "best", "best_t"}
    return {n: {k: v for k, v in s.items() if k not in places} for n, s in states.items()}


def test_all_hooks_with_a_state_are_here(tmp_path):
    classes = [getattr(hooks, name) for name in hooks.__all__]
    own = [c for c in classes if c.get_state is not hooks.Hook.get_state]
    named = {c.__name__ for c in classes if c.state_names}
    assert {c.__name__ for c in own} | named == set(stateful(tmp_path))
    assert all(c.begin_anew is not hooks.Hook.begin_anew for c in own)


def test_hooks_know_nothing_of_the_network_before(net, batches, tmp_path):
    def train(*nets):
        values = [5.0, 1, 2, 3, 4] if len(nets) > 1 else [5.0, 3, 4]
        end = hooks.StopAfterEpoch(0, name="end")
        trainer = make_trainer(logged(*values), *stateful(tmp_path).values(), end)
        trainer.hooks["ReturnToCheckpoint"].returns = 2 * (len(nets) - 1)
        for number, net in enumerate(nets, 1):
            trainer.hooks["end"].max_epochs = 2 * number
            trainer.train(net, batches)
        return trainer

    first, second, again = net, other_network(net), other_network(net)
    found = state_of(train(first, second))
    expected = state_of(train(again))
    np.testing.assert_equal(second.get("parameters"), again.get("parameters"))
    for state in (found, expected):
        state["SaveCheckpoint"].pop("kept")
    np.testing.assert_equal(found, expected)


def test_the_best_network_is_never_that_of_another_one(net, batches):
    stopper = hooks.EarlyStopper("given.loss", 2, restore_best=True)
    values, end = logged(5.0, 1, 1, 4, 6, 7, 0), hooks.StopAfterEpoch(2, name="end")
    trainer = make_trainer(values, stopper, end, stepper=SgdStepper(0.0))
    trainer.train(net, batches)
    other, end.max_epochs = other_network(net), 9
    expected = other.get("parameters")
    trainer.train(other, batches)
    assert trainer.current_epoch_nr == 5  # 2 after the best of its own, which was logged by then
    np.testing.assert_array_equal(other.get("parameters"), expected)


def test_a_threshold_that_another_network_has_reached_does_not_stop_this_one(net, batches):
    stopper = hooks.StopAfterThresholdReached("given.loss", 1.0)
    trainer = make_trainer(logged(5.0, 0, 4, 3), stopper, epochs=3)
    for each, epochs in ((net, 1), (other_network(net), 3)):
        trainer.train(each, batches)
        assert trainer.current_epoch_nr == epochs


def test_a_hook_begins_anew_with_another_trainer_and_goes_on_with_its_own(net, batches):
    averages = hooks.AverageWeights(0.5)

    def train(*, epochs):
        trainer.hooks["end"].max_epochs = epochs
        trainer.train(net, batches)
        return averages.get_state()["count"]

    for _ in range(2):
        trainer = make_trainer(averages, hooks.StopAfterEpoch(0, name="end"))
        assert [train(epochs=1), train(epochs=2)] == [4, 8]


def test_a_state_that_was_set_goes_with_the_next_network(net, batches):
    trainer = make_trainer(hooks.AverageWeights(0.5), epochs=1)
    trainer.train(net, batches)
    trainer.set_state(trainer.get_state())
    trainer.train(other_network(net), batches)
    assert trainer.hooks["AverageWeights"].get_state()["count"] == 4


def test_a_checkpoint_of_another_network_is_none_to_return_to(net, batches, tmp_path):
    schedule, end = hooks.ModifyStepperAttribute(Linear(0.1, 0.1, 1)), hooks.StopAfterEpoch(1)
    save = hooks.SaveCheckpoint(tmp_path / "run.hdf5")
    trainer = make_trainer(spoil(5), schedule, save, hooks.ReturnToCheckpoint(), end)
    trainer.train(net, batches)
    schedule.factor, end.max_epochs = 0.25, 2
    trainer.train(other_network(net), batches)
    said = trainer.logs["ReturnToCheckpoint"]
    text = "parameters are not finite, and there is no good checkpoint. "
    assert said == [text + see("the-loss-is-nan-or-infinite")]
    assert schedule.factor == 1.0


def test_averages_are_not_scored_with_another_network(net, train, batches):
    trainer = train(hooks.AverageWeights(), hooks.WithAverages(hooks.MonitorLoss("valid")))
    assert trainer.evaluate(net, valid=batches)
    text = "(WithAverages), net: expected the network whose parameters were averaged, got"
    with refused(text):
        trainer.evaluate(other_network(net), valid=batches)


def test_an_epoch_that_is_begun_again_is_looked_at_from_its_first_loss(net, batches):
    stopper = hooks.StopOnNan(check_parameters=False, timescale="update")
    trainer = make_trainer(fail_after(3), stopper, stepper=SgdStepper(0.0), epochs=1)
    with pytest.raises(RuntimeError, match="lost"):
        trainer.train(net, batches)
    net.handler.fill(net.buffer.Projection.parameters.bias, np.inf)
    data = {name: array[:, 3:] for name, array in batches.data.items()}
    trainer.train(net, bs.data_iterators.Minibatches(3, shuffle=False, **data))
    text = f"the training loss is nan. {see('the-loss-is-nan-or-infinite')}"
    assert trainer.logs["StopOnNan"] == [text]
    assert trainer.current_update_nr == 4
