"""Parameter groups: every group is what a stepper of its own would do to its parameters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from brainstorm.errors import NetworkValidationError
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
from tests.networks import batch_for, numerical_gradients, provide, run_passes, trainable
from tests.trainings import LEARNING, given, refused, run_steps

every_stepper = pytest.mark.parametrize("make", LEARNING.values(), ids=LEARNING)
FROZEN = ParameterGroup("Dense", frozen=True)


def network(handler=None):
    return trainable(FullyConnected(6, "tanh", name="Dense"), Lstm(5, name="Lstm"), handler=handler)


def sharing():
    first, second = FullyConnected(6, name="A"), FullyConnected(6, name="Bq")
    second.share_parameters_with(first)
    return trainable(FullyConnected(6), first, second)


def values_of(net):
    return {path: net.get(path) for path in net.parameter_slices}


def assert_close(found, expected, rtol=1e-12, atol=0.0):
    assert set(found) == set(expected)
    for path, values in expected.items():
        np.testing.assert_allclose(found[path], values, rtol, atol, err_msg=path)


def train(stepper, net=None, count=6, before=lambda number: None):
    net = net or network()
    stepper.start(net)
    for number in range(count):
        before(number)
        run_steps(net, stepper, [batch_for(seed=number)])
    return values_of(net)


def grouped(stepper, *groups):
    return given(stepper, groups=[*groups])


def with_statistics(**options):
    return trainable(FullyConnected(6, "tanh", name="Dense"), BatchNorm(name="Norm"), **options)


# -- what a group is given ------------------------------------------------------------------------


@every_stepper
def test_groups_that_change_nothing_change_nothing(make, replay):
    plain = train(make())
    same = train(grouped(make(), ParameterGroup("Lstm"), ParameterGroup("*.bias")))
    assert all(np.array_equal(plain[path], same[path]) for path in plain)


@every_stepper
def test_every_group_has_its_own_learning_rate(make):
    slow = make()
    slow.learning_rate *= 0.25
    found = train(grouped(make(), ParameterGroup("Lstm", learning_rate_factor=0.25)), count=1)
    own, expected = train(slow, count=1), train(make(), count=1)
    expected |= {path: own[path] for path in own if path.startswith("Lstm")}
    assert_close(found, expected)


@every_stepper
def test_frozen_parameters_stay(make, replay):
    first = values_of(network())
    found = train(grouped(make(), ParameterGroup(["Dense", "Lstm.*.R*"], frozen=True)))
    for path, values in found.items():
        frozen = path.startswith(("Dense", "Lstm.parameters.R"))
        assert np.array_equal(values, first[path]) == frozen, path


@pytest.mark.parametrize("name", sorted(LEARNING.keys() - {"AdamWStepper"}))
def test_decay_is_that_of_the_gradient_modifier(name):
    modified = network()
    modified.set_gradient_modifiers({"Dense": {"W": L2Decay(0.3)}})
    found = train(grouped(LEARNING[name](), ParameterGroup("Dense.*.W", weight_decay=0.3)))
    assert_close(found, train(LEARNING[name](), modified), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_decay_of_adamw_is_its_own(decay):
    found = train(grouped(AdamWStepper(), ParameterGroup("*", weight_decay=decay)))
    assert_close(found, train(AdamWStepper(weight_decay=decay)))


def test_the_first_group_that_names_a_parameter_counts():
    groups = ParameterGroup("*.bias", frozen=True), ParameterGroup("Dense", weight_decay=5.0)
    first = network().get("Dense.parameters.bias")
    assert np.array_equal(train(grouped(SgdStepper(), *groups))["Dense.parameters.bias"], first)


def test_schedules_reach_all_groups():
    def run(rate, *groups):
        stepper = grouped(SgdStepper(), *groups)
        return train(stepper, before=lambda n: given(stepper, learning_rate=rate / (1 + n)))

    found = run(0.5, ParameterGroup("Lstm", learning_rate_factor=0.0))
    assert np.array_equal(found["Lstm.parameters.Wz"], network().get("Lstm.parameters.Wz"))
    assert_close(run(0.5, ParameterGroup("*", learning_rate_factor=0.5)), run(0.25))


@pytest.mark.parametrize("handler", [NumpyHandler, NativeHandler])
def test_plans_and_handlers_agree(handler):
    groups = (
        ParameterGroup("Dense", learning_rate_factor=0.5, weight_decay=0.1),
        ParameterGroup("*.bias", frozen=True),
    )
    found = train(grouped(NesterovStepper(0.1, 0.9), *groups), network(handler(np.float32)))
    assert_close(found, train(grouped(NesterovStepper(0.1, 0.9), *groups)), rtol=1e-3, atol=1e-5)


def test_frozen_gradients_do_not_count_for_the_norm():
    net, frozen = network(), ParameterGroup("Dense", frozen=True, weight_decay=0.3)
    train(given(SgdStepper(0.1), groups=[frozen], max_gradient_norm=0.01), net, count=1)
    assert np.linalg.norm(net.get("gradients")) == pytest.approx(0.01, rel=1e-9)
    assert not net.get("gradients")[net.parameter_slices["Dense.parameters.W"]].any()


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_statistics", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_statistics_stay_and_are_used_where_the_group_says_so(frozen, keep_statistics, replay):
    net = with_statistics(handler=NumpyHandler(np.float32))
    net.handler.set_from_numpy(net.buffer.Norm.internals.running_mean, np.arange(6.0))
    group = ParameterGroup("Norm", frozen=frozen, keep_statistics=keep_statistics)
    stepper, before = grouped(SgdStepper(0.1), group), statistics_of(net)
    train(stepper, net, count=2)
    assert np.array_equal(before, statistics_of(net)) == keep_statistics
    outputs = []
    for training_pass in (True, False):
        net.forward_pass(training_pass=training_pass)
        outputs.append(net.get("Norm.outputs.default"))
    assert np.array_equal(*outputs) == keep_statistics
    gamma, before = net.get("Norm.parameters.gamma"), statistics_of(net)
    train(SgdStepper(0.1), net, count=1)  # which has no groups
    assert not np.array_equal(net.get("Norm.parameters.gamma"), gamma)
    assert not np.array_equal(before, statistics_of(net))
    stepper.start(net)
    for group.keep_statistics in (True, False):
        before = statistics_of(net)
        run_steps(net, stepper, [batch_for(seed=9)])
        assert np.array_equal(before, statistics_of(net)) == group.keep_statistics


def statistics_of(net):
    return [net.get(f"Norm.internals.running_{what}") for what in ("mean", "var")]


def test_gradients_with_kept_statistics_are_those_of_the_pass():
    net = with_statistics()
    grouped(SgdStepper(0.0), ParameterGroup("Norm", keep_statistics=True)).start(net)
    gradients = run_passes(net, batch_for(seed=1))
    np.testing.assert_allclose(gradients, numerical_gradients(net), rtol=1e-6, atol=1e-9)


def test_each_of_two_steppers_decides_for_its_own_steps_whether_statistics_stay(replay):
    net = with_statistics(handler=NumpyHandler(np.float32))
    keeping = grouped(SgdStepper(0.1), ParameterGroup("Norm", keep_statistics=True))
    following = SgdStepper(0.1)
    for stepper in (keeping, following):
        stepper.start(net)
    for stepper in (keeping, keeping, following, keeping):
        before = statistics_of(net)
        run_steps(net, stepper, [batch_for(seed=9)])
        assert np.array_equal(before, statistics_of(net)) == (stepper is keeping)


def test_a_plan_of_a_training_pass_is_repeated_only_if_statistics_still_stay_or_not():
    net, following = with_statistics(), SgdStepper(0.1)
    following.start(net)
    provide(net)
    plan, forward_plan = net.plan(), net.plan(training_pass=False)
    grouped(SgdStepper(0.1), ParameterGroup("Norm", keep_statistics=True)).start(net)
    forward_plan.replay()
    with pytest.raises(NetworkValidationError, match="Make another plan"):
        plan.replay()
    following.start(net)
    plan.replay()


def test_two_steppers_that_alternate_keep_their_traces():
    net, steppers = with_statistics(), (SgdStepper(0.1), SgdStepper(0.1))
    steppers[0].groups = [ParameterGroup("Norm", keep_statistics=True)]
    for stepper in steppers:
        stepper.start(net)
    kept = []
    for _ in range(3):
        for stepper in steppers:
            run_steps(net, stepper, [batch_for(seed=9)])
        kept.append([id(trace) for s in steppers for trace in s._traces.kept.values()])
    assert len(kept[0]) == 2
    assert kept[0] == kept[1] == kept[2]


def test_layers_that_share_parameters_keep_statistics_together():
    norm, other = BatchNorm(name="Norm"), BatchNorm(name="Other")
    other.share_parameters_with(norm)
    net = trainable(norm, other)
    group = ParameterGroup("Norm", keep_statistics=True)
    for stepper, kept in ((grouped(SgdStepper(0.1), group), True), (SgdStepper(0.1), False)):
        stepper.start(net)
        assert [net.layers[name].keeps_statistics for name in ("Norm", "Other")] == [kept, kept]


# -- changes while training -----------------------------------------------------------------------


@pytest.mark.parametrize("make", [AdamStepper, AdamWStepper, AmsGradStepper])
@pytest.mark.parametrize("removes", [False, True])
def test_what_is_unfrozen_begins_as_in_a_training_of_its_own(make, removes, replay):
    net, stepper = network(), grouped(make(), ParameterGroup("Dense", frozen=True))
    train(stepper, net, count=20)
    if removes:
        stepper.groups = []
    else:
        stepper.groups[0].frozen = False
    fresh, other = make(), net.copy()
    fresh.start(other)
    for number in range(3):  # then their updates differ, as those of the rest do from the first
        for path in net.parameter_slices:
            if not path.startswith("Dense"):
                other.handler.set_from_numpy(other.buffer[path], net.get(path))
        run_steps(net, stepper, [batch_for(seed=number)])
        run_steps(other, fresh, [batch_for(seed=number)])
        for path in ("Dense.parameters.W", "Dense.parameters.bias"):
            np.testing.assert_allclose(net.get(path), other.get(path), rtol=1e-9)
    again = make()
    again.set_state(stepper.get_state())
    again.start(net)
    for name in ("first_weight", "second_weight"):
        values = stepper.get_state()[name]
        assert np.unique(values).size == 2
        assert np.array_equal(again.get_state()[name], values)


def test_groups_can_change_while_training():
    stepper = grouped(MomentumStepper(0.1, 0.9), ParameterGroup("Dense", frozen=True))
    net, seen = network(), []

    def change(number):
        seen.append(net.get("Dense.parameters.W"))
        if number == 3:
            stepper.groups[0].frozen = False
        if number == 5:
            stepper.groups = [FROZEN, ParameterGroup("Lstm")]
        if number == 7:
            del stepper.groups[0]
        if number == 8:
            stepper.groups.append(ParameterGroup("D*", frozen=True))

    train(stepper, net, 10, change)
    moved = [not np.array_equal(a, b) for a, b in itertools.pairwise(seen)]
    assert moved == [False, False, False, True, True, False, False, True, False]


def test_a_part_is_updated_by_the_stepper_itself():
    """What it knows of the network and what it keeps in itself are there in `update`."""

    class CountedUpdates(SgdStepper):
        seen = ()

        def update(self):
            self.seen = (*self.seen, (self.net.batch_size, self.parameters.size))
            super().update()

    stepper, net = CountedUpdates(0.1), network()
    stepper.groups = [ParameterGroup("Dense", learning_rate_factor=0.5)]
    train(stepper, net, 2)
    dense = net.layers["Dense"].parameter_shapes
    size = sum(np.prod(structure.shape) for structure in dense.values())
    assert stepper.seen == ((4, size), (4, net.parameters_size - size)) * 2
    assert stepper.parameters.size == net.parameters_size


def test_a_stepper_that_learns_nothing_may_have_only_frozen_parameters():
    train(grouped(ForwardStepper(), ParameterGroup("*", frozen=True)))


def test_groups_that_fit_nothing_are_refused_and_the_others_stay():
    net, stepper = network(), grouped(MomentumStepper(0.1, 0.9), FROZEN)
    train(stepper, net, 2)
    first = net.get("Dense.parameters.W")
    with refused("unknown path of a parameter 'Dens'"):
        stepper.groups = [ParameterGroup("Lstm"), ParameterGroup("Dens")]
    assert [group.paths for group in stepper.groups] == ["Dense"]
    run_steps(net, stepper, [batch_for(seed=0)] * 3)
    assert np.array_equal(net.get("Dense.parameters.W"), first)


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (
            lambda: grouped(SgdStepper(), ParameterGroup("Dens")).start(network()),
            "ParameterGroup('Dens'): unknown path of a parameter 'Dens'. Choices are: "
            "Dense.parameters.W, Dense.parameters.bias, ",
        ),
        (
            lambda: grouped(SgdStepper(), ParameterGroup("Dense.W")).start(network()),
            " Write 'Dense.parameters.W'.",
        ),
        (
            lambda: grouped(SgdStepper(), ParameterGroup("B*")).start(sharing()),
            " It shares those of 'A'. Name that instead.",
        ),
        (
            lambda: ParameterGroup({"Dense": "bias"}, frozen=True),
            "ParameterGroup.paths: expected a path such as 'Hidden.parameters.W', or a list of "
            "them, got {'Dense': 'bias'}.",
        ),
        (
            lambda: grouped(SgdStepper(), FROZEN, ParameterGroup("Dense")).start(network()),
            "ParameterGroup('Dense'): expected parameters that no group before it names. A "
            "parameter belongs to the first group that names it: put this one first.",
        ),
        (
            lambda: train(grouped(SgdStepper(), FROZEN, ParameterGroup("*", frozen=True))),
            "ParameterGroup, frozen: expected parameters to train, got none: all are in frozen "
            "groups. ForwardStepper(use_training_pass=True) computes running statistics only.",
        ),
        (
            lambda: grouped(SgdStepper(), {"Dense": 1}),
            "SgdStepper.groups: expected ParameterGroups, got {'Dense': 1}.",
        ),
        (
            lambda: given(SgdStepper(), groups=ParameterGroup("Dense")),
            "SgdStepper.groups: expected a list of ParameterGroups, got ParameterGroup(paths='De",
        ),
        (
            lambda: grouped(ForwardStepper(), ParameterGroup("*", learning_rate_factor=0.5)),
            "ForwardStepper.groups, ParameterGroup('*'): this stepper has no learning_rate for "
            "its learning_rate_factor.",
        ),
        (
            lambda: ParameterGroup("*", learning_rate_factor=-1),
            "ParameterGroup.learning_rate_factor: expected a number in [0, 3.40282e+38]",
        ),
        (
            lambda: ParameterGroup("*", weight_decay=np.nan),
            "ParameterGroup.weight_decay: expected a number in [0, 3.40282e+38]",
        ),
    ],
)
def test_errors(act, text):
    with refused(text):
        act()


def test_a_start_that_fails_loses_no_state():
    net, first, second = network(), AdamStepper(0.1), AdamStepper(0.1)
    train(first, net, count=1)
    second.set_state(state := first.get_state())
    with refused("Is it the state of another network"):
        second.start(trainable(FullyConnected(9)))
    second.groups = [ParameterGroup("Nowhere")]
    with refused("unknown path of a parameter 'Nowhere'"):
        second.start(net)
    second.groups = []
    second.start(net)
    np.testing.assert_equal(second.get_state(), state)
    second.set_state({**state, "first_weight": np.zeros(3)})
    with refused(
        "AdamStepper.start, state 'first_weight': expected shape (19,) like the parameters"
    ):
        second.start(net)
