"""A batch whose passes fail: training goes on as if it had never been given."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.layers import FullyConnected
from brainstorm.layers.noop_layer import NoOpLayerImpl
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import GradientAccumulation, LossScaling, NesterovStepper, SgdStepper
from tests.networks import batch_for, trainable
from tests.trainings import LEARNING, Call, given, make_trainer, run_steps


class FailingLayerImpl(NoOpLayerImpl):
    """Passes on what it gets, and fails in the pass that was asked for."""

    _fails = ""

    def fail_in(self, which):
        if self._fails == which:
            raise RuntimeError("on purpose")

    def forward_pass(self, buffers, training_pass=True):
        self.fail_in("forward")
        super().forward_pass(buffers, training_pass)

    def backward_pass(self, buffers):
        self.fail_in("backward")
        super().backward_pass(buffers)


def network(handler=NumpyHandler):
    fails = ConstructionWrapper.create(FailingLayerImpl, name="Fails")
    return trainable(FullyConnected(5, "tanh"), fails, handler=handler())


def data(number):
    return batch_for(2, 3 + number % 2, number)


def train(stepper, fails="", handler=NumpyHandler):
    """Train on six batches, before some of which another one fails; return what is there then."""
    net = network(handler)
    stepper.start(net)
    for number in range(6):
        if fails and number in FAILING:
            net.provide_external_data(data(number + 10))
            net.layers["Fails"]._fails = fails
            with pytest.raises(RuntimeError, match="on purpose"):
                stepper.run()
            net.layers["Fails"]._fails = ""
        run_steps(net, stepper, [data(number)])
    return net, stepper


#: The first batch of all, which is traced; one that is replayed; the second of an accumulated pair.
FAILING = (0, 4, 5)


@pytest.mark.parametrize(
    ("handler", "scales", "batches"),
    [
        *itertools.product([NumpyHandler], [False, True], [None, 2]),
        (NativeHandler, False, None),
        (NativeHandler, True, 2),
    ],
)
@pytest.mark.parametrize("fails", ["forward", "backward"])
@pytest.mark.parametrize("kind", LEARNING)
def test_a_batch_that_fails_does_not_count(kind, scales, batches, fails, handler):
    def make():
        return given(
            LEARNING[kind](),
            loss_scaling=LossScaling(16, growth_interval=2) if scales else None,
            accumulation=GradientAccumulation(batches) if batches else None,
        )

    net, stepper = train(make(), fails, handler)
    expected, undisturbed = train(make(), "", handler)
    np.testing.assert_array_equal(net.get("parameters"), expected.get("parameters"))
    np.testing.assert_equal(stepper.get_state(), undisturbed.get_state())


def test_a_second_start_forgets_a_failure():
    stepper = NesterovStepper(0.1, 0.9)
    net = network()
    net.layers["Fails"]._fails = "forward"
    net.provide_external_data(data(0))
    stepper.start(net)
    with pytest.raises(RuntimeError, match="on purpose"):
        stepper.run()
    again, expected = train(stepper), train(NesterovStepper(0.1, 0.9))
    np.testing.assert_array_equal(again[0].get("parameters"), expected[0].get("parameters"))
    assert stepper.steps == 6


def test_the_trainer_counts_what_was_done():
    def fail_next(epoch_nr, update_nr, net):
        if update_nr == 2:
            net.layers["Fails"]._fails = "backward"

    batch = {name: np.repeat(values, 2, axis=1) for name, values in data(0).items()}
    trainer = make_trainer(Call(fail_next))
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.train(network(), Minibatches(1, **batch))
    assert trainer.current_update_nr == 2


def test_a_run_that_goes_on_within_an_update_survives_an_overflow():
    def make():
        scaling, accumulation = LossScaling(16), GradientAccumulation(2)
        return given(SgdStepper(0.1), loss_scaling=scaling, accumulation=accumulation)

    net, stepper, again = network(), make(), make()
    stepper.start(net)
    run_steps(net, stepper, [data(0)])
    again.set_state(stepper.get_state())
    again.start(net)
    before = net.get("parameters")
    with np.errstate(all="ignore"):
        run_steps(net, again, [{**data(1), "default": np.full((2, 4, 4), np.inf)}])
    np.testing.assert_array_equal(net.get("parameters"), before)
    assert again.loss_scaling.scale == 8
