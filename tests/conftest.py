"""Fixtures of all tests."""

import pytest

from brainstorm.handlers import base_activations
from brainstorm.handlers.base_activations import ActivationOperations


@pytest.fixture
def fresh_registry(monkeypatch):
    """Forget afterwards which activation functions a test has registered."""
    monkeypatch.setattr(base_activations, "_registered", {})
    for name in ("activations", "activations_needing_inputs"):
        monkeypatch.setattr(ActivationOperations, name, getattr(ActivationOperations, name))
