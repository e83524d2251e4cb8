"""A small network with data for the tests of hooks."""

from __future__ import annotations

import pytest

import brainstorm as bs
from brainstorm.training import SgdStepper, Trainer


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
