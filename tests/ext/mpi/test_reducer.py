"""Sums that are queued like operations are a part of the recorded step."""

from __future__ import annotations

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.ext.mpi import reducer as reducers
from brainstorm.ext.mpi.reducer import Reducer
from brainstorm.ext.mpi.transports import HostTransport
from brainstorm.handlers import NumpyHandler
from brainstorm.training import GradientAccumulation, MomentumStepper
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


def train(monkeypatch, transport, slice_bytes=None, accumulate=False, idle=()):
    monkeypatch.setattr(reducers, "choose_transport", lambda world, handler: transport(world))
    net = bs.tools.create_net_from_spec("classification", 4, 3, "F5 F6")
    net.set_handler(NumpyHandler(np.float64))
    net.initialize(bs.initializers.Gaussian(1.0), seed=1)
    if not idle:
        net.set_gradient_modifiers(L2Decay(0.1))
    stepper = MomentumStepper(0.1, 0.9)
    stepper.reducer = Reducer(FakeWorld(0, 2), check_every=2, slice_bytes=slice_bytes)
    if accumulate:
        stepper.accumulation = GradientAccumulation(2)
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
    expected, plain = train(monkeypatch, HostTransport)
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
    _, stepper = train(monkeypatch, HostTransport)
    assert [key[0][0] for key in stepper.traces] == ["do_passes", "finish_update"]


def test_accumulated_gradients_are_summed_at_once(monkeypatch):
    expected, _ = train(monkeypatch, HostTransport, accumulate=True)
    found, _ = train(monkeypatch, QueuedTransport, accumulate=True)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("transport", [HostTransport, QueuedTransport])
def test_a_rank_without_sequences_adds_nothing(monkeypatch, transport):
    _, stepper = train(monkeypatch, transport, idle=range(6))
    assert not stepper.net.get("gradients").any()
