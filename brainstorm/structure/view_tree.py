"""The tree of named views over the hubs' arrays, as described by a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, Members, NullBuffer, Origin
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import Node
from brainstorm.structure.orders import get_order
from brainstorm.structure.view_arrays import ViewArrays
from brainstorm.utils import Array


def create_buffer_views_from_layout(
    layout: Node,
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    handler: Handler,
    existing: BufferView | None = None,
    path: str = "",
    arrays: ViewArrays | None = None,
) -> BufferView:
    """Return the tree of named views over the hubs' arrays.

    Views, and their arrays of `buffers`, are created when needed; the arrays again after `leave`.

    Args:
        layout: The layout, or a view node of it.
        buffers: One array per hub.
        hubs: The hubs.
        handler: Allocates arrays of size zero, which lie in no hub.
        existing: A tree from an earlier call, to be updated in place.
        path: Dotted path of `layout`, with a dot at the end unless empty.
        arrays: Keeps their arrays when these change.
    """
    source = _Source(buffers, hubs, handler, arrays or ViewArrays())
    names, origin = get_order(layout), Origin(path.rstrip("."), layout, handler)
    if existing is None:
        return BufferView.planned(names, _Plan(source, layout, names, path), origin, source.arrays)
    below = {
        name: create_buffer_views_from_layout(
            layout[name], buffers, hubs, handler, view, f"{path}{name}.", source.arrays
        )
        for name, view in (existing._below or {}).items()
    }
    existing.adjust(names, _Plan(source, layout, names, path, below), origin)
    return existing


class _Source(NamedTuple):
    """The source of the arrays of all views of a tree."""

    buffers: Sequence[Array]
    hubs: Sequence[Hub]
    handler: Handler
    arrays: ViewArrays


class _Plan:
    """Creates the members of a view, as described by its node of the layout."""

    def __init__(
        self,
        source: _Source,
        layout: Node,
        names: Sequence[str],
        path: str,
        below: Mapping[str, BufferView] | None = None,
    ) -> None:
        self._about = source, layout, names, path, below or {}

    def __call__(self) -> Members:
        buffers = self._about[0].buffers
        members, full, joints = self._makers
        return Members(
            [make(buffers) for make in members],
            full(buffers),
            {group: make(buffers) for group, make in joints.items()},
        )

    @cached_property
    def _makers(self) -> tuple[list[_Make], _Make, dict[tuple[str, ...], _Make]]:
        source, layout, names, path, below = self._about
        buffers, hubs, handler, arrays = source
        members = [
            _array(layout[name], hubs, handler, path + name)
            if layout[name]["@type"] == "array"
            else partial(
                _same,
                below[name]
                if name in below
                else create_buffer_views_from_layout(
                    layout[name], buffers, hubs, handler, None, f"{path}{name}.", arrays
                ),
            )
            for name in names
        ]
        full = _joined(layout, [layout[name] for name in names], hubs, flat=True)
        groups = layout.get("@joints", ())
        joints = {g: _joined_group([layout[name] for name in g], hubs) for g in groups}
        return members, full, joints


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
    if hub.columns:
        shape = (*shape, hub.columns)
    markers = (hub.time, "B")[TIME - hub.buffer_type :]
    context = min(node.get("@context_size", 0) for node in nodes)
    structure = BufferStructure(*markers, *shape, context_size=context)
    return _part(structure, hubs, view["@hub"], (start, stop))


def _joined_group(nodes: Sequence[Node], hubs: Sequence[Hub]) -> _Make:
    slices = [node["@slice"] for node in nodes]
    together = {"@hub": nodes[0]["@hub"], "@slice": (slices[0][0], slices[-1][1])}
    return _joined(together, nodes, hubs, flat=False)
