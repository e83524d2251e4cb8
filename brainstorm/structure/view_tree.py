"""The tree of named views over the hubs' arrays, as a layout describes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, NullBuffer, Origin
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import Node
from brainstorm.utils import Array, sort_by_index_key

__all__ = ["create_buffer_views_from_layout"]


def create_buffer_views_from_layout(
    layout: Node,
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    handler: Handler,
    existing: BufferView | None = None,
    path: str = "",
) -> BufferView:
    """Return the tree of named views over the hubs' arrays.

    Args:
        layout: The layout, or a view node of it.
        buffers: One array per hub.
        hubs: The hubs.
        handler: Makes the arrays of size zero that lie in no hub.
        existing: A tree from an earlier call, to be re-pointed in place.
        path: Dotted path of `layout`, with a dot at the end unless empty.
    """
    children = sorted(
        ((k, v) for k, v in layout.items() if not k.startswith("@")), key=sort_by_index_key
    )
    members = []
    for name, node in children:
        if node["@type"] == "array":
            members.append(_array(node, buffers, hubs, handler, path + name))
        else:
            below = None if existing is None else existing[name]
            members.append(
                create_buffer_views_from_layout(
                    node, buffers, hubs, handler, below, f"{path}{name}."
                )
            )
    names = [name for name, _ in children]
    nodes = dict(children)
    full = _joined(layout, [n for _, n in children], buffers, hubs, flat=True)
    joints = {
        group: _joined_group([nodes[name] for name in group], buffers, hubs)
        for group in layout.get("@joints", ())
    }
    origin = Origin(path.rstrip("."), layout, handler)
    if existing is None:
        return BufferView(names, members, full, joints, origin)
    return existing.adjust(names, members, full, joints, origin)


def _array(
    node: Node, buffers: Sequence[Array], hubs: Sequence[Hub], handler: Handler, path: str
) -> Array:
    if "@null" in node:
        return NullBuffer(path, node["@null"])
    structure = BufferStructure.from_layout(node)
    if "@hub" not in node:
        return handler.allocate(structure.get_shape(0, 0))
    number = node["@hub"]
    return structure.create_from_buffer_hub(buffers[number], hubs[number], node["@slice"])


def _joined(
    view: Node,
    nodes: Sequence[Node],
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    flat: bool,
) -> Array | None:
    if "@slice" not in view:
        return None
    start, stop = view["@slice"]
    shape: tuple[Any, ...] = (stop - start,)
    hub = hubs[view["@hub"]]
    if hub.buffer_type == CONSTANT and not flat:
        first = nodes[0]["@shape"]
        shape = (sum(node["@shape"][0] for node in nodes), *first[1:])
    if hub.is_square:
        shape = (*shape, "T")
    markers = ("T", "B")[TIME - hub.buffer_type :]
    context = min(node.get("@context_size", 0) for node in nodes)
    structure = BufferStructure(*markers, *shape, context_size=context)
    return structure.create_from_buffer_hub(buffers[view["@hub"]], hub, (start, stop))


def _joined_group(nodes: Sequence[Node], buffers: Sequence[Array], hubs: Sequence[Hub]) -> Array:
    slices = [node["@slice"] for node in nodes]
    together = {"@hub": nodes[0]["@hub"], "@slice": (slices[0][0], slices[-1][1])}
    return _joined(together, nodes, buffers, hubs, flat=False)
