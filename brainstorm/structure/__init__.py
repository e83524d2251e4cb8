"""From wiring to memory: architectures, shapes, layouts, and the buffers of a network."""

from __future__ import annotations

import importlib
from typing import Any

from brainstorm.structure.architecture import (
    Connection,
    collect_all_connections,
    collect_all_outgoing_connections,
    generate_architecture,
    get_canonical_layer_order,
    get_kwargs,
    get_layer_description,
    instantiate_layers_from_architecture,
    parse_connection,
    validate_architecture,
)
from brainstorm.structure.buffer_structure import (
    BufferStructure,
    StructureTemplate,
    combine_buffer_structures,
)
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.buffers import (
    BufferManager,
    create_buffer_views_from_layout,
    get_total_size_slices_and_shapes,
)
from brainstorm.structure.construction import ConstructionWrapper, LayerDetails, UniquelyNamed
from brainstorm.structure.hubs import Hub, group_into_hubs
from brainstorm.structure.layout import (
    create_layout,
    create_layout_stub,
    get_backward_connection,
    get_connections,
    get_layout_stub_for_layer,
    layout_hubs,
)
from brainstorm.structure.memory import MemoryReport
from brainstorm.structure.null_buffers import NullBuffer
from brainstorm.structure.orders import (
    gather_array_nodes,
    get_all_sources,
    get_forced_orders,
    get_forward_closure,
    get_gradient_order,
    get_order,
    get_parameter_order,
    merge_connections,
)
from brainstorm.structure.view_references import (
    copy_modifier_for,
    get_key_to_references_mapping,
    get_regex_for_reference,
    order_and_copy_modifiers,
    prune_view_references,
    resolve_references,
)

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
    "collect_all_outgoing_connections",
    "combine_buffer_structures",
    "copy_modifier_for",
    "create_buffer_views_from_layout",
    "create_layout",
    "create_layout_stub",
    "gather_array_nodes",
    "generate_architecture",
    "get_all_sources",
    "get_backward_connection",
    "get_canonical_layer_order",
    "get_connections",
    "get_forced_orders",
    "get_forward_closure",
    "get_gradient_order",
    "get_key_to_references_mapping",
    "get_kwargs",
    "get_layer_description",
    "get_layout_stub_for_layer",
    "get_order",
    "get_parameter_order",
    "get_regex_for_reference",
    "get_total_size_slices_and_shapes",
    "group_into_hubs",
    "instantiate_layers_from_architecture",
    "layout_hubs",
    "merge_connections",
    "order_and_copy_modifiers",
    "parse_connection",
    "prune_view_references",
    "resolve_references",
    "validate_architecture",
]


def __getattr__(name: str) -> Any:
    # Network is defined above this package; scripts of 2015 import it from here.
    if name == "Network":
        return importlib.import_module("brainstorm.network").Network
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
