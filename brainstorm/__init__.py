"""brainstorm: a modular deep learning library in which nothing is hidden."""

from __future__ import annotations

from brainstorm import (
    data_iterators,
    errors,
    handlers,
    hooks,
    initializers,
    layers,
    randomness,
    scorers,
    structure,
    tools,
    training,
    value_modifiers,
)
from brainstorm._version import __version__
from brainstorm.describable import create_from_description, get_description
from brainstorm.network import Network
from brainstorm.randomness import global_rnd
from brainstorm.structure.architecture import generate_architecture
from brainstorm.training import Trainer

__all__ = [
    "Network",
    "Trainer",
    "__version__",
    "create_from_description",
    "data_iterators",
    "errors",
    "generate_architecture",
    "get_description",
    "global_rnd",
    "handlers",
    "hooks",
    "initializers",
    "layers",
    "randomness",
    "scorers",
    "structure",
    "tools",
    "training",
    "value_modifiers",
]
