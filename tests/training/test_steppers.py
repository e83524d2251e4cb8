"""Steppers: every formula against plain NumPy, and what replaying a step demands."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm import training
from brainstorm.data_iterators import Undivided, load_data, save_data
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import TrainingError, ValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.hooks import MonitorLoss
from brainstorm.layers import Elementwise, FullyConnected, Input, Loss, SoftmaxCE
from brainstorm.network import Network
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.scorers import Accuracy
from brainstorm.training import (
    AdadeltaStepper,
    AdagradStepper,
    AdamStepper,
    AdamWStepper,
    AmsGradStepper,
    CenteredRMSPropStepper,
    ForwardStepper,
    GradientAccumulation,
    LossScaling,
    MomentumStepper,
    NesterovStepper,
    ParameterGroup,
    RMSPropStepper,
    SgdStepper,
    Trainer,
    TrainingStepper,
)
from brainstorm.value_modifiers import within_norm
from tests.networks import batch_for, build, run_passes, trainable
from tests.trainings import given, refused, takes_less_than

STEPS = 12
BATCH = batch_for(2, 5)


def network(size=5, handler=None):
    """Return a network with a batch."""
    net = trainable(FullyConnected(size, "tanh", name="A"), handler=handler)
    net.provide_external_data(BATCH)
    return net


def started(stepper, *options):
    """Return a network on which a stepper was started, and the stepper."""
    net = network(*options)
    stepper.start(net)
    return net, stepper


def gradient_of(handler=None):
    """Return a function that computes the gradient for some parameters, in a network of its own."""
    net = network(handler=handler)

    def gradient(parameters):
        net.handler.set_from_numpy(net.buffer.parameters, parameters)
        return run_passes(net, BATCH)

    return gradient


# -- the formulas, written independently: state, p, gradient function, learning rate -> next p ----


def sgd(s, p, grad, lr):
    return p - lr * grad(p)


def momentum(s, p, grad, lr, momentum=0.0, scale_learning_rate=True):
    lr = lr * (1 - momentum) if scale_learning_rate else lr
    s["v"] = momentum * s["v"] - lr * grad(p)
    return p + s["v"]


def nesterov(s, p, grad, lr, momentum=0.0, scale_learning_rate=True):
    lr = lr * (1 - momentum) if scale_learning_rate else lr
    ahead = momentum * s["v"]
    g = grad(p + ahead)
    s["v"] = ahead - lr * g
    return p + ahead - lr * g


def rmsprop(s, p, grad, lr, decay=0.99, epsilon=1e-8):
    g = grad(p)
    s["s"] = decay * s["s"] + (1 - decay) * g * g
    return p - lr * g / (np.sqrt(s["s"]) + epsilon)


def centered_rmsprop(s, p, grad, lr, decay=0.99, epsilon=1e-8, momentum=0.9):
    g = grad(p)
    s["s"] = decay * s["s"] + (1 - decay) * g * g
    s["mean"] = decay * s["mean"] + (1 - decay) * g
    s["v"] = momentum * s["v"] + g / (np.sqrt(s["s"] - s["mean"] ** 2) + epsilon)
    return p - lr * s["v"]


def adagrad(s, p, grad, lr, epsilon=1e-10):
    g = grad(p)
    s["s"] = s["s"] + g * g
    return p - lr * g / (np.sqrt(s["s"]) + epsilon)


def adadelta(s, p, grad, lr, decay=0.9, epsilon=1e-6):
    g = grad(p)
    s["s"] = decay * s["s"] + (1 - decay) * g * g
    d = np.sqrt(s["u"] + epsilon) / np.sqrt(s["s"] + epsilon) * g
    s["u"] = decay * s["u"] + (1 - decay) * d * d
    return p - lr * d


def adam(s, p, grad, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0, amsgrad=False):
    g = grad(p)
    s["t"] += 1
    s["m"] = beta1 * s["m"] + (1 - beta1) * g
    s["v"] = beta2 * s["v"] + (1 - beta2) * g * g
    s["largest"] = np.maximum(s["largest"], s["v"]) if amsgrad else s["v"]
    mean, square = s["m"] / (1 - beta1 ** s["t"]), s["largest"] / (1 - beta2 ** s["t"])
    return p - lr * weight_decay * p - lr * mean / (np.sqrt(square) + epsilon)


adamw, amsgrad = partial(adam, weight_decay=0.01), partial(adam, amsgrad=True)

#: Stepper, formula, its default learning rate, and options beside the defaults.
FORMULAS = [
    (SgdStepper, sgd, 0.1, {}),
    (MomentumStepper, momentum, 0.1, {"momentum": 0.9}),
    (MomentumStepper, momentum, 0.1, {"momentum": 0.9, "scale_learning_rate": False}),
    (NesterovStepper, nesterov, 0.1, {"momentum": 0.9}),
    (NesterovStepper, nesterov, 0.1, {"momentum": 0.5, "scale_learning_rate": False}),
    (RMSPropStepper, rmsprop, 0.01, {"decay": 0.5, "epsilon": 0.1}),
    (AdagradStepper, adagrad, 0.01, {"epsilon": 0.1}),
    (AdadeltaStepper, adadelta, 1.0, {"decay": 0.5, "epsilon": 0.1}),
    (AdamStepper, adam, 0.001, {"beta1": 0.5, "beta2": 0.7, "epsilon": 0.1}),
    (AdamWStepper, adamw, 0.001, {"weight_decay": 0.5}),
    (AmsGradStepper, amsgrad, 0.001, {"beta2": 0.5}),
    (CenteredRMSPropStepper, centered_rmsprop, 0.01, {"decay": 0.5, "epsilon": 0.1}),
    (CenteredRMSPropStepper, centered_rmsprop, 0.01, {"momentum": 0.3}),
]
DEFAULT_RATES = {cls: rate for cls, _, rate, _ in FORMULAS}
UPDATING = list(DEFAULT_RATES)


@pytest.mark.parametrize(("cls", "formula", "rate", "options"), FORMULAS)
@pytest.mark.parametrize(
    ("is_default", "changes", "handler", "rtol"),
    [
        *((*which, NumpyHandler(np.float64), 1e-12) for which in product((True, False), repeat=2)),
        (False, True, DebugHandler(NumpyHandler(np.float64)), 1e-12),
        (False, True, NumpyHandler(np.float32), 1e-4),
    ],
)
def test_formula_with_default_learning_rate(
    cls, formula, rate, options, is_default, changes, handler, rtol
):
    """And with one that changes; the gradients are left for hooks."""
    options = {} if is_default else options
    (net, stepper), gradient = started(cls(**options), 5, handler), gradient_of(handler)
    rates = [0.3 * 0.8**step if changes else rate for step in range(STEPS)]
    expected = start = net.get("parameters")
    state = defaultdict(float)
    for used in rates:
        if changes:
            stepper.learning_rate = used
        before = net.get("parameters")
        stepper.run()
        if cls is not NesterovStepper:  # whose gradients are those of another point
            np.testing.assert_allclose(net.get("gradients"), gradient(before), rtol)
        expected = formula(state, expected, gradient, used, **options)
    np.testing.assert_allclose(net.get("parameters"), expected, rtol)
    assert not np.allclose(expected, start, atol=1e-6)


@pytest.mark.parametrize("cls", UPDATING)
def test_a_step_allocates_nothing_of_the_size_of_the_parameters(cls):
    size = 20_000
    _, stepper = started(cls(), size)
    stepper.run()
    with takes_less_than(8 * size):
        for _ in range(3):
            stepper.run()


# -- state ---------------------------------------------------------------------------------------


def test_a_restored_state_is_not_lost_before_start():
    _, stepper = started(MomentumStepper(0.2, momentum=0.9))
    again = MomentumStepper()
    again.set_state(MomentumStepper(momentum=0.5).get_state())  # taken before a start
    again.start(network())
    assert again.momentum == 0.5
    stepper.run()
    again.set_state(stepper.get_state())
    assert again.learning_rate == 0.2
    again.learning_rate = 0.3
    state = again.get_state()
    assert (state["steps"], state["learning_rate"], state["momentum"]) == (1, 0.3, 0.9)
    np.testing.assert_array_equal(state["velocity"], stepper.state["velocity"])


class FailingReducer:
    is_in_step = True

    def start(self, stepper):
        raise TrainingError("no connection")


def of_another_network():
    accumulation = GradientAccumulation(2)
    accumulation.set_state({"given": 1, "sequences": 5, "total": np.zeros(1)})
    return accumulation


#: A part of a stepper with which it cannot start.
WRONG = {
    "groups": lambda: [ParameterGroup("Nothing")],
    "accumulation": of_another_network,
    "reducer": FailingReducer,  # which comes last
}


@pytest.mark.parametrize("name", WRONG)
def test_a_start_that_fails_leaves_the_stepper_as_it_was(name):
    """Also its helpers, which start before it turns out that the last one cannot."""

    def make():
        parts = {"loss_scaling": LossScaling(), "accumulation": GradientAccumulation(2)}
        return given(MomentumStepper(0.2, 0.9), **parts)

    def fail_to_start(stepper):
        state, right = stepper.get_state(), getattr(stepper, name)
        vars(stepper)[name] = WRONG[name]()
        with pytest.raises(TrainingError, match="Nothing|another network|no connection"):
            stepper.start(network())
        vars(stepper)[name] = right
        np.testing.assert_equal(stepper.get_state(), state)

    (net, stepper), (expected, undisturbed), new = started(make()), started(make()), make()
    fail_to_start(make())
    for _ in range(4):
        undisturbed.run()
        stepper.run()
        fail_to_start(stepper)
    np.testing.assert_array_equal(net.get("parameters"), expected.get("parameters"))
    new.set_state(stepper.get_state())
    fail_to_start(new)
    new.start(network())
    np.testing.assert_equal(new.get_state(), stepper.get_state())


def test_a_step_that_is_refused_is_not_counted():
    _, stepper = started(given(SgdStepper(), groups=[ParameterGroup("*")]))
    stepper.groups[0].frozen = True
    with refused("ParameterGroup, frozen: expected parameters to train"):
        stepper.run()
    stepper.groups[0].frozen = False
    stepper.run()
    assert stepper.steps == 1


def test_a_state_goes_through_a_file(tmp_path):
    _, stepper = started(AdamStepper(0.2))
    stepper.loss_scaling = LossScaling(initial=8.0)
    stepper.run()
    path = tmp_path / "state.hdf5"
    save_data(path, stepper.get_state())
    again = AdamStepper()
    again.loss_scaling = LossScaling()
    again.set_state({**load_data(path), "loss_scaling": load_data(path, "loss_scaling")})
    _, again = started(again)
    np.testing.assert_equal(again.get_state(), stepper.get_state())


def test_foreign_states_are_refused():
    _, stepper = started(AdamStepper())
    with pytest.raises(
        TrainingError,
        match=r"SgdStepper.set_state: expected learning_rate, steps, got beta1, beta2, epsilon, "
        r"first_moment, .* Is it the state of another stepper\?",
    ):
        SgdStepper().set_state(stepper.get_state())


# -- hyperparameters -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [-0.1, math.nan, math.inf, "0.1", None, True, np.zeros(2), 10**400],
    ids=lambda bad: str(bad)[:9],
)
def test_numbers_are_checked_when_they_are_given_and_when_they_are_changed(bad):
    for cls in UPDATING:
        text = rf"{cls.__name__}.learning_rate: expected a number in \[0, 3.40282e\+38\], got "
        with pytest.raises(TrainingError, match=text):
            cls(learning_rate=bad)
        stepper = cls()
        with pytest.raises(TrainingError, match=text):
            stepper.learning_rate = bad
        assert stepper.learning_rate == DEFAULT_RATES[cls]
    with refused("SgdStepper.max_gradient_norm: expected a number in"):
        SgdStepper(1.0).max_gradient_norm = 0 if bad is None else bad  # None: no limit


FRACTIONS = {
    "momentum": (MomentumStepper, NesterovStepper, CenteredRMSPropStepper),
    "decay": (RMSPropStepper, AdadeltaStepper),
    "beta1": (AdamStepper, AdamWStepper),
    "beta2": (AdamStepper, AdamWStepper),
}


@pytest.mark.parametrize("name", FRACTIONS)
def test_fractions_are_checked(name):
    for cls in FRACTIONS[name]:
        with refused(f"{cls.__name__}.{name}: expected a number in [0, 1), got 1"):
            cls(**{name: 1.0})


# -- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("training_pass", [False, True])
def test_forward_stepper_only_looks(training_pass):
    net, stepper = started(ForwardStepper(use_training_pass=training_pass))
    before, passes = net.get("parameters"), []
    net.forward_pass = lambda training_pass: passes.append(training_pass)
    net.backward_pass = lambda: passes.append("backward")
    stepper.run()
    assert passes == [training_pass]
    np.testing.assert_array_equal(net.get("parameters"), before)
    assert ForwardStepper().use_training_pass is False


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
    start = net.get("parameters")
    stepper.run()
    expected = start - 0.01 * np.sign(gradient_of()(start))
    np.testing.assert_allclose(net.get("parameters"), expected)


def test_numbers_may_be_divided_by_what_is_0_before_the_first_step():
    class Correcting(SignStepper):
        def scalars(self):
            return {"rate": self.learning_rate / (1 - 0.9**self.steps)}

    net, stepper = started(Correcting())
    stepper.groups = [ParameterGroup("*", learning_rate_factor=0.5)]
    start = net.get("parameters")
    stepper.run()
    expected = start - 0.05 * np.sign(gradient_of()(start))
    np.testing.assert_allclose(net.get("parameters"), expected)


class InAnotherOrder(SignStepper):
    state_names = ("velocity",)
    rule = formula(lambda p, g, rate, velocity: [p - rate * g, velocity])


def test_a_formula_takes_state_and_numbers_in_their_order():
    text = "InAnotherOrder.rule: expected the arguments velocity, rate behind the .*got rate, vel"
    with pytest.raises(TrainingError, match=text):
        started(InAnotherOrder())


@pytest.mark.parametrize("names", [("steps",), ("learning_rate",), "velocity"])
def test_names_of_states_are_checked(names):
    text = "Named.state_names: expected names such as ('mean',), none of them learning_rate, steps"
    with refused(text, TrainingError):
        type("Named", (SignStepper,), {"state_names": names})


@pytest.mark.parametrize(
    "part",
    [{"accumulation": GradientAccumulation(2)}, {"reducer": SimpleNamespace(is_in_step=True)}],
)
def test_a_step_of_ones_own_is_not_left_out(part):
    class Twice(SignStepper):
        def step(self):
            super().step()
            super().step()

    net, stepper = started(Twice())
    start = net.get("parameters")
    stepper.run()
    after = net.get("parameters")
    assert np.abs(after - start).max() == pytest.approx(0.02)
    for name, value in part.items():
        setattr(stepper, name, value)
    with refused("Twice.run: expected neither accumulation nor reducer, with which its own method"):
        stepper.run()
    assert stepper.steps == 1
    np.testing.assert_array_equal(net.get("parameters"), after)


def test_every_stepper_is_tested_here():
    public = {getattr(training, n) for n in training.__all__ if n.endswith("Stepper")}
    assert public == {TrainingStepper, ForwardStepper, *UPDATING}
    with pytest.raises(NotImplementedError, match="TrainingStepper defines neither rule nor upd"):
        TrainingStepper().update()


def test_description_of_the_parts_of_a_step():
    stepper = AdamStepper(0.01)
    stepper.max_gradient_norm, stepper.accumulation = 2.0, GradientAccumulation(4)
    stepper.loss_scaling = LossScaling(initial=100, growth_interval=7)
    stepper.groups = [ParameterGroup(["Conv*"], 0.5), ParameterGroup("*", frozen=True)]
    description = json.loads(json.dumps(get_description(stepper)))
    parts = {
        "max_gradient_norm": 2.0,
        "loss_scaling": {"@type": "LossScaling", "initial": 128.0, "growth_interval": 7},
        "accumulation": {"@type": "GradientAccumulation", "batches": 4},
        "groups": [
            {"@type": "ParameterGroup", "paths": ["Conv*"], "learning_rate_factor": 0.5},
            {"@type": "ParameterGroup", "paths": "*", "frozen": True},
        ],
    }
    assert parts.items() <= description.items()
    assert not parts.keys() & get_description(AdamStepper())
    again = create_from_description(description)
    assert again.max_gradient_norm == 2.0
    assert again.loss_scaling.scale == 128.0
    assert again.accumulation.get_state() == {"given": 0, "sequences": 0}
    assert [group.frozen for group in again.groups] == [False, True]


# -- the norm of all gradients --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "limit", "scaled", "rtol"),
    [  # the last ones have norms that no float has
        ([3e30, -4e30], 5.0, [3.0, -4.0], 1e-6),
        ([3.0, 1.0], 5.0, [3.0, 1.0], 0),
        ([0.0, 0.0], 5.0, [0.0, 0.0], 0),
        *(([x] * 400, x / 100, [x / 2000] * 400, 1e-3) for x in (1e38, 3.4e38, 1e-38)),
    ],
    ids=["too large", "within the limit", "zero", "1e38", "3.4e38", "1e-38"],
)
def test_gradients_of_any_size_are_scaled(values, limit, scaled, rtol):
    handler = NumpyHandler(np.float32)
    g, limit = (handler.create_from_numpy(np.array(a, np.float32)) for a in (values, [limit]))
    handler.compute(within_norm, [g, limit], [g])
    np.testing.assert_allclose(handler.get_numpy_copy(g), scaled, rtol)


def test_a_stepper_must_be_started_and_again_after_its_state_was_set():
    _, stepper = started(SgdStepper(0.1))
    stepper.set_state(stepper.get_state())
    for each, when in ((SgdStepper(0.1), "before it"), (stepper, "after set_state")):
        for step in (each.run, each.apply):
            with refused(f"SgdStepper.run: expected start(net) {when}.", is_whole=True):
                step()


@pytest.mark.parametrize("handler", [NumpyHandler, NativeHandler])
@pytest.mark.parametrize("stepper", [MomentumStepper(0.1, 0.9), AdamStepper(0.1)])
def test_an_update_after_passes_of_ones_own_is_that_of_a_step(stepper, handler):
    stepper.max_gradient_norm, stepper.groups = 0.5, [ParameterGroup("A", weight_decay=0.1)]
    results = []
    for is_own in (False, True):
        net = trainable(FullyConnected(3, "tanh", name="A"), handler=handler(np.float64))
        net.provide_external_data(batch_for(2, 5))
        stepper.start(net)
        for _ in range(3):
            if is_own:
                net.forward_pass(training_pass=True)
                net.backward_pass()
                stepper.apply()
            else:
                stepper.run()
        assert stepper.steps == 3
        results.append((net.get("parameters"), stepper.get_state()))
    np.testing.assert_equal(*results)


def test_no_update_without_the_passes_that_belong_to_it():
    accumulating = SgdStepper(0.1)
    accumulating.accumulation = GradientAccumulation(2)
    for stepper in (NesterovStepper(0.1), ForwardStepper(), accumulating):
        _, stepper = started(stepper)
        text = f"{type(stepper).__name__}.apply: expected a stepper that updates after one backward"
        with refused(text):
            stepper.apply()


def test_gradients_are_scaled_to_the_largest_norm_which_may_change_while_training():
    (net, stepper), gradient_at = started(SgdStepper(1.0)), gradient_of()
    for limit in (None, 0.25, 1e30, 0.125, None):
        stepper.max_gradient_norm = limit
        before = net.get("parameters")
        gradient = gradient_at(before)
        stepper.run()
        step = before - net.get("parameters")
        factor = min(1.0, (limit or math.inf) / np.linalg.norm(gradient))
        np.testing.assert_allclose(step, factor * gradient, rtol=1e-12)


def test_what_cannot_learn():
    inp = Input({"default": ("T", "B", 3), "targets": ("T", "B", 1)})
    last, out = FullyConnected(2, "linear", name="Last"), SoftmaxCE(name="Out")
    inp >> last >> out
    inp - "targets" >> "targets" - out
    with refused("expected a network with a Loss layer, got none: there"):
        SgdStepper().start(Network.from_layer(inp))
    ForwardStepper().start(Network.from_layer(inp))
    out - "loss" >> Loss()
    net = Network.from_layer(inp)
    text = (
        "SgdStepper.start: expected parameters to begin with, got zeros only. Call net.initialize"
    )
    with refused(text):
        SgdStepper().start(net)
    net.initialize(0)
    SgdStepper().start(net)
    other = Network.from_layer(inp)
    other.buffer.Last.parameters.W[:] = 1
    SgdStepper().start(other)
    fixed = Input({"default": ("T", "B", 3)})
    fixed >> Elementwise("tanh") >> Loss()
    with refused("expected a network with parameters, got none: there is nothing to learn"):
        AdamStepper().start(Network.from_layer(fixed))


@pytest.mark.parametrize(
    ("part", "wrong", "text"),
    [
        ("accumulation", 8, "a GradientAccumulation or None, got 8."),
        ("accumulation", GradientAccumulation, "a GradientAccumulation or None, got the class"),
        ("loss_scaling", True, "a LossScaling or None, got True."),
    ],
)
def test_parts_of_a_step_are_of_their_kind(part, wrong, text):
    stepper = SgdStepper()
    with refused(f"SgdStepper.{part}: expected {text}"):
        setattr(stepper, part, wrong)
    assert getattr(stepper, part) is None


@pytest.mark.parametrize(
    ("owner", "name", "text"),
    [
        (SgdStepper(), "max_grad_norm", "SgdStepper: unknown attribute 'max_grad_norm'. Choices "
         "are: learning_rate, max_gradient_norm, loss_scaling, accumulation, groups. Did you mean "
         "'max_gradient_norm'?"),
        (ParameterGroup("*"), "learning_rate", "ParameterGroup: unknown attribute 'learning_rate'. "
         "Choices are: paths, learning_rate_factor, "),
        (Trainer(SgdStepper()), "train_scorer", "Trainer: unknown attribute 'train_scorer'. "
         "Choices are: stepper, verbose, hooks, train_scorers. Did you mean 'train_scorers'?"),
        (MonitorLoss("x"), "intervall", "MonitorLoss: unknown attribute 'intervall'. Choices are: "
         "iter_name, timescale, interval, verbose, priority. Did you mean 'interval'?"),
        (Undivided(default=np.zeros((1, 1, 1))), "datta", "Undivided: unknown attribute 'datta'."),
        (Accuracy(), "name", "Accuracy: 'name' can only be given to the constructor."),
        (Accuracy(), "type", "Accuracy: unknown attribute 'type'. Choices are: out_name, "),
        (NumpyHandler(), "compute", "NumpyHandler: compute is a method: call compute(...)."),
        (NumpyHandler(), "mro", "NumpyHandler: unknown attribute 'mro'. Choices are: dtype, "),
        (build("mlp", NumpyHandler()), "output_nam", "Network: unknown attribute 'output_nam'."),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_settings_that_do_not_exist_are_refused(owner, name, text):
    with pytest.raises(ValidationError, match=re.escape(text)):
        setattr(owner, name, 1.0)
    own = object.__new__(type("Own", (type(owner),), {"__module__": "own"}))
    if "is a method" in text:
        with refused(f"Own: {name} is a method: give the attribute another name.", ValidationError):
            setattr(own, name, 1.0)
    else:
        setattr(own, name, 1.0)
        assert getattr(own, name) == 1.0
