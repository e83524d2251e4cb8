"""Loss scaling: the same gradients, bad steps undone, the scale, and exact resume."""

from __future__ import annotations

import math

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import BatchNorm, FullyConnected, Lstm
from brainstorm.training import AdamStepper, LossScaling, SgdStepper
from brainstorm.value_modifiers import L2Decay
from tests.networks import batch_for, run_passes, trainable
from tests.trainings import LEARNING, given, refused, run_steps


def network():
    layers = Lstm(5), BatchNorm(), FullyConnected(4, "tanh", name="Dense")
    net = trainable(*layers, handler=NumpyHandler(seed=1))
    net.set_gradient_modifiers({"Dense": L2Decay(0.1)})
    return net


def batch(number=0, bad=False):
    data = batch_for(3, 4, number)
    if bad:
        data["default"][0, 0, 0] = np.inf
    return data


def step(net, stepper, number, bad=False):
    with np.errstate(all="ignore"):
        run_steps(net, stepper, [batch(number, bad)])


def train(stepper, bad=(), count=8):
    """Train; return the network and the scale after each step."""
    net, scales = network(), []
    stepper.start(net)
    for number in range(count):
        step(net, stepper, number, number in bad)
        scales.append(stepper.loss_scaling.scale)
    return net, scales


def scaled(stepper, **options):
    return given(stepper, loss_scaling=LossScaling(**options))


def test_gradients_are_those_without_scaling_bit_for_bit():
    plain, scaling = network(), network()
    scaling.loss_scale = scaling.handler.create_from_numpy(np.array([1024.0], np.float32))
    for net in (plain, scaling):
        run_passes(net, batch())
        net.backward_pass(accumulate=True)
    assert np.array_equal(plain.get("gradients"), scaling.get("gradients"))
    assert not np.array_equal(plain.get("Dense.output_deltas.default"),
                              scaling.get("Dense.output_deltas.default"))  # fmt: skip


@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
def test_a_bad_step_changes_nothing_and_halves_the_scale(make, replay):
    stepper = scaled(make(), initial=64, growth_interval=100)
    net = network()
    stepper.start(net)
    for number in range(6):
        before = {"parameters": net.get("parameters"), **stepper.get_state()}
        step(net, stepper, number, bad=number == 4)
        after = {"parameters": net.get("parameters"), **stepper.get_state()}
        same = {name for name in before if np.array_equal(before[name], after[name])}
        names = {"parameters", *stepper.state_names, *stepper.weight_names}
        assert same.intersection(names) == (names if number == 4 else set())
        assert stepper.loss_scaling.scale == (64 if number < 4 else 32)


def test_good_steps_are_those_without_scaling_also_after_skipped_ones(replay):
    stepper = scaled(AdamStepper(0.01), initial=2**16, growth_interval=2)
    plain = AdamStepper(0.01)
    net, other = network(), network()
    stepper.start(net)
    plain.start(other)
    for number, bad in enumerate([True, True, True, False, True, False, False]):
        step(net, stepper, number, bad)
        if not bad:
            step(other, plain, number)
        assert np.array_equal(net.get("parameters"), other.get("parameters")), number


def test_the_scale_doubles_after_enough_good_steps():
    _, scales = train(scaled(SgdStepper(0.0), initial=4, growth_interval=3), bad=[4], count=9)
    assert scales == [4, 4, 8, 8, 4, 4, 4, 8, 8]


def test_the_scale_stays_within_its_limits():
    high, low = (scaled(SgdStepper(0.0), initial=n, growth_interval=1) for n in (2**24, 1))
    train(high, count=2)
    train(low, bad=range(2), count=2)
    assert (high.loss_scaling.scale, low.loss_scaling.scale) == (2**24, 1)


def test_each_of_two_steppers_scales_its_own_steps():
    net, _ = train(first := scaled(SgdStepper(0.1), initial=8), count=1)
    second, plain = scaled(SgdStepper(0.1), initial=32), SgdStepper(0.1)
    second.start(net)
    plain.start(net)
    assert net.loss_scale is net.layers["Loss"].loss_scale is None
    for stepper, scale in ((first, 8), (second, 32), (plain, None), (first, 8)):
        stepper.run()
        found = net.loss_scale
        assert (found if found is None else net.handler.get_numpy_copy(found)[0]) == scale


def test_the_scale_survives_a_change_of_the_input_deltas():
    net, _ = train(scaled(SgdStepper(0.1), initial=8), count=1)
    net.keep_input_deltas = True
    wanted = run_passes(net, batch())
    with pytest.raises(NetworkValidationError, match=r"^loss_scale: expected an array of .*got 2"):
        net.loss_scale = 2.0
    net.loss_scale = None
    net.backward_pass()
    assert np.array_equal(net.get("gradients"), wanted)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"initial": 0.5}, "initial: expected a number from 1 to 2^24, got 0.5."),
        ({"initial": "x"}, "initial: expected a number from 1 to 2^24, got 'x'."),
        ({"growth_interval": 0}, "growth_interval: expected an integer >= 1, got 0."),
    ],
)
def test_options(options, text):
    with refused(f"LossScaling.{text}"):
        LossScaling(**options)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        *(({"scale": bad}, f"scale: expected a number from 1 to 2^24, got {bad!r}. Is the file")
          for bad in (math.nan, 0.0, "x", None)),
        ({"good_steps": -1}, "good_steps: expected an integer >= 0, got -1. Is the file damaged?"),
    ],
)  # fmt: skip
def test_states_that_are_none(state, text):
    with refused(f"LossScaling.set_state, {text}"):
        LossScaling().set_state({"scale": 2.0, "good_steps": 0, **state})
