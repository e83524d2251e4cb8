"""A small network with data for the tests of hooks."""

from __future__ import annotations

import pytest

import brainstorm as bs
from brainstorm.training import SgdStepper
from tests.trainings import make_trainer


@pytest.fixture
def train(net, batches):
    """Train for some epochs with some hooks; return the trainer."""

    def run(*hooks, epochs=2, verbose=False, stepper=None):
        end = bs.hooks.StopAfterEpoch(epochs, name="end")
        trainer = make_trainer(*hooks, end, stepper=stepper or SgdStepper(0.1), verbose=verbose)
        trainer.train(net, batches, valid=batches)
        return trainer

    return run
