"""Fixtures of all tests."""

import pytest

from brainstorm.optree import activations


@pytest.fixture
def fresh_registry():
    """Forget afterwards which activation functions a test has registered."""
    known = dict(activations._table)
    yield
    activations._table.clear()
    activations._table.update(known)
