"""Steppers: every formula against plain NumPy, and what replaying a step demands."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm import training
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.layers import FullyConnected, Input, Loss, SoftmaxCE
from brainstorm.network import Network
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.training import (
    AdadeltaStepper,
    AdagradStepper,
    AdamStepper,
    AdamWStepper,
    AmsGradStepper,
    CenteredRMSPropStepper,
    ForwardStepper,
    GradientAccumulation,
    MomentumStepper,
    NesterovStepper,
    RMSPropStepper,
    SgdStepper,
    TrainingStepper,
)
from brainstorm.training.base_stepper import within_norm

STEPS = 12


class QuadraticNet:
    """All that a stepper knows of a network; the loss is 0.5 (p - goal)ᵀ A (p - goal)."""

    def __init__(self, size=5, dtype=np.float64, handler=None):
        self.handler = handler or NumpyHandler(dtype)
        rnd = np.random.RandomState(1)
        self.scale = rnd.uniform(0.1, 2.0, size).astype(dtype)
        self.goal = rnd.randn(size).astype(dtype)
        self.start = rnd.randn(size).astype(dtype)
        self.buffer = SimpleNamespace(
            parameters=self.handler.create_from_numpy(self.start),
            gradients=self.handler.zeros((size,)),
        )
        self.arrays = [self.handler.create_from_numpy(a) for a in (self.goal, self.scale)]
        self.passes = []
        self.parameter_slices = {"Only.parameters.p": slice(0, size)}

    layers = {}
    loss_layers = ("Loss",)
    parameters_size = 0
    batch_size = 1

    def do_traced(self, traces, function, purpose):
        function()  # the passes are counted

    def gradient(self, parameters):
        return self.scale * (parameters - self.goal)

    def forward_pass(self, training_pass=False):
        self.passes.append(f"forward {training_pass}")

    def backward_pass(self, modify=True):
        self.passes.append("backward")
        h, gradients = self.handler, self.buffer.gradients
        h.subtract_tt(self.buffer.parameters, self.arrays[0], gradients)
        h.mult_tt(gradients, self.arrays[1], gradients)


# -- the formulas, written independently: p, gradient function, learning rates -> last p ---------


def sgd(p, grad, rates):
    for lr in rates:
        p = p - lr * grad(p)
    return p


def momentum(p, grad, rates, m=0.0, scale=True):
    v = np.zeros_like(p)
    for lr in rates:
        lr = lr * (1 - m) if scale else lr
        v = m * v - lr * grad(p)
        p = p + v
    return p


def nesterov(p, grad, rates, m=0.0, scale=True):
    v = np.zeros_like(p)
    for lr in rates:
        lr = lr * (1 - m) if scale else lr
        v = m * v
        p = p + v
        g = grad(p)
        v = v - lr * g
        p = p - lr * g
    return p


def rmsprop(p, grad, rates, decay=0.99, eps=1e-8):
    s = np.zeros_like(p)
    for lr in rates:
        g = grad(p)
        s = decay * s + (1 - decay) * g * g
        p = p - lr * g / (np.sqrt(s) + eps)
    return p


def centered_rmsprop(p, grad, rates, decay=0.99, eps=1e-8, m=0.9):
    s, mean, v = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for lr in rates:
        g = grad(p)
        s = decay * s + (1 - decay) * g * g
        mean = decay * mean + (1 - decay) * g
        v = m * v + g / (np.sqrt(s - mean**2) + eps)
        p = p - lr * v
    return p


def adagrad(p, grad, rates, eps=1e-10):
    s = np.zeros_like(p)
    for lr in rates:
        g = grad(p)
        s = s + g * g
        p = p - lr * g / (np.sqrt(s) + eps)
    return p


def adadelta(p, grad, rates, rho=0.9, eps=1e-6):
    s, u = np.zeros_like(p), np.zeros_like(p)
    for lr in rates:
        g = grad(p)
        s = rho * s + (1 - rho) * g * g
        d = np.sqrt(u + eps) / np.sqrt(s + eps) * g
        u = rho * u + (1 - rho) * d * d
        p = p - lr * d
    return p


def adam(p, grad, rates, b1=0.9, b2=0.999, eps=1e-8, decay=0.0, keeps_largest=False):
    m, v, largest = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
    for t, lr in enumerate(rates, start=1):
        g = grad(p)
        p = p - lr * decay * p
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        largest = np.maximum(largest, v) if keeps_largest else v
        p = p - lr * (m / (1 - b1**t)) / (np.sqrt(largest / (1 - b2**t)) + eps)
    return p


FORMULAS = {
    "sgd": (SgdStepper, {}, sgd, {}),
    "momentum default": (MomentumStepper, {}, momentum, {}),
    "momentum": (MomentumStepper, {"momentum": 0.9}, momentum, {"m": 0.9}),
    "momentum unscaled": (
        MomentumStepper,
        {"momentum": 0.9, "scale_learning_rate": False},
        momentum,
        {"m": 0.9, "scale": False},
    ),
    "nesterov": (NesterovStepper, {"momentum": 0.9}, nesterov, {"m": 0.9}),
    "nesterov unscaled": (
        NesterovStepper,
        {"momentum": 0.5, "scale_learning_rate": False},
        nesterov,
        {"m": 0.5, "scale": False},
    ),
    "rmsprop default": (RMSPropStepper, {}, rmsprop, {}),
    "rmsprop": (
        RMSPropStepper,
        {"decay": 0.5, "epsilon": 0.1},
        rmsprop,
        {"decay": 0.5, "eps": 0.1},
    ),
    "adagrad default": (AdagradStepper, {}, adagrad, {}),
    "adagrad": (AdagradStepper, {"epsilon": 0.1}, adagrad, {"eps": 0.1}),
    "adadelta default": (AdadeltaStepper, {}, adadelta, {}),
    "adadelta": (
        AdadeltaStepper,
        {"decay": 0.5, "epsilon": 0.1},
        adadelta,
        {"rho": 0.5, "eps": 0.1},
    ),
    "adam default": (AdamStepper, {}, adam, {}),
    "adam": (
        AdamStepper,
        {"beta1": 0.5, "beta2": 0.7, "epsilon": 0.1},
        adam,
        {"b1": 0.5, "b2": 0.7, "eps": 0.1},
    ),
    "adamw default": (AdamWStepper, {}, adam, {"decay": 0.01}),
    "adamw": (AdamWStepper, {"weight_decay": 0.5}, adam, {"decay": 0.5}),
    "amsgrad default": (AmsGradStepper, {}, adam, {"keeps_largest": True}),
    "amsgrad": (AmsGradStepper, {"beta2": 0.5}, adam, {"b2": 0.5, "keeps_largest": True}),
    "centered rmsprop default": (CenteredRMSPropStepper, {}, centered_rmsprop, {}),
    "centered rmsprop": (
        CenteredRMSPropStepper,
        {"decay": 0.5, "epsilon": 0.1, "momentum": 0.3},
        centered_rmsprop,
        {"decay": 0.5, "eps": 0.1, "m": 0.3},
    ),
}
DEFAULT_RATES = {
    SgdStepper: 0.1,
    MomentumStepper: 0.1,
    NesterovStepper: 0.1,
    RMSPropStepper: 0.01,
    AdagradStepper: 0.01,
    AdadeltaStepper: 1.0,
    AdamStepper: 0.001,
    AdamWStepper: 0.001,
    AmsGradStepper: 0.001,
    CenteredRMSPropStepper: 0.01,
}
UPDATING = list(DEFAULT_RATES)


@pytest.mark.parametrize("case", FORMULAS)
def test_formula_with_default_learning_rate(case):
    cls, kwargs, formula, options = FORMULAS[case]
    net, stepper = QuadraticNet(), cls(**kwargs)
    stepper.start(net)
    for _ in range(STEPS):
        stepper.run()
    expected = formula(net.start, net.gradient, [DEFAULT_RATES[cls]] * STEPS, **options)
    np.testing.assert_allclose(net.buffer.parameters, expected, rtol=1e-12)
    assert not np.allclose(net.buffer.parameters, net.start, atol=1e-6)
    assert net.passes == ["forward True", "backward"] * STEPS


@pytest.mark.parametrize("case", FORMULAS)
def test_formula_with_changing_learning_rate(case):
    cls, kwargs, formula, options = FORMULAS[case]
    net, stepper = QuadraticNet(), cls(**kwargs)
    rates = [0.3 * 0.8**step for step in range(STEPS)]
    stepper.start(net)
    for rate in rates:
        stepper.learning_rate = rate
        stepper.run()
    expected = formula(net.start, net.gradient, rates, **options)
    np.testing.assert_allclose(net.buffer.parameters, expected, rtol=1e-12)


@pytest.mark.parametrize("cls", UPDATING)
def test_float32(cls):
    net32, net64 = QuadraticNet(dtype=np.float32), QuadraticNet()
    for net in (net32, net64):
        stepper = cls()
        stepper.start(net)
        for _ in range(STEPS):
            stepper.run()
    np.testing.assert_allclose(net32.buffer.parameters, net64.buffer.parameters, rtol=1e-4)


@pytest.mark.parametrize("cls", UPDATING)
def test_the_contracts_of_the_operations_are_kept(cls):
    plain, debug = QuadraticNet(), QuadraticNet(handler=DebugHandler(NumpyHandler(np.float64)))
    for net in (plain, debug):
        stepper = cls()
        stepper.start(net)
        stepper.run()
        stepper.run()
    found = debug.handler.get_numpy_copy(debug.buffer.parameters)
    np.testing.assert_array_equal(found, plain.buffer.parameters)


@pytest.mark.parametrize("cls", UPDATING)
def test_gradients_are_left_for_hooks_to_read(cls):
    net, stepper = QuadraticNet(), cls()
    stepper.start(net)
    stepper.run()
    np.testing.assert_allclose(net.buffer.gradients, net.gradient(net.start), rtol=1e-12)


# -- a step is a fixed sequence of operations over fixed memory ----------------------------------


class Recorder:
    """Stands for a handler and writes down the operations and the addresses they work on."""

    def __init__(self, handler):
        self.handler = handler
        self.calls = []

    def __getattr__(self, name):
        value = getattr(self.handler, name)
        if not callable(value):
            return value

        def call(*args, **kwargs):
            given = [x for a in args for x in (a if isinstance(a, list) else [a])]
            places = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in given]
            self.calls.append((name, *places))
            return value(*args, **kwargs)

        return call


@pytest.mark.parametrize("cls", [ForwardStepper, *UPDATING])
def test_all_steps_are_the_same_operations_on_the_same_memory(cls):
    recorder = Recorder(NumpyHandler(np.float64))
    net, stepper = QuadraticNet(handler=recorder), cls()
    stepper.start(net)
    steps = []
    for rate in (0.1, 0.2, 0.3):
        stepper.learning_rate = rate
        stepper.steps += 1
        stepper.refresh()
        recorder.calls.clear()
        stepper.step()
        steps.append(list(recorder.calls))
    assert steps[0] == steps[1] == steps[2]
    used = {call[0] for call in steps[0]}
    assert not used & {"allocate", "zeros", "ones", "create_from_numpy", "get_numpy_copy"}
    numbers = [a for call in steps[0] for a in call[1:] if isinstance(a, float)]
    assert numbers == []


@pytest.mark.parametrize("cls", UPDATING)
def test_a_step_allocates_nothing_of_the_size_of_the_parameters(cls):
    size = 100_000
    net, stepper = QuadraticNet(size), cls()
    stepper.start(net)
    stepper.run()
    tracemalloc.start()
    try:
        for _ in range(3):
            stepper.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size


# -- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", UPDATING)
def test_a_restored_stepper_continues_exactly(cls):
    net, stepper = QuadraticNet(), cls()
    stepper.start(net)
    for _ in range(4):
        stepper.run()
    stepper.learning_rate = 0.05
    state, parameters = stepper.get_state(), net.buffer.parameters.copy()
    for _ in range(4):
        stepper.run()

    other, again = QuadraticNet(), cls(learning_rate=0.7)
    other.buffer.parameters[:] = parameters
    again.set_state(state)
    again.start(other)
    assert again.learning_rate == 0.05
    for _ in range(4):
        again.run()
    np.testing.assert_array_equal(other.buffer.parameters, net.buffer.parameters)
    assert again.steps == stepper.steps == 8


def test_state_is_named_arrays_and_numbers():
    net, stepper = QuadraticNet(), AdamStepper()
    assert set(stepper.get_state()) == {"steps", "learning_rate", "beta1", "beta2", "epsilon"}
    stepper.start(net)
    assert set(stepper.state) == {"first_moment", "second_moment"}
    stepper.run()
    state = stepper.get_state()
    assert state["steps"] == 1
    np.testing.assert_allclose(state["first_moment"], 0.1 * net.gradient(net.start))
    stepper.run()
    np.testing.assert_allclose(state["first_moment"], 0.1 * net.gradient(net.start))


def test_start_forgets_the_velocity():
    net, stepper = QuadraticNet(), MomentumStepper(momentum=0.9)
    stepper.start(net)
    stepper.run()
    assert np.any(stepper.state["velocity"])
    stepper.start(net)
    assert not np.any(stepper.state["velocity"])
    assert stepper.steps == 0


def test_state_taken_before_start_can_be_restored():
    stepper = MomentumStepper(momentum=0.5)
    again = MomentumStepper()
    again.set_state(stepper.get_state())
    again.start(QuadraticNet())
    assert again.momentum == 0.5


def test_a_restored_state_is_not_lost_before_start():
    stepper = MomentumStepper(momentum=0.9)
    stepper.start(QuadraticNet())
    stepper.run()
    again = MomentumStepper()
    again.set_state(stepper.get_state())
    again.learning_rate = 0.3
    state = again.get_state()
    assert (state["steps"], state["learning_rate"], state["momentum"]) == (1, 0.3, 0.9)
    np.testing.assert_array_equal(state["velocity"], stepper.state["velocity"])


def test_foreign_states_are_refused():
    net = QuadraticNet()
    stepper = AdamStepper()
    stepper.start(net)
    with pytest.raises(
        TrainingError,
        match=r"SgdStepper.set_state: expected learning_rate, steps, got beta1, beta2, epsilon, "
        r"first_moment, .* Is it the state of another stepper\?",
    ):
        SgdStepper().set_state(stepper.get_state())
    small = AdamStepper()
    small.set_state(stepper.get_state())
    with pytest.raises(
        TrainingError, match=r"AdamStepper.start, state '\w+': expected shape \(3,\) like the par"
    ):
        small.start(QuadraticNet(3))


@pytest.mark.parametrize("cls", [ForwardStepper, *UPDATING])
def test_description_has_the_hyperparameters_only(cls):
    stepper = cls()
    fresh = json.dumps(get_description(stepper), allow_nan=False)
    stepper.start(QuadraticNet())
    stepper.run()
    assert json.dumps(get_description(stepper), allow_nan=False) == fresh
    again = create_from_description(json.loads(fresh))
    assert type(again) is cls
    again.start(QuadraticNet())
    again.run()
    np.testing.assert_array_equal(again.net.buffer.parameters, stepper.net.buffer.parameters)


# -- hyperparameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", None, True, np.zeros(2)], ids=str)
@pytest.mark.parametrize("cls", UPDATING)
def test_learning_rate_is_checked(cls, bad):
    text = rf"{cls.__name__}.learning_rate: expected a finite number >= 0, got "
    with pytest.raises(TrainingError, match=text):
        cls(learning_rate=bad)
    stepper = cls()
    with pytest.raises(TrainingError, match=text):
        stepper.learning_rate = bad
    assert stepper.learning_rate == DEFAULT_RATES[cls]


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (MomentumStepper, "momentum"),
        (NesterovStepper, "momentum"),
        (RMSPropStepper, "decay"),
        (AdadeltaStepper, "decay"),
        (AdamStepper, "beta1"),
        (AdamWStepper, "beta2"),
    ],
)
def test_fractions_are_checked(cls, name):
    with pytest.raises(
        TrainingError, match=rf"{cls.__name__}.{name}: expected a finite number >= 0 and < 1, got 1"
    ):
        cls(**{name: 1.0})


def test_numpy_numbers_are_numbers():
    assert SgdStepper(np.float32(0.5)).learning_rate == 0.5


# -- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("training_pass", [False, True])
def test_forward_stepper_only_looks(training_pass):
    net = QuadraticNet()
    stepper = ForwardStepper(use_training_pass=training_pass)
    stepper.start(net)
    stepper.run()
    assert net.passes == [f"forward {training_pass}"]
    np.testing.assert_array_equal(net.buffer.parameters, net.start)
    assert ForwardStepper().use_training_pass is False


def test_network_without_parameters():
    for cls in UPDATING:
        stepper = cls()
        stepper.start(QuadraticNet(0))
        stepper.run()


class SignStepper(TrainingStepper):
    """By a formula of one's own."""

    hyperparameters = SgdStepper.hyperparameters
    rule = formula(lambda p, g, rate: p - rate * fn.sgn(g))

    def __init__(self, learning_rate=0.01):
        self.learning_rate = learning_rate

    def scalars(self):
        return {"rate": self.learning_rate}


class SignStepperOfOperations(SignStepper):
    """By operations of the handler."""

    scratch_names = ("sign",)

    def scalars(self):
        return {"minus_rate": -self.learning_rate}

    def update(self):
        sign = self.scratch["sign"]
        self.handler.sign_t(self.gradients, sign)
        self.handler.mult_add_st(self.numbers["minus_rate"], sign, self.parameters)


@pytest.mark.parametrize("cls", [SignStepper, SignStepperOfOperations])
def test_a_stepper_of_ones_own(cls):
    net, stepper = QuadraticNet(), cls()
    stepper.start(net)
    stepper.run()
    expected = net.start - 0.01 * np.sign(net.gradient(net.start))
    np.testing.assert_allclose(net.buffer.parameters, expected)


def test_every_stepper_is_tested_here():
    public = {getattr(training, n) for n in training.__all__ if n.endswith("Stepper")}
    assert public == {TrainingStepper, ForwardStepper, *UPDATING}
    with pytest.raises(NotImplementedError, match="TrainingStepper defines neither rule nor upd"):
        TrainingStepper().update()


# -- the norm of all gradients --------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.5, 1e30])
def test_gradients_are_scaled_to_the_largest_norm(limit):
    stepper, net = SgdStepper(1.0), QuadraticNet()
    stepper.max_gradient_norm = limit
    stepper.start(net)
    before = net.start.copy()
    gradient = net.gradient(before)
    stepper.run()
    step = before - net.handler.get_numpy_copy(net.buffer.parameters)
    factor = min(1.0, limit / np.linalg.norm(gradient))
    np.testing.assert_allclose(step, factor * gradient, rtol=1e-12)


def test_a_large_gradient_does_not_overflow():
    handler = NumpyHandler(np.float32)
    g, limit = (handler.create_from_numpy(np.array(a, np.float32)) for a in ([3e30, -4e30], [5.0]))
    handler.compute(within_norm, [g, limit], [g])
    np.testing.assert_allclose(handler.get_numpy_copy(g), [3.0, -4.0], rtol=1e-6)
    g = handler.zeros((2,))
    handler.compute(within_norm, [g, limit], [g])
    assert handler.get_numpy_copy(g).tolist() == [0.0, 0.0]


def test_the_largest_norm_may_change_while_training():
    stepper, net = SgdStepper(1.0), QuadraticNet()
    stepper.start(net)
    for limit in (None, 0.25, 0.125, None):
        stepper.max_gradient_norm = limit
        before = net.handler.get_numpy_copy(net.buffer.parameters)
        gradient = net.gradient(before)
        stepper.run()
        step = before - net.handler.get_numpy_copy(net.buffer.parameters)
        wanted = np.linalg.norm(gradient) if limit is None else limit
        np.testing.assert_allclose(np.linalg.norm(step), wanted)


@pytest.mark.parametrize("bad", [0, -1.0, math.inf, math.nan, "x"])
def test_a_senseless_largest_norm(bad):
    with pytest.raises(TrainingError, match=r"SgdStepper.max_gradient_norm: expected a finite num"):
        SgdStepper(1.0).max_gradient_norm = bad


def test_what_cannot_learn():
    inp = Input({"default": ("T", "B", 3), "targets": ("T", "B", 1)})
    last, out = FullyConnected(2, "linear", name="Last"), SoftmaxCE(name="Out")
    inp >> last >> out
    inp - "targets" >> "targets" - out
    with pytest.raises(
        TrainingError, match="expected a network with a Loss layer, got none: there"
    ):
        SgdStepper().start(Network.from_layer(inp))
    ForwardStepper().start(Network.from_layer(inp))
    out - "loss" >> Loss()
    net = Network.from_layer(inp)
    text = (
        "SgdStepper.start: expected parameters to begin with, got zeros only. Call net.initialize"
    )
    with pytest.raises(TrainingError, match=re.escape(text)):
        SgdStepper().start(net)
    net.initialize(0)
    SgdStepper().start(net)
    other = Network.from_layer(inp)
    other.buffer.Last.parameters.W[:] = 1
    SgdStepper().start(other)


@pytest.mark.parametrize(
    ("part", "wrong", "text"),
    [
        ("accumulation", 8, "expected a GradientAccumulation or None, got 8."),
        (
            "accumulation",
            GradientAccumulation,
            "expected a GradientAccumulation or None, got the class",
        ),
        ("loss_scaling", True, "expected a LossScaling or None, got True."),
    ],
)
def test_parts_of_a_step_are_of_their_kind(part, wrong, text):
    stepper = SgdStepper()
    with pytest.raises(TrainingError, match=re.escape(f"SgdStepper.{part}: {text}")):
        setattr(stepper, part, wrong)
    assert getattr(stepper, part) is None
