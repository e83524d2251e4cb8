"""The arrays of a layout in order; and, for imports by code of 2015, what is tied together.

Connections here are pairs of paths (source, sink). A group of arrays with a fixed order, such as
the parameters of a layer, is one source: the tuple of their paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Node = dict[str, Any]
Source = str | tuple[str, ...]
Links = Iterable[tuple[Source, str]]


def get_order(view: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the children of a node of the layout, by their index."""
    names = [name for name in view if not name.startswith("@")]
    return tuple(sorted(names, key=lambda name: view[name].get("@index", -1)))


def gather_array_nodes(layout: Node, prefix: str = "") -> Iterator[tuple[str, Node]]:
    """Yield (path, node) of all arrays in the order of the layout."""
    for name in get_order(layout):
        path, child = f"{prefix}{name}", layout[name]
        if child["@type"] == "array":
            yield path, child
        else:
            yield from gather_array_nodes(child, f"{path}.")


def get_parameter_order(layer_name: str, layer: Any) -> tuple[str, ...]:
    """Return the paths of the parameters of a layer, in their order in memory."""
    return tuple(f"{layer_name}.parameters.{name}" for name in layer.parameter_shapes)


def get_gradient_order(layer_name: str, layer: Any) -> tuple[str, ...]:
    """Return the paths of the gradients of a layer, in their order in memory."""
    return tuple(f"{layer_name}.gradients.{name}" for name in layer.parameter_shapes)


def get_forced_orders(layers: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the groups of arrays with a fixed order: parameters and gradients of each layer."""
    orders = [
        get(name, layer)
        for get in (get_parameter_order, get_gradient_order)
        for name, layer in layers.items()
    ]
    return [order for order in orders if order]


def merge_connections(
    connections: Iterable[tuple[str, str]], forced_orders: Sequence[tuple[str, ...]]
) -> list[tuple[Source, str]]:
    """Return connections, with sources replaced by their groups; sorted."""
    groups: dict[str, Source] = {path: order for order in forced_orders for path in order}
    merged = {(groups.get(source, source), sink) for source, sink in connections}
    return sorted(merged, key=lambda link: (_paths(link[0]), link[1]))


def get_all_sources(
    forced_orders: Sequence[tuple[str, ...]], connections: Links, layout: Node
) -> list[Source]:
    """Return all arrays that are not the sink of a connection, in groups, as in the layout."""
    sinks = {sink for _, sink in connections}
    groups: dict[str, Source] = {path: order for order in forced_orders for path in order}
    paths = [path for path, _ in gather_array_nodes(layout) if path not in sinks]
    return list(dict.fromkeys(groups.get(path, path) for path in paths))


def get_forward_closure(source: Source, connections: Links) -> tuple[set[Source], set[str]]:
    """Return all sources and sinks that a source is tied to: those that share its hub."""
    links = list(connections)
    sources, sinks, known = {source}, set[str](), 0
    while known != len(sources) + len(sinks):
        known = len(sources) + len(sinks)
        sinks |= {sink for start, sink in links if start in sources}
        sources |= {start for start, sink in links if sink in sinks}
    return sources, sinks


def _paths(source: Source) -> tuple[str, ...]:
    return (source,) if isinstance(source, str) else source
