"""Losses that are read late are those that would have been read at once."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import Trainer
from brainstorm.data_iterators import Minibatches
from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import NativeHandler
from brainstorm.hooks import Hook, StopAfterEpoch
from brainstorm.initializers import Gaussian
from brainstorm.layers import FullyConnected, L2Decay, Loss
from brainstorm.network import Network
from brainstorm.training import SgdStepper
from brainstorm.training.late_losses import BATCHES
from tests.networks import classifier

RND = np.random.default_rng(0)


class Losses(Hook):
    """Read the losses after every update, as a person would."""

    def __init__(self):
        super().__init__(timescale="update")
        self.seen, self.reads = [], 0

    def __call__(self, epoch_nr, update_nr, net, stepper, logs):
        if update_nr:
            self.seen.append((net.batch_size, net.get_loss_values()))


class CountingHandler(NumpyHandler):
    """Count how often values are read."""

    reads = 0

    def get_numpy_copy(self, mem):
        self.reads += 1
        return super().get_numpy_copy(mem)


def train(handler, batches, penalty=False, hooks=()):
    hidden = FullyConnected(5, "tanh", name="Hidden")
    inp = classifier(hidden)
    if penalty:
        hidden - "..parameters.W" >> L2Decay() - "loss" >> Loss(name="Penalty")
    net = Network.from_layer(inp, seed=3, handler=handler)
    net.initialize(Gaussian(0.3), seed=2)
    count = 4 * batches - 1  # the last batch is smaller
    data = {"default": RND.random((1, count, 4)), "targets": RND.integers(0, 3, (1, count, 1))}
    trainer = Trainer(SgdStepper(0.1), verbose=False)
    for hook in (*hooks, StopAfterEpoch(2)):
        trainer.add_hook(hook)
    trainer.train(net, Minibatches(4, **data))
    return trainer.logs["rolling_training"]


@pytest.mark.parametrize("handler", [NumpyHandler, NativeHandler])
@pytest.mark.parametrize("penalty", [False, True])
@pytest.mark.parametrize("batches", [1, BATCHES - 1, BATCHES, 2 * BATCHES + 3])
def test_the_averages_are_those_of_all_batches(handler, penalty, batches):
    watch = Losses()
    logs = train(handler(np.float32), batches, penalty, [watch])
    assert set(logs) == ({"Loss", "Penalty", "total_loss"} if penalty else {"total_loss"})
    for epoch in range(2):
        seen = watch.seen[epoch * batches : (epoch + 1) * batches]
        weights = [size for size, _ in seen]
        for name in logs:
            values = [losses[name] for _, losses in seen]
            assert logs[name][epoch] == pytest.approx(np.average(values, weights=weights))


def test_values_are_read_once_for_many_batches():
    handler = CountingHandler(np.float32)
    train(handler, batches=4 * BATCHES)
    assert 8 <= handler.reads <= 12
