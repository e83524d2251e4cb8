"""A small network with data for the tests of hooks."""

from __future__ import annotations

import numpy as np
import pytest

import brainstorm as bs
from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.layers import BatchNorm, FullyConnected, Input, Loss, SoftmaxCE
from brainstorm.training import SgdStepper, Trainer


@pytest.fixture
def net():
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


@pytest.fixture
def train(net, batches):
    """Train for some epochs with some hooks; return the trainer."""

    def run(*hooks, epochs=2, verbose=False, stepper=None):
        trainer = Trainer(stepper or SgdStepper(0.1), verbose=verbose)
        for hook in hooks:
            trainer.add_hook(hook)
        trainer.add_hook(bs.hooks.StopAfterEpoch(epochs, name="end"))
        trainer.train(net, batches, valid=batches)
        return trainer

    return run
