"""From wiring to memory: architectures, shapes, layouts, and the buffers of a network."""

from __future__ import annotations

import importlib
from typing import Any

from brainstorm.structure.architecture import (
    Connection,
    collect_all_connections,
    generate_architecture,
    get_canonical_layer_order,
    validate_architecture,
)
from brainstorm.structure.buffer_structure import (
    BufferStructure,
    StructureTemplate,
    combine_buffer_structures,
)
from brainstorm.structure.buffer_views import BufferView, NullBuffer
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.construction import ConstructionWrapper, LayerDetails, UniquelyNamed
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import create_layout
from brainstorm.structure.memory import MemoryReport

__all__ = [
    "BufferManager",
    "BufferStructure",
    "BufferView",
    "Connection",
    "ConstructionWrapper",
    "Hub",
    "LayerDetails",
    "MemoryReport",
    "Network",
    "NullBuffer",
    "StructureTemplate",
    "UniquelyNamed",
    "collect_all_connections",
    "combine_buffer_structures",
    "create_layout",
    "generate_architecture",
    "get_canonical_layer_order",
    "validate_architecture",
]


def __getattr__(name: str) -> Any:
    # Network stands above this package; scripts of 2015 import it from here.
    if name == "Network":
        return importlib.import_module("brainstorm.network").Network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
