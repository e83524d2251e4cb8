"""Loss scaling: the same gradients, bad steps undone, the scale, and exact resume."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError
from brainstorm.handlers import NumpyHandler
from brainstorm.hooks import SaveCheckpoint
from brainstorm.layers import BatchNorm, FullyConnected, Lstm
from brainstorm.training import (
    AdamStepper,
    LossScaling,
    MomentumStepper,
    NesterovStepper,
    SgdStepper,
)
from brainstorm.value_modifiers import L2Decay
from tests.networks import batch_for, run_passes, trainable
from tests.runs import make_network, outcome, resumed_run, whole_run  # noqa: F401


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


def train(stepper, bad=(), count=8):
    """Train; return the parameters after each step."""
    net = network()
    stepper.start(net)
    seen = []
    for number in range(count):
        net.provide_external_data(batch(number, number in bad))
        with np.errstate(all="ignore"):
            stepper.run()
        seen.append(net.get("parameters"))
    return net, seen


def scaled(stepper, **options):
    stepper.loss_scaling = LossScaling(**options)
    return stepper


def test_gradients_are_those_without_scaling_bit_for_bit():
    plain, scaling = network(), network()
    scaling.loss_scale = scaling.handler.create_from_numpy(np.array([1024.0], np.float32))
    for net in (plain, scaling):
        run_passes(net, batch())
        net.backward_pass(accumulate=True)
    assert np.array_equal(plain.get("gradients"), scaling.get("gradients"))
    assert not np.array_equal(plain.get("Dense.output_deltas.default"),
                              scaling.get("Dense.output_deltas.default"))  # fmt: skip


@pytest.mark.parametrize("replay", ["0", "1"])
def test_good_steps_are_those_without_scaling(monkeypatch, replay):
    monkeypatch.setenv("BRAINSTORM_REPLAY", replay)
    _, plain = train(AdamStepper(0.01))
    _, seen = train(scaled(AdamStepper(0.01), growth_interval=3))
    assert all(map(np.array_equal, plain, seen))


@pytest.mark.parametrize("make", [AdamStepper, NesterovStepper, lambda: MomentumStepper(0.1, 0.9)])
@pytest.mark.parametrize("replay", ["0", "1"])
def test_a_bad_step_changes_nothing_and_halves_the_scale(monkeypatch, make, replay):
    monkeypatch.setenv("BRAINSTORM_REPLAY", replay)
    stepper = scaled(make(), initial=64, growth_interval=100)
    net = network()
    stepper.start(net)
    for number in range(6):
        before = {"parameters": net.get("parameters"), **stepper.get_state()}
        net.provide_external_data(batch(number, bad=number == 4))
        with np.errstate(all="ignore"):
            stepper.run()
        after = {"parameters": net.get("parameters"), **stepper.get_state()}
        same = {name for name in before if np.array_equal(before[name], after[name])}
        names = {"parameters", *stepper.state_names, *stepper.weight_names}
        assert same.intersection(names) == (names if number == 4 else set())
        scales = [64, 64, 64, 64, 32, 32]
        assert stepper.loss_scaling.scale == scales[number]


@pytest.mark.parametrize("replay", ["0", "1"])
def test_steps_after_skipped_ones_are_as_if_there_had_been_none(monkeypatch, replay):
    monkeypatch.setenv("BRAINSTORM_REPLAY", replay)
    stepper, plain = scaled(AdamStepper(0.01), initial=2**16), AdamStepper(0.01)
    net, other = network(), network()
    stepper.start(net)
    plain.start(other)
    for number, bad in enumerate([True, True, True, False, True, False, False]):
        net.provide_external_data(batch(number, bad=bad))
        with np.errstate(all="ignore"):
            stepper.run()
        if not bad:
            other.provide_external_data(batch(number))
            plain.run()
        assert np.array_equal(net.get("parameters"), other.get("parameters")), number


def test_the_scale_doubles_after_enough_good_steps():
    stepper = scaled(SgdStepper(0.0), initial=4, growth_interval=3)
    scales = []
    net = network()
    stepper.start(net)
    for number in range(9):
        net.provide_external_data(batch(number, bad=number == 4))
        with np.errstate(all="ignore"):
            stepper.run()
        scales.append(stepper.loss_scaling.scale)
    assert scales == [4, 4, 8, 8, 4, 4, 4, 8, 8]


def test_the_scale_stays_within_its_limits():
    high, low = (scaled(SgdStepper(0.0), initial=n, growth_interval=1) for n in (2**24, 1))
    train(high, count=2)
    train(low, bad=range(2), count=2)
    assert (high.loss_scaling.scale, low.loss_scaling.scale) == (2**24, 1)


def test_another_stepper_takes_the_scale_away():
    net, _ = train(scaled(SgdStepper(0.1)), count=1)
    SgdStepper(0.1).start(net)
    assert net.loss_scale is None
    assert net.layers["Loss"].loss_scale is None


def test_the_scale_survives_a_change_of_the_input_deltas():
    net, _ = train(scaled(SgdStepper(0.1), initial=8), count=1)
    net.keep_input_deltas = True
    wanted = run_passes(net, batch())
    net.loss_scale = None
    net.backward_pass()
    assert np.array_equal(net.get("gradients"), wanted)


def test_description():
    stepper = scaled(AdamStepper(0.01), initial=100, growth_interval=7)
    stepper.max_gradient_norm = 2.0
    description = json.loads(json.dumps(get_description(stepper)))
    assert description["loss_scaling"] == {
        "@type": "LossScaling", "initial": 128.0, "growth_interval": 7,
    }  # fmt: skip
    again = create_from_description(description)
    assert (again.max_gradient_norm, again.loss_scaling.scale) == (2.0, 128.0)
    assert "loss_scaling" not in get_description(AdamStepper())


def test_a_run_is_resumed_exactly(tmp_path):
    def stepper():
        made = scaled(MomentumStepper(0.05, 0.9), initial=16, growth_interval=3)
        made.max_gradient_norm = 0.1
        return made

    save = SaveCheckpoint(tmp_path / "run.hdf5", timescale="update", interval=5, keep=9)
    whole = whole_run("dense", "minibatches", "float32", stepper(), [save])
    assert whole[0].stepper.loss_scaling.scale == 16 * 2**4
    again = resumed_run(tmp_path / "run-5.hdf5", "minibatches")
    assert outcome(*again) == outcome(*whole)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"initial": 0.5}, "initial: expected a number from 1 to 2^24, got 0.5."),
        ({"initial": "x"}, "initial: expected a number from 1 to 2^24, got 'x'."),
        ({"growth_interval": 0}, "growth_interval: expected an integer >= 1, got 0."),
    ],
)
def test_options(options, text):
    with pytest.raises(TrainingError, match=re.escape(f"LossScaling.{text}")):
        LossScaling(**options)
