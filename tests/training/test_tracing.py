"""Steps by their traces: the same bits as direct steps, and made anew when something changed."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from brainstorm.errors import MissingDataError, NetworkValidationError
from brainstorm.handlers import DebugHandler, NativeHandler, NumpyHandler
from brainstorm.layers import BatchNorm, Clockwork, Dropout, FullyConnected, Loss, Lstm, NoOp
from brainstorm.layers.noop_layer import NoOpLayerImpl
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.training import (
    AdamStepper,
    ForwardStepper,
    GradientAccumulation,
    LossScaling,
    MomentumStepper,
    NesterovStepper,
    ParameterGroup,
    SgdStepper,
)
from brainstorm.value_modifiers import ClipValues, L2Decay, ValueModifier
from tests.networks import batch_for, checked, classifier, run_passes, trainable
from tests.trainings import given, refused, run_steps, run_threads


def network(*hidden, handler=None):
    hidden = hidden or (Lstm(5), Dropout(0.3), BatchNorm(), FullyConnected(4, "tanh"))
    return trainable(*hidden, handler=handler or NumpyHandler(seed=1))


def train(net, stepper, batches):
    stepper.start(net)
    return run_steps(net, stepper, batches)


@pytest.fixture
def check_both_ways(monkeypatch):
    """Call a function with and without replays, and check that the results are the same bits."""

    def run(function):
        results = []
        for switch in "01":
            monkeypatch.setenv("BRAINSTORM_REPLAY", switch)
            results.append(function())
        np.testing.assert_array_equal(*results)

    return run


def trace_of(stepper):
    (trace,) = stepper.traces.values()
    return trace


def counting(cls, method):
    """Return a subclass that counts the calls of a method, which no trace can repeat."""

    def counted(self, *arguments):
        self._calls += 1
        return getattr(cls, method)(self, *arguments)

    return type(f"Counting{cls.__name__}", (cls,), {"_calls": 0, method: counted})


CountingStepper = counting(SgdStepper, "step")
CountingScaling = counting(LossScaling, "judge")
CountingAccumulation = counting(GradientAccumulation, "add")


class PlainNumpyLayerImpl(NoOpLayerImpl):
    """Computes with NumPy, counts its calls and looks at values: none of it can be traced."""

    calls = 0

    def forward_pass(self, buffers, training_pass=True):
        self.calls += 1
        x = buffers.inputs.default
        buffers.outputs.default[...] = np.tanh(x) * (1.0 + (x.max() > 2.0))

    def backward_pass(self, buffers):
        y, factor = buffers.outputs.default, 1.0 + (buffers.inputs.default.max() > 2.0)
        slope = factor * (1 - (y / factor) ** 2)
        buffers.input_deltas.default[...] += buffers.output_deltas.default * slope


class LooksAtValuesLayerImpl(NoOpLayerImpl):
    """Does not say that it is traceable itself: what its base says does not count."""

    def forward_pass(self, buffers, training_pass=True):
        factor = 1.0 + (self.handler.get_numpy_copy(buffers.inputs.default).max() > 2.0)
        self.handler.mult_st(factor, buffers.inputs.default, buffers.outputs.default)


def own(cls, name):
    """Return a layer of a class of one's own."""
    return ConstructionWrapper.create(cls, name=name)


class KeepsTheFirst(ValueModifier):
    """Gives the first gradients from then on: its calls cannot be traced."""

    first = None

    def __call__(self, handler, view):
        if self.first is None:
            self.first = handler.get_numpy_copy(view)
        handler.set_from_numpy(view, self.first)


def with_first_gradients():
    net = network()
    net.set_gradient_modifiers({"Lstm": KeepsTheFirst()})
    return net


TRAININGS = {
    "nesterov": (network, lambda: NesterovStepper(0.1, 0.9)),
    "adam": (network, lambda: AdamStepper(0.1)),
    "forward": (network, lambda: ForwardStepper(use_training_pass=True)),
    "counting": (network, lambda: CountingStepper(0.1)),
    "first call": (with_first_gradients, lambda: SgdStepper(0.1)),
    "looks at values": (
        lambda: network(FullyConnected(4, "rel"), own(LooksAtValuesLayerImpl, "Looks")),
        lambda: SgdStepper(0.1),
    ),
    "numpy": (
        lambda: network(FullyConnected(4, "tanh"), own(PlainNumpyLayerImpl, "Plain")),
        lambda: SgdStepper(0.1),
    ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_bits_equal_direct_steps_with_changing_sizes_and_rates(check_both_ways, name):
    make_network, make_stepper = TRAININGS[name]

    def run():
        net, stepper = make_network(), make_stepper()
        stepper.start(net)
        for i, (T, B) in enumerate([(3, 4), (2, 2), (5, 3)] * 4):
            net.provide_external_data(batch_for(T, B, i))
            if "learning_rate" in stepper.hyperparameters:
                stepper.learning_rate = 0.1 / (i + 1)
            stepper.run()
        assert name != "counting" or stepper._calls == 12
        assert name != "numpy" or net.layers["Plain"].calls == 12
        return net.get("parameters")

    check_both_ways(run)


def test_a_layer_of_numpy_does_not_make_its_trace_invalid():
    net, stepper = network(FullyConnected(4), own(PlainNumpyLayerImpl, "Plain")), SgdStepper(0.1)
    train(net, stepper, [batch_for()])
    trace = trace_of(stepper)  # the first step is the one that is traced
    assert [step.place for step in trace.steps if step.operation == "python"] == [
        "Plain, forward", "Plain, backward",
    ]  # fmt: skip
    stepper.run()
    assert trace_of(stepper) is trace


def test_the_debug_handler_runs_the_layers():
    net, stepper = network(handler=DebugHandler(NumpyHandler())), SgdStepper(0.1)
    train(net, stepper, [batch_for(), batch_for()])
    assert stepper.traces == {}


def test_traces_that_were_not_used_for_long_are_dropped(monkeypatch):
    net, stepper = network(FullyConnected(3)), SgdStepper(0.1)
    train(net, stepper, [batch_for(T=1, B=20)])
    most = 10 * len(trace_of(stepper).steps)
    monkeypatch.setattr("brainstorm.network.tracing.MOST_STEPS", most)
    # The largest batch was the first: when memory grows, all traces are made anew.
    run_steps(net, stepper, [batch_for(T=1, B=b) for b in (*range(1, 11), 3, 11, 12)])
    kept = [key[2] for key in stepper.traces]
    assert kept == [4, *range(5, 11), 3, 11, 12]


def test_net_plan_lists_the_calls_of_both_passes():
    net = network()
    expected = run_passes(net, batch_for())
    places = {step.place for step in net.plan().steps}
    assert {"Lstm, forward", "Lstm, backward", "Projection, backward"} <= places
    net.buffer.gradients[...] = 7.0
    net = network()
    net.provide_external_data(batch_for())
    net.plan().replay()
    np.testing.assert_array_equal(net.get("gradients"), expected)
    only_forward = {step.place for step in net.plan(training_pass=False).steps}
    assert not any(place.endswith("backward") for place in only_forward)


def test_a_plan_of_both_passes_may_be_one_of_evaluation():
    net, batch = network(), batch_for()
    net.provide_external_data(batch)
    net.forward_pass()
    net.backward_pass()
    expected = net.get("gradients")
    for _ in range(2):
        net.handler.fill(net.buffer.gradients, 7.0)
        net.plan(training_pass=False, backward_pass=True).replay()
        np.testing.assert_array_equal(net.get("gradients"), expected)


def test_a_plan_holds_when_a_stepper_starts_that_changes_nothing():
    net = network()
    net.provide_external_data(batch_for())
    plan = net.plan()
    SgdStepper(0.1).start(net)  # sets attributes of Loss layers to what their class has
    plan.replay()


@pytest.mark.parametrize("does_passes", [False, True])
def test_net_plan_does_nothing_but_with_a_debug_handler_the_passes(does_passes):
    handler = NumpyHandler(seed=1)
    net = network(handler=DebugHandler(handler) if does_passes else handler)
    net.provide_external_data(batch_for())
    before = {path: net.get(path) for path in ("parameters", *net.persistent_paths)}
    net.handler.fill(net.buffer.gradients, 7.0)
    assert "Projection, backward" in {step.place for step in net.plan().steps}
    assert (net.get("gradients") == 7).all() != does_passes
    for path, expected in before.items():
        assert np.array_equal(net.get(path), expected) or does_passes


def test_a_step_that_fails_leaves_no_trace():
    net, stepper = network(FullyConnected(4, name="Fails")), SgdStepper(0.1)
    net.layers["Fails"].forward_pass = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train(net, stepper, [batch_for()])
    assert stepper.traces == {}
    assert net.handler.running.trace is None


@pytest.mark.parametrize("make", [NumpyHandler, NativeHandler])
def test_a_long_sequence_takes_as_many_calls_as_a_short_one(make):
    net, counts = network(Lstm(3), Clockwork(2), handler=make(seed=1)), []
    for T in (300, 900):
        net.provide_external_data(batch_for(T=T))
        counts.append(len(net.plan().steps))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("make", [NumpyHandler, NativeHandler])
def test_passes_in_many_threads_wait_for_each_other(make):
    net = network(Lstm(5), FullyConnected(4, "tanh"), handler=make(seed=1))
    data = [batch_for(T, B)["default"] for T, B in [(3, 4), (6, 2), (1, 1)]]
    expected, wrong = [net.predict(x) for x in data], []

    def serve(start):
        for i in range(start, start + 24):
            if not np.array_equal(net.predict(data[i % 3]), expected[i % 3]):
                wrong.append(i)

    run_threads(serve, 8)
    assert not wrong


def test_different_networks_run_side_by_side_on_one_handler():
    handler = NativeHandler(seed=1)
    results = {}

    def run(seed):
        net = network(Lstm(5), FullyConnected(4, "tanh"), handler=handler)
        results[seed] = train(net, SgdStepper(0.1), [batch_for(seed=i) for i in range(30)])

    run("alone")
    run_threads(run, 4)
    for found in results.values():
        np.testing.assert_array_equal(found, results["alone"])


# -- what changes between steps, or is put there by a user ----------------------------------------


def smaller(net):
    net.buffer.gradients[:] = np.clip(net.buffer.gradients, -0.01, 0.01)


class ClippingNetwork(Network):
    def backward_pass(self, *args, **kwargs):
        super().backward_pass(*args, **kwargs)
        smaller(self)


def replace_a_pass_of_the_network(net, stepper):
    original = net.backward_pass
    net.backward_pass = lambda *args, **kwargs: (original(*args, **kwargs), smaller(net))


def replace_update_of_the_stepper(net, stepper):
    def update():
        stepper.parameters[:] = stepper.parameters - np.sign(stepper.gradients) * 0.01

    stepper.update = update


@pytest.mark.parametrize("other", [DebugHandler, lambda _: NumpyHandler(np.float64)])
def test_a_stepper_is_started_again_for_arrays_of_another_kind(other):
    net, stepper = network(), SgdStepper(0.1)
    train(net, stepper, [batch_for()])
    net.set_handler(other(net.handler))
    with refused("SgdStepper.run: expected arrays of one kind since start(net), got those"):
        run_steps(net, stepper, [batch_for()])
    train(net, stepper, [batch_for()])


def replace_a_pass_of_a_layer(net, stepper):
    net.layers["Plain"].forward_pass = lambda views, training_pass: net.handler.mult_st(
        0.5, views.inputs.default, views.outputs.default
    )


def change_handler(net, stepper):
    net.set_handler(NumpyHandler(seed=5))
    stepper.start(net)


CHANGES = {
    "class of the network": lambda net, _: setattr(net, "__class__", ClippingNetwork),
    "pass of the network": replace_a_pass_of_the_network,
    "update of the stepper": replace_update_of_the_stepper,
    "pass of a layer": replace_a_pass_of_a_layer,
    "pass put back": lambda net, _: delattr(net.layers["Dense"], "forward_pass"),
    "modifiers": lambda net, _: net.set_gradient_modifiers(ClipValues(-1e-4, 1e-4)),
    "a modifier": lambda net, _: setattr(net.gradient_modifiers["Lstm"]["Rz"][0], "factor", 0.5),
    "place of a modifier": lambda net, _: net.gradient_modifiers.update(
        Dense={"bias": net.gradient_modifiers["Dense"]["W"]}
    ),
    "attribute": lambda net, _: setattr(net.layers["Dropout"], "drop_prob", 0.1),
    "handler": change_handler,
    "deltas": lambda net, _: setattr(net, "keep_input_deltas", True),
    "size": lambda net, _: net.provide_external_data(batch_for(T=9, B=9)),
    "loss scaling": lambda _, stepper: setattr(stepper.loss_scaling, "growth_interval", 1),
    "another limit": lambda _, stepper: setattr(stepper, "max_gradient_norm", 0.01),
    "no limit": lambda _, stepper: delattr(stepper, "max_gradient_norm"),
    "no loss scaling": lambda _, stepper: delattr(stepper, "loss_scaling"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_between_steps_is_seen(check_both_ways, name):
    def run():
        dense, plain = FullyConnected(4, "tanh", name="Dense"), own(PlainNumpyLayerImpl, "Plain")
        net = network(Lstm(5), Dropout(0.3), BatchNorm(), dense, plain)
        net.set_gradient_modifiers(Dense={"W": ClipValues(-1e-3, 1e-3)}, Lstm=L2Decay(0.1))
        if name == "pass put back":
            layer = net.layers["Dense"]
            original = layer.forward_pass
            layer.forward_pass = lambda views, training_pass: (
                original(views, training_pass),
                net.handler.fill(views.outputs.default, 0.1),
            )
        scaling = LossScaling(4.0, growth_interval=1000)
        stepper = given(SgdStepper(0.1), loss_scaling=scaling, max_gradient_norm=0.1)
        stepper.start(net)
        for i in range(8):
            if i == 4:
                assert net.handler.replays
                CHANGES[name](net, stepper)
            run_steps(net, stepper, [batch_for(seed=i)])
        return np.append(net.get("parameters"), scaling.scale)

    check_both_ways(run)


def test_a_scaling_that_is_deleted_no_longer_scales():
    net, stepper = network(FullyConnected(4)), given(SgdStepper(0.1), loss_scaling=LossScaling())
    train(net, stepper, [batch_for()])
    del stepper.loss_scaling
    stepper.run()
    assert net.loss_scale is None


@pytest.mark.parametrize(
    ("name", "make"),
    [("loss_scaling", CountingScaling), ("accumulation", lambda: CountingAccumulation(2))],
)
def test_methods_of_a_users_own_are_called_at_every_step(name, make):
    """Those of a part of the stepper, and one that a layer was given."""
    net = network(FullyConnected(4), NoOp("Plain"))
    stepper = given(SgdStepper(0.1), **{name: make()})
    layer, calls = net.layers["Plain"], []
    original = layer.forward_pass
    layer.forward_pass = lambda *args: (calls.append(1), original(*args))
    train(net, stepper, [batch_for(seed=i) for i in range(5)])
    assert getattr(stepper, name)._calls == len(calls) == 5


def test_a_method_that_a_stepper_was_given_is_called_at_every_step():
    net, stepper, calls = network(FullyConnected(4)), SgdStepper(0.1), []
    original = stepper.step
    stepper.step = lambda: (calls.append(1), original())
    train(net, stepper, [batch_for(seed=i) for i in range(5)])
    assert len(calls) == 5


@pytest.mark.parametrize("sequences", [4, 7])  # as before, and others
@pytest.mark.parametrize("make", [SgdStepper, CountingStepper])
def test_data_without_targets_are_no_batch_to_train_on(make, sequences):
    """Those of a prediction are zeros, and those of another batch size are anything."""
    net, stepper = network(FullyConnected(4)), make(0.1)
    train(net, stepper, [batch_for()])
    before, given = net.get("parameters"), batch_for(seed=1)
    if sequences == net.batch_size:
        net.predict(given["default"])
    part = np.repeat(given["default"][:, :1], sequences, axis=1)
    net.provide_external_data({"default": part}, all_inputs=False)
    text = (
        "data for 'targets' is missing: the present batch has none, because of net.predict or all"
    )
    net.forward_pass()  # of the predictions, which may be read
    for use in (stepper.run, net.get_loss_values, net.backward_pass):
        with pytest.raises(MissingDataError, match=text):
            use()
    np.testing.assert_array_equal(net.get("parameters"), before)
    assert stepper.steps == 1
    assert net.plan().steps  # which are those of any data
    for complete in (net.provide_external_data, net.predict):
        complete(given)
        stepper.run()
    assert stepper.steps == 3


def fail_to_copy(provide):
    def run(net, stepper):
        copy = net.handler.set_from_numpy
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(net.handler, "set_from_numpy", lambda *given: (copy(*given), 1 / 0))
            with pytest.raises(ZeroDivisionError):
                provide(net)

    return run


LOST_BY = {
    "handler": change_handler,
    "deltas": CHANGES["deltas"],
    "copies of a batch": fail_to_copy(lambda net: net.provide_external_data(batch_for(seed=1))),
    "copies of a part": fail_to_copy(lambda net: net.predict(batch_for(seed=1)["default"])),
}


@pytest.mark.parametrize("name", LOST_BY)
def test_a_batch_that_was_lost_is_missing(name):
    net, stepper = network(FullyConnected(4)), SgdStepper(0.1)
    train(net, stepper, [batch_for()])
    LOST_BY[name](net, stepper)
    for use in (stepper.run, net.forward_pass, net.plan().replay):
        with pytest.raises(MissingDataError, match="data for 'default', .*is missing: the present"):
            use()
    for use in (net.get_loss_values, net.backward_pass):
        with pytest.raises(
            NetworkValidationError, match="is missing|expected a forward pass before it"
        ):
            use()
    run_steps(net, stepper, [batch_for()])


def test_data_of_constant_size_stay_for_other_batches():
    inp = classifier(FullyConnected(4, "tanh"))
    inp.layer.layer_kwargs["out_shapes"]["fixed"] = (2,)
    inp - "fixed" >> Loss(name="Fixed")
    net, stepper = checked(inp, NumpyHandler()), SgdStepper(0.1)
    stepper.start(net)
    for sizes in ({}, {"B": 7}):
        net.keep_input_deltas = not net.keep_input_deltas  # other arrays, even of constant size
        net.provide_external_data(batch_for(), all_inputs=False)
        with pytest.raises(MissingDataError, match="data for 'fixed' is missing"):
            stepper.run()
        net.provide_external_data({"fixed": np.ones(2)}, all_inputs=False)
        net.provide_external_data(batch_for(**sizes), all_inputs=False)
        stepper.run()
        assert net.get_loss_values()["Fixed"] == 2


def test_what_needs_no_other_traces():
    """Numbers of groups, and the limit; and memory that was outgrown is let go."""
    net, stepper = network(FullyConnected(4, name="Dense")), SgdStepper(0.1)
    stepper.groups = [group] = [ParameterGroup("Dense", learning_rate_factor=0.5)]
    stepper.start(net)
    for b in range(1, 30):
        net.provide_external_data(batch_for(T=1, B=b))
        for factor in (0.5, 0.25):
            group.learning_rate_factor = factor
            stepper.max_gradient_norm = 10 * factor
            stepper.run()
        assert len(stepper.traces) == 1
    net.close()
    assert not stepper.traces


def test_traces_are_kept_for_settings_that_return():
    net, stepper = network(FullyConnected(4, name="Dense")), SgdStepper(0.1)
    stepper.groups = [group] = [ParameterGroup("Dense")]
    train(net, stepper, [batch_for()])
    first = trace_of(stepper)
    for limit, is_frozen in [(1.0, False), (1.0, True), (None, False)]:
        stepper.max_gradient_norm, group.frozen = limit, is_frozen
        stepper.run()
    assert list(stepper.traces.values())[-1] is first
    assert len(stepper.traces) == 3


def test_traces_outlive_the_growth_of_scratch_memory():
    net, stepper = network(FullyConnected(4), handler=NativeHandler(seed=1)), SgdStepper(0.1)
    train(net, stepper, [batch_for(B=4), batch_for(B=3)])
    before, lane = dict(stepper.traces), net._buffer_manager.lane
    lane.workspace("formulas", 1)
    lane.workspace("formulas", 10**6)
    run_steps(net, stepper, [batch_for(B=4), batch_for(B=3)])
    assert stepper.traces == before


@pytest.mark.parametrize("disturb", ["deltas", "handler", "close"])
def test_what_moves_memory_waits_for_passes(disturb):
    net = network(FullyConnected(16, "tanh"), handler=NumpyHandler(seed=1))
    x = batch_for(T=2, B=5)["default"]
    expected, wrong, stop = net.predict(x), [], threading.Event()

    def serve():
        while not stop.is_set():
            try:
                if not np.array_equal(net.predict(x), expected):
                    wrong.append("other numbers")
            except NetworkValidationError as error:
                if "closed" not in str(error):
                    wrong.append(str(error))
                return

    thread = threading.Thread(target=serve)
    thread.start()
    for i in range(20):
        if disturb == "deltas":
            net.keep_input_deltas = bool(i % 2)
        elif disturb == "handler":
            net.set_handler(NumpyHandler(seed=1))
        time.sleep(1e-3)
    if disturb == "close":
        net.close()
    stop.set()
    thread.join()
    assert not wrong


def test_what_is_read_while_another_thread_trains_is_of_one_step():
    net, stepper = network(FullyConnected(300)), SgdStepper()
    stepper.step = lambda: net.buffer.parameters.__iadd__(1.0)
    net.initialize(0)
    net.buffer.parameters[:] = 1.0
    stepper.start(net)
    net.provide_external_data(batch_for())

    def steps():
        for _ in range(300):
            with net.alone():
                stepper.run()

    thread = threading.Thread(target=steps)
    thread.start()
    for _ in range(100):
        found = net.get("parameters")
        assert (found == found[0]).all()
    thread.join()


@pytest.mark.parametrize(
    "read",
    [lambda stepper: stepper.get_state(), lambda stepper: stepper.__getstate__()[0]["_waiting"]],
    ids=["state", "copy"],
)
def test_a_stepper_that_steps_in_another_thread_is_read_between_steps(read):
    """In an update of a group its arrays are those of the group."""
    net, stepper = network(FullyConnected(3)), MomentumStepper()
    stepper.groups = [ParameterGroup("FullyConnected", learning_rate_factor=0.5)]
    stepper.start(net)
    net.provide_external_data(batch_for())
    is_within = threading.Event()

    def update():
        is_within.set()
        time.sleep(0.1)

    stepper.update = update
    thread = threading.Thread(target=stepper.run)
    thread.start()
    is_within.wait()
    velocity = read(stepper)["velocity"]
    thread.join()
    assert velocity.shape == net.buffer.parameters.shape
