"""A network as a tree of its layers, and as a table of their properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.display import Node, Tree
from brainstorm.structure.buffer_structure import format_shape
from brainstorm.structure.buffer_views import BufferView

#: The categories that `network_tree` shows; deltas and gradients have the same shapes.
CATEGORIES = ("outputs", "parameters", "internals")

#: Maximum number of characters for the options.
MOST_OPTIONS = 80


def network_tree(
    layers: Mapping[str, Any], buffer: BufferView | None, values: bool = False
) -> Tree:
    """Return the layers with their options, the sources of their inputs, and their buffers.

    Buffers have statistics of their `values` on request.
    """
    nodes = []
    for name, layer in layers.items():
        options = ", ".join(f"{key}={value!r}" for key, value in layer.kwargs.items())
        if len(options) > MOST_OPTIONS:
            options = f"{options[:MOST_OPTIONS]}..."
        sources = ", ".join(
            f"{c.start_layer}.{c.output_name}" for c in sorted(layer.incoming)
        ).replace(".default", "")
        note = f"{layer.type_name}({options})" + (f"  from {sources}" if sources else "")
        below = () if buffer is None else buffer[name].tree(values).nodes
        kept = tuple(node for node in below if node.name in CATEGORIES)
        nodes.append(Node(name, name, note=note, children=kept))
    title = f"Network of {len(layers)} layers"
    return Tree(
        nodes, title if buffer is None else f"{title}, {buffer.parameters.size:,} parameters"
    )


def summarize(layers: Mapping[str, Any]) -> str:
    """Return the table; parameters that belong to another layer are in brackets."""
    rows = [("layer", "type", "outputs", "parameters", "is / has", "needs in backward")]
    total = 0
    for name, layer in layers.items():
        facts = layer.characteristics
        own = sum(
            structure.feature_size
            for parameter, structure in layer.parameter_shapes.items()
            if parameter not in layer.shared_parameters
        )
        total += own
        owners = sorted({path.partition(".")[0] for path in layer.shared_parameters.values()})
        shared = f"(of {', '.join(owners)})" if owners else ""
        outputs = ", ".join(
            format_shape(s.shape) if port == "default" else f"{port} {format_shape(s.shape)}"
            for port, s in layer.out_shapes.items()
        )
        number = f"{own:,}" if own else ""
        needs = ", ".join(sorted(facts.needs_in_backward)) if facts.can_backprop else ""
        flags = [flag for flag in facts.flags if flag not in ("can_backprop", "parameters")]
        rows.append(
            (name, layer.type_name, outputs, f"{number} {shared}".strip(), ", ".join(flags), needs)
        )
    rows.append(("total", "", "", f"{total:,}", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
