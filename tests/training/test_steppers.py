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


def started(stepper, *args, **kwargs):
    """Return a network on which a stepper was started, and the stepper."""
    net = QuadraticNet(*args, **kwargs)
    stepper.start(net)
    return net, stepper


@pytest.mark.parametrize("case", FORMULAS)
def test_formula_with_default_learning_rate(case):
    cls, kwargs, formula, options = FORMULAS[case]
    net, stepper = started(cls(**kwargs))
    for _ in range(STEPS):
        stepper.run()
    expected = formula(net.start, net.gradient, [DEFAULT_RATES[cls]] * STEPS, **options)
    np.testing.assert_allclose(net.buffer.parameters, expected, rtol=1e-12)
    assert not np.allclose(net.buffer.parameters, net.start, atol=1e-6)
    assert net.passes == ["forward True", "backward"] * STEPS


@pytest.mark.parametrize("case", FORMULAS)
def test_formula_with_changing_learning_rate(case):
    cls, kwargs, formula, options = FORMULAS[case]
    net, stepper = started(cls(**kwargs))
    rates = [0.3 * 0.8**step for step in range(STEPS)]
    for rate in rates:
        stepper.learning_rate = rate
        stepper.run()
    expected = formula(net.start, net.gradient, rates, **options)
    np.testing.assert_allclose(net.buffer.parameters, expected, rtol=1e-12)


@pytest.mark.parametrize("cls", UPDATING)
@pytest.mark.parametrize(
    ("handler", "rtol"),
    [(NumpyHandler(np.float32), 1e-4), (DebugHandler(NumpyHandler(np.float64)), 1e-12)],
    ids=["float32", "debug"],
)
def test_on_other_handlers_and_the_gradients_are_left_for_hooks(cls, handler, rtol):
    expected, plain = started(cls())
    net, stepper = started(cls(), handler=handler)
    for each in (plain, stepper):
        each.run()
    gradients = handler.get_numpy_copy(net.buffer.gradients)
    np.testing.assert_allclose(gradients, expected.gradient(expected.start), rtol)
    for _ in range(STEPS):
        for each in (plain, stepper):
            each.run()
    found = handler.get_numpy_copy(net.buffer.parameters)
    np.testing.assert_allclose(found, expected.buffer.parameters, rtol)


@pytest.mark.parametrize("cls", UPDATING)
def test_a_step_allocates_nothing_of_the_size_of_the_parameters(cls):
    size = 100_000
    _, stepper = started(cls(), size)
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


def test_state_is_named_arrays_and_numbers():
    net, stepper = QuadraticNet(), AdamStepper()
    assert set(stepper.get_state()) == {"steps", "learning_rate", "beta1", "beta2", "epsilon"}
    stepper.start(net)
    assert set(stepper.state) == {"first_moment", "second_moment"}
    stepper.run()
    state = stepper.get_state()
    assert state["steps"] == 1
    for _ in range(2):
        np.testing.assert_allclose(state["first_moment"], 0.1 * net.gradient(net.start))
        stepper.run()
    stepper.start(net)
    assert stepper.steps == 0


def test_a_restored_state_is_not_lost_before_start():
    _, stepper = started(MomentumStepper(0.2, momentum=0.9))
    again = MomentumStepper()
    again.set_state(MomentumStepper(momentum=0.5).get_state())  # taken before a start
    again.start(QuadraticNet())
    assert again.momentum == 0.5
    stepper.run()
    again.set_state(stepper.get_state())
    assert again.learning_rate == 0.2
    again.learning_rate = 0.3
    state = again.get_state()
    assert (state["steps"], state["learning_rate"], state["momentum"]) == (1, 0.3, 0.9)
    np.testing.assert_array_equal(state["velocity"], stepper.state["velocity"])


def test_foreign_states_are_refused():
    _, stepper = started(AdamStepper())
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
    fresh = json.dumps(get_description(cls()), allow_nan=False)
    _, stepper = started(cls())
    stepper.run()
    assert json.dumps(get_description(stepper), allow_nan=False) == fresh
    again = create_from_description(json.loads(fresh))
    assert type(again) is cls
    net, again = started(again)
    again.run()
    np.testing.assert_array_equal(net.buffer.parameters, stepper.net.buffer.parameters)


# -- hyperparameters -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", None, True, np.zeros(2)], ids=str)
def test_numbers_are_checked_when_they_are_given_and_when_they_are_changed(bad):
    for cls in UPDATING:
        text = rf"{cls.__name__}.learning_rate: expected a finite number >= 0, got "
        with pytest.raises(TrainingError, match=text):
            cls(learning_rate=bad)
        stepper = cls()
        with pytest.raises(TrainingError, match=text):
            stepper.learning_rate = bad
        assert stepper.learning_rate == DEFAULT_RATES[cls]
    with pytest.raises(TrainingError, match=r"SgdStepper.max_gradient_norm: expected a finite num"):
        SgdStepper(1.0).max_gradient_norm = 0 if bad is None else bad  # None: no limit


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


# -- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("training_pass", [False, True])
def test_forward_stepper_only_looks(training_pass):
    net, stepper = started(ForwardStepper(use_training_pass=training_pass))
    stepper.run()
    assert net.passes == [f"forward {training_pass}"]
    np.testing.assert_array_equal(net.buffer.parameters, net.start)
    assert ForwardStepper().use_training_pass is False


@pytest.mark.parametrize("cls", UPDATING)
def test_network_without_parameters(cls):
    _, stepper = started(cls(np.float32(0.5)), 0)
    stepper.run()
    assert stepper.learning_rate == 0.5


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
    net, stepper = started(cls())
    stepper.run()
    expected = net.start - 0.01 * np.sign(net.gradient(net.start))
    np.testing.assert_allclose(net.buffer.parameters, expected)


def test_every_stepper_is_tested_here():
    public = {getattr(training, n) for n in training.__all__ if n.endswith("Stepper")}
    assert public == {TrainingStepper, ForwardStepper, *UPDATING}
    with pytest.raises(NotImplementedError, match="TrainingStepper defines neither rule nor upd"):
        TrainingStepper().update()


# -- the norm of all gradients --------------------------------------------------------------------


def test_a_large_gradient_does_not_overflow():
    handler = NumpyHandler(np.float32)
    g, limit = (handler.create_from_numpy(np.array(a, np.float32)) for a in ([3e30, -4e30], [5.0]))
    handler.compute(within_norm, [g, limit], [g])
    np.testing.assert_allclose(handler.get_numpy_copy(g), [3.0, -4.0], rtol=1e-6)
    g = handler.zeros((2,))
    handler.compute(within_norm, [g, limit], [g])
    assert handler.get_numpy_copy(g).tolist() == [0.0, 0.0]


def test_gradients_are_scaled_to_the_largest_norm_which_may_change_while_training():
    net, stepper = started(SgdStepper(1.0))
    for limit in (None, 0.25, 1e30, 0.125, None):
        stepper.max_gradient_norm = limit
        before = net.handler.get_numpy_copy(net.buffer.parameters)
        gradient = net.gradient(before)
        stepper.run()
        step = before - net.handler.get_numpy_copy(net.buffer.parameters)
        factor = min(1.0, (limit or math.inf) / np.linalg.norm(gradient))
        np.testing.assert_allclose(step, factor * gradient, rtol=1e-12)


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
