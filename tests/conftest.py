"""Fixtures of all tests, with which numbers they begin, and how many threads they use."""

import os

import pytest

from brainstorm import global_rnd
from brainstorm.optree import activations

# Tests take turns on the processors with each other and with other programs, where threads that
# wait for each other cost a hundred times what they gain. Tests of threads say how many they want.
os.environ.setdefault("OMP_NUM_THREADS", "1")


global_rnd.set_seed(0)  # for what modules make when they are imported


@pytest.fixture(autouse=True)
def seed():
    """Let every test draw the same numbers, whatever ran before it.

    So a training in a test ends where it ended when its limit was chosen, far from this.
    """
    global_rnd.set_seed(0)


@pytest.fixture
def fresh_registry():
    """Forget afterwards which activation functions a test has registered."""
    known = dict(activations._table)
    yield
    activations._table.clear()
    activations._table.update(known)
