"""A batch whose step fails: training goes on as if it had never been given."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator

import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.layers import FullyConnected
from brainstorm.layers.noop_layer import NoOpLayerImpl
from brainstorm.network.parameters import each_modifier
from brainstorm.scorers import Scorer
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import GradientAccumulation, LossScaling, NesterovStepper, SgdStepper
from brainstorm.value_modifiers import ClipValues, ValueModifier
from tests.networks import batch_for, trainable
from tests.trainings import LEARNING, Call, given, make_trainer, run_steps


class Failing:
    """Fails where it is asked to."""

    _fails = ""

    def fail_in(self, which):
        if self._fails == which:
            raise RuntimeError("on purpose")


class FailingLayerImpl(Failing, NoOpLayerImpl):
    """Passes on what it gets."""

    def forward_pass(self, buffers, training_pass=True):
        self.fail_in("forward")
        super().forward_pass(buffers, training_pass)

    def backward_pass(self, buffers):
        self.fail_in("backward")
        super().backward_pass(buffers)


class FailingScorer(Failing, Scorer):
    """Finds everything equally good."""

    def __call__(self, true_labels, predicted, mask=None):
        self.fail_in("score")
        return 0.0


class FailingModifier(Failing, ValueModifier):
    """Changes nothing."""

    def __call__(self, handler, view):
        self.fail_in("modifier")


def network(handler=NumpyHandler):
    fails = ConstructionWrapper.create(FailingLayerImpl, name="Fails")
    net = trainable(FullyConnected(5, "tanh", name="Hidden"), fails, handler=handler())
    net.set_gradient_modifiers({"Hidden": {"W": [ClipValues(-0.05, 0.05), FailingModifier()]}})
    return net


@contextlib.contextmanager
def failing(net, stepper, where):
    """Let a step fail in a ``with`` block: a pass, a gradient modifier, or the update."""
    *_, (_, _, modifier) = each_modifier(net.gradient_modifiers)
    net.layers["Fails"]._fails = modifier._fails = where
    if where == "update":
        stepper.update = lambda: operator.truediv(1, 0)
    try:
        with pytest.raises((RuntimeError, ZeroDivisionError), match="on purpose|division by zero"):
            yield
    finally:
        net.layers["Fails"]._fails = modifier._fails = ""
        vars(stepper).pop("update", None)


def data(number):
    return batch_for(2, 3 + number % 2, number)


def train(stepper, fails="", handler=NumpyHandler):
    """Train on six batches, before some of which another one fails; return what is there then."""
    net = network(handler)
    stepper.start(net)
    for number in range(6):
        is_asked = fails in ("forward", "backward") or number % 2 or stepper.accumulation is None
        if fails and is_asked and number in FAILING:
            net.provide_external_data(data(number + 10))
            with failing(net, stepper, fails):
                stepper.run()
        run_steps(net, stepper, [data(number)])
    return net, stepper


@functools.cache
def learned(kind, scales, batches, handler, fails=""):
    """Return the parameters after a training, and the state of its stepper."""
    stepper = given(
        LEARNING[kind](),
        loss_scaling=LossScaling(16, growth_interval=2) if scales else None,
        accumulation=GradientAccumulation(batches) if batches else None,
    )
    net, stepper = train(stepper, fails, handler)
    return net.get("parameters"), stepper.get_state()


#: The first batches of all, which are traced; and replayed ones. Pairs of them are accumulated.
FAILING = (0, 1, 4, 5)


@pytest.mark.parametrize(
    ("handler", "scales", "batches"),
    [
        *itertools.product([NumpyHandler], [False, True], [None, 2]),
        (NativeHandler, False, None),
        (NativeHandler, True, 2),
    ],
)
@pytest.mark.parametrize("fails", ["forward", "backward", "modifier", "update"])
@pytest.mark.parametrize("kind", LEARNING)
def test_a_batch_that_fails_does_not_count(kind, scales, batches, fails, handler):
    parameters, state = learned(kind, scales, batches, handler, fails)
    expected, undisturbed = learned(kind, scales, batches, handler)
    np.testing.assert_array_equal(parameters, expected)
    np.testing.assert_equal(state, undisturbed)


def test_a_second_start_forgets_a_failure():
    stepper = NesterovStepper(0.1, 0.9)
    net = network()
    net.provide_external_data(data(0))
    stepper.start(net)
    with failing(net, stepper, "forward"):
        stepper.run()
    again, expected = train(stepper), train(NesterovStepper(0.1, 0.9))
    np.testing.assert_array_equal(again[0].get("parameters"), expected[0].get("parameters"))
    assert stepper.steps == 6


@pytest.mark.parametrize(("fails", "counted"), [("backward", 2), ("score", 3)])
def test_the_trainer_counts_what_was_done(fails, counted):
    def fail_next(epoch_nr, update_nr, net):
        if update_nr == 2:
            net.layers["Fails"]._fails = scorer._fails = fails

    batch = {name: np.repeat(values, 2, axis=1) for name, values in data(0).items()}
    trainer, scorer = make_trainer(Call(fail_next)), FailingScorer("Hidden.outputs.default")
    trainer.train_scorers = [scorer]
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.train(network(), Minibatches(1, **batch))
    assert trainer.current_update_nr == trainer.stepper.steps == counted


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
