"""Gradient accumulation: several batches are one, for every stepper; and what surrounds it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches
from brainstorm.errors import TrainingError
from brainstorm.hooks import ModifyStepperAttribute, SaveCheckpoint
from brainstorm.layers import FullyConnected, Lstm
from brainstorm.training import (
    GradientAccumulation,
    Linear,
    LossScaling,
    NesterovStepper,
    SgdStepper,
)
from brainstorm.value_modifiers import ClipValues, L2Decay
from tests.networks import batch_for, trainable
from tests.trainings import LEARNING, Call, given, make_trainer, refused, run_steps

T, SEQUENCES = 3, 12


def network(modified=True):
    net = trainable(Lstm(5), FullyConnected(4, "tanh"))
    if modified:
        net.set_gradient_modifiers({"Lstm": [L2Decay(0.1), ClipValues(-0.05, 0.05)]})
    return net


def data(number):
    return batch_for(T, SEQUENCES, number)


def accumulating(stepper, batches, **parts):
    return given(stepper, accumulation=GradientAccumulation(batches), **parts)


def train(stepper, cuts, count=5, modified=True):
    """Train on the same sequences, cut into parts; return the parameters."""
    net = network(modified)
    stepper.start(net)
    for number in range(count):
        for start, stop in itertools.pairwise(cuts):
            part = {name: values[:, start:stop] for name, values in data(number).items()}
            run_steps(net, stepper, [part])
    return net.get("parameters")


@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
@pytest.mark.parametrize("cuts", [(0, 4, 8, 12), (0, 5, 6, 12)], ids=["equal", "unequal"])
def test_parts_of_a_batch_are_the_batch(make, cuts, replay):
    whole, limited = make(), accumulating(make(), 3)
    whole.max_gradient_norm = limited.max_gradient_norm = 0.2
    np.testing.assert_allclose(
        train(limited, cuts), train(whole, (0, SEQUENCES)), rtol=1e-9, atol=1e-12
    )


def test_nothing_changes_before_the_last_batch():
    net, stepper = network(), accumulating(NesterovStepper(0.1, 0.5), 3)
    stepper.start(net)
    before = net.get("parameters")
    for number in range(9):
        run_steps(net, stepper, [data(number)])
        is_last = number % 3 == 2
        assert (stepper.steps, stepper.accumulation.given) == (1 + number // 3, (number + 1) % 3)
        assert np.array_equal(net.get("parameters"), before) != is_last
        before = net.get("parameters")


def test_one_batch_that_overflows_spoils_its_update_only():
    net, stepper = network(), accumulating(SgdStepper(0.1), 2, loss_scaling=LossScaling(16))
    stepper.start(net)
    before = net.get("parameters")
    for number in range(4):
        batch = data(number)
        if number == 1:
            batch["default"][0, 0, 0] = np.inf
        with np.errstate(all="ignore"):
            run_steps(net, stepper, [batch])
        if number == 1:
            assert np.array_equal(net.get("parameters"), before)
    assert np.isfinite(net.get("parameters")).all()
    assert not np.array_equal(net.get("parameters"), before)


def test_hooks_schedules_and_weight_modifiers_follow_updates():
    seen = []
    for batches in (None, 3):
        net = network(modified=False)
        net.set_weight_modifiers({"Lstm": [ClipValues(-0.2, 0.2)]})
        accumulation = batches and GradientAccumulation(batches)
        stepper = given(SgdStepper(0.1), accumulation=accumulation)
        updates = []

        def note(epoch_nr, update_nr, net, stepper=stepper, updates=updates):
            updates.append((update_nr, stepper.learning_rate, net.get("parameters")))

        schedule = ModifyStepperAttribute(Linear(0.1, 0, 4), timescale="update")
        trainer = make_trainer(schedule, Call(note, role="reader"), stepper=stepper, epochs=4)
        trainer.train(net, Minibatches(SEQUENCES // (batches or 1), shuffle=False, **data(0)))
        seen.append(updates)
    for (update, rate, values), (*counts, parts) in zip(*seen, strict=True):
        assert counts == [update, rate]
        np.testing.assert_allclose(parts, values, rtol=1e-9, atol=1e-12)
    assert [rate for _, rate, _ in seen[1]] == pytest.approx([0.1, 0.075, 0.05, 0.025, 0])


def test_checkpoints_by_update_are_written_once_an_update_is_done(tmp_path):
    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=2, keep=9)
    trainer = make_trainer(save, stepper=accumulating(SgdStepper(0.05), 2), epochs=3)
    trainer.train(network(), Minibatches(4, shuffle=False, **data(0)))  # 9 batches
    assert (trainer.current_update_nr, save.get_state()["kept"]) == (4, [2, 4])


def test_the_state_of_another_network_is_refused():
    stepper = accumulating(SgdStepper(), 2)
    stepper.accumulation.set_state({"given": 1, "sequences": 4, "total": np.zeros(3)})
    with pytest.raises(
        TrainingError,
        match=r"GradientAccumulation\.start: expected a sum of \d+ gradients, got 3\. Is it",
    ):
        stepper.start(network())


@pytest.mark.parametrize("bad", [0, 1.5, "x", None, True])
def test_batches_are_checked(bad):
    with refused(f"GradientAccumulation.batches: expected an integer >= 1, got {bad!r}."):
        GradientAccumulation(bad)


@pytest.mark.parametrize("batches", [None, 2])
def test_a_reducer_sees_the_gradients_of_every_update(batches):
    """Those of two processes that find the same are twice those of one."""
    seen, started = [], []

    def reduce(gradients, sequences):
        seen.append(sequences)
        gradients *= 2.0

    reducer = SimpleNamespace(is_in_step=False, start=started.append, reduce=reduce)
    plain, reduced = SgdStepper(0.2), given(SgdStepper(0.1), reducer=reducer)
    for stepper in (plain, reduced):
        if batches:
            accumulating(stepper, batches)
    cuts = (0, SEQUENCES) if batches is None else (0, 4, SEQUENCES)
    np.testing.assert_allclose(
        train(reduced, cuts, modified=False), train(plain, cuts, modified=False), rtol=1e-12
    )
    assert (seen, started) == ([SEQUENCES] * 5, [reduced])


def test_parts_of_a_step_may_be_set_after_the_start():
    found = []
    for is_early in (True, False):
        net, stepper = trainable(FullyConnected(6, "tanh")), SgdStepper(0.5)
        parts = {"loss_scaling": LossScaling(), "accumulation": GradientAccumulation(2)}
        if is_early:
            vars(stepper).update(parts)
        stepper.start(net)
        if not is_early:
            given(stepper, **parts)
        run_steps(net, stepper, [batch_for(3, 4, number) for number in range(4)])
        stepper.accumulation = stepper.loss_scaling = None
        found.append(run_steps(net, stepper, [batch_for(3, 4, number) for number in (4, 5)]))
    np.testing.assert_array_equal(*found)
