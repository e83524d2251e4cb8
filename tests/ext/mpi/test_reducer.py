"""Sums of gradients: which slices are sent when, and those that are a part of the recorded step."""

from __future__ import annotations

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.errors import TrainingError
from brainstorm.ext.mpi import reducer as reducers
from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.slices import plan_slices
from brainstorm.ext.mpi.transports import HostTransport
from brainstorm.handlers import NumpyHandler
from brainstorm.training import GradientAccumulation, LossScaling, MomentumStepper
from brainstorm.value_modifiers import L2Decay
from tests.ext.mpi.fakes import FakeWorld

RND = np.random.RandomState(0)
BATCH = {"default": RND.rand(1, 6, 4), "targets": RND.randint(0, 3, (1, 6, 1))}


class QueuedTransport(HostTransport):
    """A transport whose sums are queued, as far as anybody can tell."""

    is_queued = True
    checks = 0

    def check(self):
        self.checks += 1


def train(monkeypatch, transport=HostTransport, slice_bytes=None, idle=(), **parts):
    """Return the parameters after six updates, and the stepper, which has these parts."""
    monkeypatch.setattr(reducers, "choose_transport", lambda world, handler: transport(world))
    net = bs.tools.create_net_from_spec("classification", 4, 3, "F5 F6")
    net.set_handler(NumpyHandler(np.float64))
    net.initialize(bs.initializers.Gaussian(1.0), seed=1)
    if not idle:
        net.set_gradient_modifiers(L2Decay(0.1))
    stepper = MomentumStepper(0.1, 0.9)
    stepper.reducer = Reducer(FakeWorld(0, 2), check_every=2, slice_bytes=slice_bytes)
    for name, part in parts.items():
        setattr(stepper, name, part)
    stepper.start(net)
    for number in range(6):
        net.provide_external_data(BATCH)
        stepper.is_idle = number in idle
        if stepper.is_idle:
            stepper.reducer.world.gather_numbers = lambda own: np.stack(
                [own, [6.0, 0.0] if own.size == 2 else own]  # sequences and signal, or digests
            )
        stepper.run()
    return net.get("parameters"), stepper


@pytest.mark.parametrize("slice_bytes", [None, 1])
def test_the_updates_are_the_same(monkeypatch, slice_bytes, replay):
    expected, plain = train(monkeypatch)
    found, queued = train(monkeypatch, QueuedTransport, slice_bytes)
    np.testing.assert_array_equal(found, expected)
    assert not plain.reducer.is_in_step
    assert queued.reducer.is_in_step
    assert queued.reducer.transport.checks == 6


def test_the_sum_is_a_part_of_the_one_trace(monkeypatch):
    _, stepper = train(monkeypatch, QueuedTransport)
    ((key, trace),) = stepper.traces.items()
    names = [step.operation for step in trace.steps]
    assert key[0][0] == "step"
    assert names.count("queued") == 1
    assert "python" not in names
    _, stepper = train(monkeypatch)
    assert [key[0][0] for key in stepper.traces] == ["do_passes", "finish_update"]


def test_accumulated_gradients_are_summed_at_once(monkeypatch):
    expected, _ = train(monkeypatch, accumulation=GradientAccumulation(2))
    found, _ = train(monkeypatch, QueuedTransport, accumulation=GradientAccumulation(2))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("transport", [HostTransport, QueuedTransport])
def test_a_rank_without_sequences_adds_nothing(monkeypatch, transport):
    _, stepper = train(monkeypatch, transport, idle=range(6))
    assert not stepper.net.get("gradients").any()


# -- slices ---------------------------------------------------------------------------------------

FINISHED = [("c", [(7, 10)]), ("b", [(3, 5), (5, 7)]), ("noop", []), ("a", [(0, 3)])]


@pytest.mark.parametrize(
    ("smallest", "expected"),
    [
        (1, {"c": [(7, 10)], "b": [(3, 7)], "a": [(0, 3)]}),
        (7, {"b": [(3, 10)], "a": [(0, 3)]}),
        (9, {"a": [(0, 10)]}),
        (99, {"a": [(0, 10)]}),
    ],
)
def test_slices_are_sent_when_they_are_large_enough(smallest, expected):
    assert plan_slices(FINISHED, smallest) == expected


def test_slices_start_from_the_last_layer_on_and_give_the_same(monkeypatch):
    expected, _ = train(monkeypatch)
    for slice_bytes in (1, 10**6):
        found, stepper = train(monkeypatch, slice_bytes=slice_bytes)
        np.testing.assert_array_equal(found, expected)
        sizes = [array.size for array in stepper.reducer.world.summed]
        assert sizes == 6 * ([3 + 18, 6 + 30, 5 + 20] if slice_bytes == 1 else [found.size])


def test_slices_are_sent_in_the_steps_of_their_stepper_only(monkeypatch):
    _, stepper = train(monkeypatch, slice_bytes=1)
    net, summed, other = stepper.net, stepper.reducer.world.summed, MomentumStepper(0.1, 0.9)
    summed.clear()
    other.start(net)
    other.run()
    net.backward_pass()
    assert not summed
    stepper.run()
    assert len(summed) == 3
    stepper.accumulation = GradientAccumulation(2)
    for _ in range(2):
        stepper.run()
    assert [array.size for array in summed[3:]] == [net.parameters_size]


@pytest.mark.parametrize(
    ("what", "part"),
    [("accumulation", GradientAccumulation(2)), ("loss_scaling", LossScaling())],
)
def test_what_changes_gradients_after_the_pass_is_refused(monkeypatch, what, part):
    with pytest.raises(TrainingError) as error:
        train(monkeypatch, slice_bytes=1, **{what: part})
    assert str(error.value) == (
        f"Reducer.start: expected no {what} where gradients are summed in slices while they are "
        f"computed. Leave slice_bytes at None."
    )
