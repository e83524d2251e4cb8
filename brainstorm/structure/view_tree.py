"""The tree of named views over the hubs' arrays, as a layout describes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, Members, NullBuffer, Origin
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

    Views take the arrays of `buffers` when they are looked into, and again after `forget`.

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
    makers: list[_Make] = []
    for name, node in children:
        if node["@type"] == "array":
            makers.append(_array(node, hubs, handler, path + name))
        else:
            below = create_buffer_views_from_layout(
                node,
                buffers,
                hubs,
                handler,
                None if existing is None else existing[name],
                f"{path}{name}.",
            )
            makers.append(partial(_same, below))
    names, nodes = [name for name, _ in children], dict(children)
    full = _joined(layout, [n for _, n in children], hubs, flat=True)
    joints = {
        group: _joined_group([nodes[name] for name in group], hubs)
        for group in layout.get("@joints", ())
    }

    def make() -> Members:
        return Members(
            [make(buffers) for make in makers],
            full(buffers),
            {group: make(buffers) for group, make in joints.items()},
        )

    if existing is None:
        existing = BufferView(names, *make())
    existing.adjust(names, make, Origin(path.rstrip("."), layout, handler))
    return existing


#: Returns a member of a view, given the hubs' arrays.
_Make: TypeAlias = Callable[[Sequence[Array]], Any]


def _same(member: Any, buffers: Sequence[Array]) -> Any:
    return member


def _array(node: Node, hubs: Sequence[Hub], handler: Handler, path: str) -> _Make:
    if "@null" in node:
        return partial(_same, NullBuffer(path, node["@null"]))
    structure = BufferStructure.from_layout(node)
    if "@hub" not in node:
        return partial(_same, handler.allocate(structure.get_shape(0, 0)))
    return _part(structure, hubs, node["@hub"], node["@slice"])


def _part(
    structure: BufferStructure, hubs: Sequence[Hub], number: int, where: tuple[int, int]
) -> _Make:
    return lambda buffers: structure.create_from_buffer_hub(buffers[number], hubs[number], where)


def _joined(view: Node, nodes: Sequence[Node], hubs: Sequence[Hub], flat: bool) -> _Make:
    if "@slice" not in view:
        return partial(_same, None)
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
    return _part(structure, hubs, view["@hub"], (start, stop))


def _joined_group(nodes: Sequence[Node], hubs: Sequence[Hub]) -> _Make:
    slices = [node["@slice"] for node in nodes]
    together = {"@hub": nodes[0]["@hub"], "@slice": (slices[0][0], slices[-1][1])}
    return _joined(together, nodes, hubs, flat=False)
