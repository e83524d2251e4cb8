"""A network as a table: each layer with its shapes, parameters and characteristics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.structure.buffer_structure import format_shape

__all__ = ["summarize"]


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
