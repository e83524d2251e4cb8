"""Lifetimes: the time between the first and the last use of the content of a hub.

Time is counted in *positions*, the steps of a forward and a backward pass over n layers: layer i
runs forward at position i and backward at 2n - 1 - i. The buffers that a step uses follow from the
declarations of layers (``needs_in_backward``, backward-only internals) and from copied inputs; a
delta is cleared, if necessary, in the step that uses it first. A hub lives from the first use of
any of its buffers to the last one. For example, in Input, Hidden, Out, Error, Loss the outputs of
Hidden are written at 1, read by Out at 2, and read again by both in the backward pass, at 7 and 8:
they live from 1 to 8. The deltas of Out live from 6 to 7.

These always live: the data (outputs of Input), everything with a context (the state that is carried
on), and everything that does not grow with the batch (parameters, gradients, running statistics).
Buffers that are read after a pass live to the end: predictions, outputs of loss and statistics
layers, and outputs that are not connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError, unknown
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import CONSTANT
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import (
    BACKWARD_VIEWS,
    VIEWS,
    Node,
    create_layout,
    gather_array_nodes,
)

#: Memory strategies: keep everything, or reuse memory that is no longer needed.
STRATEGIES = ("inspectable", "compact")

Layers = Mapping[str, Any]


def plan_memory(
    layers: Layers, keep_input_deltas: bool = False, strategy: str = "inspectable"
) -> tuple[list[Hub], Node]:
    """Plan the memory of a network, as `create_layout` does.

    With strategy ``'inspectable'`` every buffer has memory of its own. With ``'compact'`` hubs and
    layout have lifetimes: buffers whose lifetimes do not overlap share memory.

    Raises:
        NetworkValidationError: There is no such strategy, or `create_layout` fails.
    """
    if strategy not in STRATEGIES:
        raise NetworkValidationError(unknown("memory strategy", strategy, STRATEGIES))
    hubs, layout = create_layout(layers, keep_input_deltas)
    if strategy == "compact":
        _write_lifetimes(hubs, layout, layers)
    return hubs, layout


def _write_lifetimes(hubs: list[Hub], layout: Node, layers: Layers) -> None:
    nodes = dict(gather_array_nodes(layout))
    used: list[list[int]] = [[] for _ in hubs]
    for path, position in _uses(layers, layout):
        if "@hub" in nodes[path]:
            used[nodes[path]["@hub"]].append(position)
    for hub, positions in zip(hubs, used, strict=True):
        holds_state = hub.context_size and not hub.is_backward_only
        holds_data = any(path.startswith(f"{INPUT}.outputs.") for path in hub.slices)
        if hub.buffer_type == CONSTANT or holds_state or holds_data:
            continue
        hub.lifetime = (min(positions), max(positions))
        text = " to ".join(_describe(position, list(layers)) for position in hub.lifetime)
        for path in hub.slices:
            nodes[path]["@lives"] = text


def _uses(layers: Layers, layout: Node) -> Iterator[tuple[str, int]]:
    """Yield (path, position) for all uses of buffers by layers, and by copies, in the passes."""
    end = 2 * len(layers) - 1
    for forward, (name, layer) in enumerate(layers.items()):
        used_backward: set[str] = set()
        if "@needed" in layout[name]:
            # A backward pass may write to any internal, even if it reads none.
            used_backward = {*layer.needs_in_backward, *BACKWARD_VIEWS, "internals"}
        for category, shapes in VIEWS.items():
            for port, structure in getattr(layer, shapes).items():
                path = f"{name}.{category}.{port}"
                if category not in BACKWARD_VIEWS and not structure.is_backward_only:
                    yield path, forward
                if category in used_backward or structure.is_backward_only:
                    yield path, end - forward
                if category == "outputs" and _is_read_after_passes(layer, port):
                    yield path, end
                for source in layout[name][category][port].get("@copy_of", ()):
                    yield source, forward if category == "inputs" else end - forward


def _is_read_after_passes(layer: Any, output: str) -> bool:
    is_connected = any(c.output_name == output for c in layer.outgoing)
    return output == "predictions" or layer.has_loss or layer.has_stats or not is_connected


def _describe(position: int, names: list[str]) -> str:
    if position == 2 * len(names) - 1:
        return "the end"
    is_forward = position < len(names)
    name = names[position if is_forward else 2 * len(names) - 1 - position]
    return f"{name} {'forward' if is_forward else 'backward'}"
