"""Fixtures of all tests, with which numbers they begin, and how many threads they use."""

import functools
import gc
import os

import numpy as np
import pytest
from hypothesis import settings

import brainstorm as bs
from brainstorm import global_rnd
from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import BatchNorm, FullyConnected, Input, Loss, SoftmaxCE
from brainstorm.optree import activations, registry

# Tests take turns on the processors with each other and with other programs, where threads that
# wait for each other cost a hundred times what they gain. Tests of threads say how many they want.
os.environ.setdefault("OMP_NUM_THREADS", "1")


# Nor does any test depend on how long its examples take.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


global_rnd.set_seed(0)  # for what modules make when they are imported


def pytest_collection_finish():
    """Let the garbage collector look less often, and not through tests: it takes a third less."""
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@functools.cache
def first_state(rnd):
    """Return the state of a generator when this was first asked: after its module was imported."""
    return rnd.get_state()


@pytest.fixture(autouse=True)
def seed(request):
    """Let every test draw the same numbers, whatever ran before it.

    So a training in a test ends where it ended when its limit was chosen, far from this.
    """
    global_rnd.set_seed(0)
    for value in vars(request.module).values():
        if isinstance(value, np.random.RandomState):
            value.set_state(first_state(value))


@pytest.fixture(params=["0", "1"])
def replay(request, monkeypatch):
    """Do steps directly, or by their traces."""
    monkeypatch.setenv("BRAINSTORM_REPLAY", request.param)


@pytest.fixture
def fresh_registry():
    """Forget afterwards which activation functions a test has registered."""
    known = dict(activations._table)
    yield
    activations._table.clear()
    activations._table.update(known)


@pytest.fixture
def own_table(monkeypatch):
    """Forget afterwards which operators a test has registered."""
    monkeypatch.setattr(registry, "_table", dict(registry._table))


@pytest.fixture
def net():
    """A small network that classifies in float64, initialized."""
    inputs = Input(out_shapes={"default": ("T", "B", 3), "targets": ("T", "B", 1)})
    output = SoftmaxCE(name="Output")
    (
        inputs
        >> FullyConnected(4, activation="tanh", name="Hidden")
        >> BatchNorm(name="Norm")
        >> FullyConnected(2, activation="linear", name="Projection")
        >> output - "loss"
        >> Loss()
    )
    inputs - "targets" >> "targets" - output
    net = bs.Network.from_layer(inputs, seed=1, handler=NumpyHandler(np.float64))
    net.output_name = "Output.outputs.predictions"
    net.initialize(bs.initializers.Gaussian(0.5), seed=3)
    return net


@pytest.fixture
def batches():
    """Four batches an epoch, the last one smaller, always in the same order."""
    x = np.random.RandomState(0).randn(1, 11, 3)
    return Minibatches(3, shuffle=False, default=x, targets=(x[:, :, :1] > 0).astype(float))
