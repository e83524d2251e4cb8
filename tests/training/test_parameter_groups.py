"""Parameter groups: every group is what a stepper of its own would do to its parameters."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from brainstorm.errors import TrainingError
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.layers import BatchNorm, FullyConnected, Lstm
from brainstorm.training import (
    AdamStepper,
    AdamWStepper,
    AmsGradStepper,
    ForwardStepper,
    MomentumStepper,
    NesterovStepper,
    ParameterGroup,
    SgdStepper,
)
from brainstorm.value_modifiers import L2Decay
from tests.networks import batch_for, numerical_gradients, run_passes, trainable
from tests.trainings import LEARNING


def network(handler=None):
    return trainable(FullyConnected(6, "tanh", name="Dense"), Lstm(5, name="Lstm"), handler=handler)


def batch(number):
    return batch_for(3, 4, number)


def assert_close(found, expected, rtol=1e-12, atol=0.0):
    assert set(found) == set(expected)
    for path, values in expected.items():
        np.testing.assert_allclose(found[path], values, rtol, atol, err_msg=path)


def train(stepper, net=None, count=6, before=lambda number: None):
    net = net or network()
    stepper.start(net)
    for number in range(count):
        before(number)
        net.provide_external_data(batch(number))
        stepper.run()
    return {path: net.get(path) for path in net.parameter_slices}


def grouped(stepper, *groups):
    stepper.groups = groups
    return stepper


def one_step_from(stepper, paths):
    """Return the named parameters after one step of a stepper without groups."""
    values = train(stepper, count=1)
    return {path: values[path] for path in values if any(p in path for p in paths)}


def test_slices_are_the_places_of_the_parameters():
    net = network()
    assert sum(place.stop - place.start for place in net.parameter_slices.values()) == (
        net.parameters_size
    )
    for path, place in net.parameter_slices.items():
        assert np.array_equal(net.get("parameters")[place], net.get(path).ravel())


@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
def test_groups_that_change_nothing_change_nothing(make, replay):
    plain = train(make())
    same = train(grouped(make(), ParameterGroup("Lstm"), ParameterGroup("*.bias")))
    assert all(np.array_equal(plain[path], same[path]) for path in plain)


@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
def test_every_group_has_its_own_learning_rate(make):
    slow = make()
    slow.learning_rate *= 0.25
    stepper = grouped(make(), ParameterGroup("Lstm", learning_rate_factor=0.25))
    found = train(stepper, count=1)
    assert_close(
        found, {**one_step_from(make(), ["Dense", "Proj"]), **one_step_from(slow, ["Lstm"])}
    )


@pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
def test_frozen_parameters_stay(make, replay):
    first = {path: network().get(path) for path in network().parameter_slices}
    found = train(grouped(make(), ParameterGroup(["Dense", "Lstm.*.R*"], frozen=True)))
    for path, values in found.items():
        frozen = path.startswith(("Dense", "Lstm.parameters.R"))
        assert np.array_equal(values, first[path]) == frozen, path


def with_statistics(**options):
    return trainable(FullyConnected(6, "tanh", name="Dense"), BatchNorm(name="Norm"), **options)


def normalized(**options):
    """Return running statistics and output of a training pass before and after two updates."""
    net = with_statistics(handler=NumpyHandler(np.float32))
    net.handler.set_from_numpy(net.buffer.Norm.internals.running_mean, np.arange(6.0))
    stepper = grouped(SgdStepper(0.1), ParameterGroup("Norm", **options))
    statistics = [net.get(f"Norm.internals.running_{what}") for what in ("mean", "var")]
    train(stepper, net, count=2)
    found = [net.get(f"Norm.internals.running_{what}") for what in ("mean", "var")]
    changes = not np.array_equal(statistics, found)
    net.forward_pass(training_pass=True)
    training = net.get("Norm.outputs.default")
    net.forward_pass()
    return net, stepper, changes, np.array_equal(training, net.get("Norm.outputs.default"))


@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_stay_and_are_used_where_the_group_says_so(frozen, replay):
    assert normalized(frozen=frozen)[2:] == (True, False)
    net, stepper, changes, same = normalized(frozen=frozen, keep_statistics=True)
    assert not changes
    assert same
    gamma = net.get("Norm.parameters.gamma")
    train(SgdStepper(0.1), net, count=1)  # which has no groups
    assert not np.array_equal(net.get("Norm.parameters.gamma"), gamma)
    mean = net.get("Norm.internals.running_mean")
    assert not np.array_equal(mean, np.arange(6.0))
    stepper.start(net)
    for keeps in (True, False):
        stepper.groups[0].keep_statistics = keeps
        net.provide_external_data(batch(9))
        stepper.run()
        assert np.array_equal(net.get("Norm.internals.running_mean"), mean) == keeps


def test_gradients_with_kept_statistics_are_those_of_the_pass():
    net = with_statistics()
    stepper = grouped(SgdStepper(0.0), ParameterGroup("Norm", keep_statistics=True))
    stepper.start(net)
    gradients = run_passes(net, batch(1))
    np.testing.assert_allclose(gradients, numerical_gradients(net), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", [AdamStepper, AdamWStepper, AmsGradStepper])
@pytest.mark.parametrize("removes", [False, True])
def test_what_is_unfrozen_begins_as_in_a_training_of_its_own(make, removes, replay):
    stepper = grouped(make(), ParameterGroup("Dense", frozen=True))
    net = network()
    train(stepper, net, count=20)
    if removes:
        stepper.groups = []
    else:
        stepper.groups[0].frozen = False
    fresh, other = make(), net.copy()
    fresh.start(other)
    for number in range(3):  # then their updates differ, as those of the rest do from the first
        others = {p: net.get(p) for p in net.parameter_slices if not p.startswith("Dense")}
        for path, values in others.items():
            other.handler.set_from_numpy(other.buffer[path], values)
        for each, its_net in ((stepper, net), (fresh, other)):
            its_net.provide_external_data(batch(number))
            each.run()
        for path in ("Dense.parameters.W", "Dense.parameters.bias"):
            np.testing.assert_allclose(net.get(path), other.get(path), rtol=1e-9)
    again = make()
    again.set_state(stepper.get_state())
    again.start(net)
    for name in ("first_weight", "second_weight"):
        values = stepper.get_state()[name]
        assert np.unique(values).size == 2
        assert np.array_equal(again.get_state()[name], values)


def test_weights_of_another_network_are_refused():
    stepper = AdamStepper()
    train(stepper, count=1)
    state = stepper.get_state()
    stepper.set_state({**state, "first_weight": np.zeros(3)})
    text = (
        r"AdamStepper.start, state 'first_weight': expected shape \(19,\) like the parameters, got"
    )
    with pytest.raises(TrainingError, match=text):
        stepper.start(network())


def test_frozen_gradients_do_not_count_for_the_norm():
    net = network()
    stepper = grouped(SgdStepper(0.1), ParameterGroup("Dense", frozen=True))
    stepper.max_gradient_norm = 0.01
    train(stepper, net, count=1)
    assert np.linalg.norm(net.get("gradients")) == pytest.approx(0.01, rel=1e-9)
    assert not net.get("gradients")[net.parameter_slices["Dense.parameters.W"]].any()


@pytest.mark.parametrize("name", sorted(LEARNING.keys() - {"AdamWStepper"}))
def test_decay_is_that_of_the_gradient_modifier(name):
    modified = network()
    modified.set_gradient_modifiers({"Dense": {"W": L2Decay(0.3)}})
    found = train(grouped(LEARNING[name](), ParameterGroup("Dense.*.W", weight_decay=0.3)))
    assert_close(found, train(LEARNING[name](), modified), rtol=1e-9, atol=1e-12)


def test_the_decay_of_adamw_is_its_own():
    found = train(grouped(AdamWStepper(), ParameterGroup("*", weight_decay=0)))
    assert_close(found, train(AdamWStepper(weight_decay=0.0)))


def test_the_first_group_that_names_a_parameter_counts():
    groups = ParameterGroup("*.bias", frozen=True), ParameterGroup("Dense", weight_decay=5.0)
    first = network().get("Dense.parameters.bias")
    assert np.array_equal(train(grouped(SgdStepper(), *groups))["Dense.parameters.bias"], first)


def test_groups_can_change_while_training():
    stepper = grouped(MomentumStepper(0.1, 0.9), ParameterGroup("Dense", frozen=True))
    net, seen = network(), []

    def change(number):
        seen.append(net.get("Dense.parameters.W"))
        if number == 3:
            stepper.groups[0].frozen = False
        if number == 5:
            stepper.groups = [ParameterGroup("Dense", frozen=True), ParameterGroup("Lstm")]
        if number == 7:
            del stepper.groups[0]
        if number == 8:
            stepper.groups.append(ParameterGroup("D*", frozen=True))

    train(stepper, net, 10, change)
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
    assert moved == [False, False, False, True, True, False, False, True, False]


def test_groups_that_fit_nothing_are_refused_and_the_others_stay():
    net = network()
    stepper = grouped(MomentumStepper(0.1, 0.9), ParameterGroup("Dense", frozen=True))
    train(stepper, net, 2)
    first = net.get("Dense.parameters.W")
    with pytest.raises(TrainingError, match="unknown path of a parameter 'Dens'"):
        stepper.groups = [ParameterGroup("Lstm"), ParameterGroup("Dens")]
    assert [group.paths for group in stepper.groups] == ["Dense"]
    for _ in range(3):
        stepper.run()
    assert np.array_equal(net.get("Dense.parameters.W"), first)


def test_schedules_reach_all_groups():
    def run(*groups):
        stepper = grouped(SgdStepper(0.5), *groups)
        return train(stepper, before=lambda n: setattr(stepper, "learning_rate", 0.5 / (1 + n)))

    found = run(ParameterGroup("Lstm", learning_rate_factor=0.0))
    assert np.array_equal(found["Lstm.parameters.Wz"], network().get("Lstm.parameters.Wz"))
    halved = SgdStepper(0.25)
    expected = train(halved, before=lambda n: setattr(halved, "learning_rate", 0.25 / (1 + n)))
    assert_close(run(ParameterGroup("*", learning_rate_factor=0.5)), expected)


@pytest.mark.parametrize("handler", [NumpyHandler, NativeHandler])
def test_plans_and_handlers_agree(handler):
    groups = (
        ParameterGroup("Dense", learning_rate_factor=0.5, weight_decay=0.1),
        ParameterGroup("*.bias", frozen=True),
    )
    found = train(grouped(NesterovStepper(0.1, 0.9), *groups), network(handler(np.float32)))
    assert_close(found, train(grouped(NesterovStepper(0.1, 0.9), *groups)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (
            lambda: grouped(SgdStepper(), ParameterGroup("Dens")).start(network()),
            "ParameterGroup('Dens'): unknown path of a parameter 'Dens'. Choices are: "
            "Dense.parameters.W, Dense.parameters.bias, ",
        ),
        (
            lambda: grouped(SgdStepper(), {"Dense": 1}),
            "SgdStepper.groups: expected ParameterGroups, got {'Dense': 1}.",
        ),
        (
            lambda: setattr(SgdStepper(), "groups", ParameterGroup("Dense")),
            "SgdStepper.groups: expected a list of ParameterGroups, got ParameterGroup(paths='De",
        ),
        (
            lambda: grouped(ForwardStepper(), ParameterGroup("*", learning_rate_factor=0.5)),
            "ForwardStepper.groups, ParameterGroup('*'): this stepper has no learning_rate for "
            "its learning_rate_factor.",
        ),
        *(
            (
                lambda name=name, bad=bad: ParameterGroup("*", **{name: bad}),
                f"ParameterGroup.{name}: expected a number in [0, 3.40282e+38]",
            )
            for name, bad in (("learning_rate_factor", -1), ("weight_decay", np.nan))
        ),
    ],
)
def test_errors(act, text):
    with pytest.raises(TrainingError, match=re.escape(text)):
        act()


def test_a_start_that_fails_loses_no_state():
    net, first, second = network(), AdamStepper(0.1), AdamStepper(0.1)
    net.provide_external_data(batch_for(2, 3))
    first.start(net)
    first.run()
    second.set_state(state := first.get_state())
    with pytest.raises(TrainingError, match="Is it the state of another network"):
        second.start(trainable(FullyConnected(9)))
    second.groups = [ParameterGroup("Nowhere")]
    with pytest.raises(TrainingError, match="unknown path of a parameter 'Nowhere'"):
        second.start(net)
    second.groups = []
    second.start(net)
    np.testing.assert_equal(second.get_state(), state)
