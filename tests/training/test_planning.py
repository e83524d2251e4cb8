"""Steps by plan: the same bits as direct steps, and made anew when something changed."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.layers import BatchNorm, Dropout, FullyConnected, Lstm
from brainstorm.layers.base_layer import Layer
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import (
    AdamStepper,
    ForwardStepper,
    MomentumStepper,
    NesterovStepper,
    SgdStepper,
    TrainingStepper,
)
from brainstorm.value_modifiers import ClipValues, L2Decay
from tests.networks import classifier


def network(*hidden, handler=None):
    hidden = hidden or (Lstm(5), Dropout(0.3), BatchNorm(), FullyConnected(4, "tanh"))
    net = Network.from_layer(classifier(*hidden), seed=3, handler=handler or NumpyHandler(seed=1))
    net.initialize(Gaussian(0.3), seed=2)
    return net


def batch(T=3, B=4, seed=0):
    rnd = np.random.default_rng(seed)
    return {
        "default": rnd.standard_normal((T, B, 4)),
        "targets": rnd.integers(0, 3, (T, B, 1)),
    }


def train(net, stepper, batches):
    stepper.start(net)
    for data in batches:
        net.provide_external_data(data)
        stepper.run()
    return net.get("parameters")


@pytest.fixture
def both_ways(monkeypatch):
    """Call a function with and without plans and return both results."""

    def run(function):
        results = []
        for switch in "01":
            monkeypatch.setenv("BRAINSTORM_REPLAY", switch)
            results.append(function())
        return results

    return run


STEPPERS = [
    lambda: SgdStepper(0.1), lambda: MomentumStepper(0.1, 0.9), lambda: NesterovStepper(0.1, 0.9),
    lambda: AdamStepper(0.01), lambda: ForwardStepper(use_training_pass=True),
]  # fmt: skip


@pytest.mark.parametrize("make", STEPPERS)
def test_bits_equal_direct_steps_with_changing_sizes(both_ways, make):
    batches = [batch(T, B, i) for i, (T, B) in enumerate([(3, 4), (2, 2), (5, 3)] * 4)]
    direct, planned = both_ways(lambda: train(network(), make(), batches))
    np.testing.assert_array_equal(planned, direct)


def plan_of(stepper):
    (entry,) = [plan for _, plan in stepper._plans._plans.values() if plan is not None]
    return entry


def test_a_step_is_recorded_when_its_sizes_come_again():
    net, stepper = network(), SgdStepper(0.1)
    train(net, stepper, [batch(), batch(T=1)])
    assert [plan for _, plan in stepper._plans._plans.values()] == [None, None]
    stepper.run()
    operations = plan_of(stepper).operations
    assert "python" not in {operation.name for operation in operations}


class CountingStepper(SgdStepper):
    def start(self, net):
        super().start(net)
        self.direct = 0

    def step(self):
        self.direct += 1  # a plan cannot repeat this
        super().step()


class RateInTheFormula(TrainingStepper):
    hyperparameters = SgdStepper.hyperparameters

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def update(self):
        self.handler.mult_add_st(-self.learning_rate, self.gradients, self.parameters)


class EveryOther(SgdStepper):
    def update(self):
        if self.steps % 2:
            super().update()


@pytest.mark.parametrize("make", [CountingStepper, RateInTheFormula, EveryOther])
def test_steppers_that_cannot_be_recorded_run_directly(both_ways, make):
    def run():
        stepper = make(0.1)
        stepper.start(net := network())
        for i in range(6):
            net.provide_external_data(batch(seed=i))
            stepper.learning_rate = 0.1 / (i + 1)
            stepper.run()
        if make is CountingStepper:
            assert stepper.direct == 6
        return net.get("parameters")

    direct, planned = both_ways(run)
    np.testing.assert_array_equal(planned, direct)


def test_learning_rates_lie_in_memory(both_ways):
    def run():
        stepper = AdamStepper()
        stepper.start(net := network())
        for i in range(6):
            net.provide_external_data(batch(seed=i))
            stepper.learning_rate = 0.1 / (i + 1)
            stepper.run()
        return net.get("parameters")

    direct, planned = both_ways(run)
    np.testing.assert_array_equal(planned, direct)


def change_modifiers(net):
    net.set_gradient_modifiers(ClipValues(-1e-3, 1e-3))


def change_a_modifier(net):
    net.gradient_modifiers["Out_projection"] = net.gradient_modifiers.get("Out_projection", {})
    for modifiers in net.gradient_modifiers.values():
        for modifier in (m for several in modifiers.values() for m in several):
            modifier.factor = 0.5


def change_an_attribute(net):
    net.layers["Dropout"].keep_prob = 0.9


def change_handler(net):
    net.set_handler(NumpyHandler(seed=5))


def keep_deltas(net):
    net.keep_input_deltas = True


def grow(net):
    net.provide_external_data(batch(T=9, B=9))


@pytest.mark.parametrize(
    "change",
    [change_modifiers, change_a_modifier, change_an_attribute, change_handler, keep_deltas, grow],
)
def test_what_changes_between_steps_is_seen(both_ways, change):
    def run():
        net, stepper = network(), SgdStepper(0.1)
        net.set_gradient_modifiers(L2Decay(0.1))
        train(net, stepper, [batch(seed=i) for i in range(4)])
        assert net.handler.replays_plans
        change(net)
        if change is change_handler:
            stepper.start(net)
        for i in range(4):
            net.provide_external_data(batch(seed=i))
            stepper.run()
        return net.get("parameters")

    direct, planned = both_ways(run)
    np.testing.assert_array_equal(planned, direct)


class PlainNumpyLayerImpl(Layer):
    """Computes with NumPy, counts its calls and looks at values: none of it can be recorded."""

    calls = 0

    def setup(self, kwargs, in_shapes):
        return {"default": in_shapes["default"]}, {}, {}

    def forward_pass(self, buffers, training_pass=True):
        self.calls += 1
        x = buffers.inputs.default
        buffers.outputs.default[...] = np.tanh(x) * (1.0 + (x.max() > 2.0))

    def backward_pass(self, buffers):
        y, factor = buffers.outputs.default, 1.0 + (buffers.inputs.default.max() > 2.0)
        slope = factor * (1 - (y / factor) ** 2)
        buffers.input_deltas.default[...] += buffers.output_deltas.default * slope


def test_a_layer_that_computes_with_numpy_is_called(both_ways):
    def run():
        hidden = ConstructionWrapper.create(PlainNumpyLayerImpl, name="Plain")
        net, stepper = network(FullyConnected(4, "tanh"), hidden), SgdStepper(0.1)
        parameters = train(net, stepper, [batch(seed=i) for i in range(5)])
        assert net.layers["Plain"].calls == 5
        return parameters

    direct, planned = both_ways(run)
    np.testing.assert_array_equal(planned, direct)


def test_such_a_layer_does_not_make_its_plan_invalid():
    hidden = ConstructionWrapper.create(PlainNumpyLayerImpl, name="Plain")
    net, stepper = network(FullyConnected(4), hidden), SgdStepper(0.1)
    train(net, stepper, [batch(), batch()])
    plan = plan_of(stepper)
    assert [o.place for o in plan.operations if o.name == "python"] == [
        "Plain, forward", "Plain, backward",
    ]  # fmt: skip
    stepper.run()
    assert plan_of(stepper) is plan


def test_the_debug_handler_runs_the_layers():
    net, stepper = network(handler=DebugHandler(NumpyHandler())), SgdStepper(0.1)
    train(net, stepper, [batch(), batch()])
    assert stepper._plans._plans == {}


def test_copies_of_a_stepper_start_without_plans():
    import copy
    import pickle

    stepper = SgdStepper(0.1)
    train(network(), stepper, [batch(), batch()])
    plan_of(stepper)
    assert copy.deepcopy(stepper._plans)._plans == {}
    assert pickle.loads(pickle.dumps(stepper._plans))._plans == {}


def test_plans_that_were_not_used_for_long_are_dropped():
    from brainstorm.structure.planning import MOST_PLANS

    net, stepper = network(FullyConnected(3)), SgdStepper(0.1)
    sizes = [1, 1, *range(2, MOST_PLANS + 1), 1, *range(100, 105)]
    train(net, stepper, [batch(T=1, B=b) for b in sizes])
    kept = [key[1] for key in stepper._plans._plans]
    assert kept == [*range(7, MOST_PLANS + 1), 1, *range(100, 105)]


def test_net_plan_lists_the_operations_of_both_passes():
    net = network()
    net.provide_external_data(batch())
    net.forward_pass(True)
    net.backward_pass()
    expected = net.get("gradients")
    places = {operation.place for operation in net.plan().operations}
    assert {"Lstm, forward", "Lstm, backward", "Projection, backward"} <= places
    net.buffer.gradients[...] = 7.0
    net = network()
    net.provide_external_data(batch())
    net.plan().replay()
    np.testing.assert_array_equal(net.get("gradients"), expected)
    only_forward = {operation.place for operation in net.plan(training_pass=False).operations}
    assert not any(place.endswith("backward") for place in only_forward)
