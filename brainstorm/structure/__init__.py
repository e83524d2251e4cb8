"""From wiring to memory: architectures, shapes, layouts, and the buffers of a network."""

from __future__ import annotations

import importlib
from typing import Any

from brainstorm.structure.architecture import Connection, generate_architecture
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import create_layout
from brainstorm.structure.memory import MemoryReport

__all__ = [
    "BufferManager",
    "BufferStructure",
    "BufferView",
    "Connection",
    "ConstructionWrapper",
    "MemoryReport",
    "Network",
    "StructureTemplate",
    "create_layout",
    "generate_architecture",
]


def __getattr__(name: str) -> Any:
    # Network stands above this package; scripts of 2015 import it from here.
    if name == "Network":
        return importlib.import_module("brainstorm.network").Network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
