"""Fixtures of all tests, and how many threads they use."""

import os

import pytest

from brainstorm.optree import activations

# Tests take turns on the processors with each other and with other programs, where threads that
# wait for each other cost a hundred times what they gain. Tests of threads say how many they want.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def fresh_registry():
    """Forget afterwards which activation functions a test has registered."""
    known = dict(activations._table)
    yield
    activations._table.clear()
    activations._table.update(known)
