"""The tree of named views over the hubs' arrays, as described by a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from brainstorm.errors import UnknownPathError, unknown
from brainstorm.forks import cached_property
from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, Members, Origin
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import Node
from brainstorm.structure.null_buffers import NullBuffer
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
    arrays = arrays or ViewArrays()
    names, origin = get_order(layout), Origin(path.rstrip("."), layout, handler)
    present = {} if existing is None else existing._below
    below = {
        name: create_buffer_views_from_layout(
            layout[name], buffers, hubs, handler, view, f"{path}{name}.", arrays
        )
        for name, view in present.items()
    }
    plan = _Plan(layout, buffers, hubs, handler, path, arrays, below)
    if existing is None:
        return BufferView.planned(names, plan, origin, arrays)
    existing.adjust(names, plan, origin)
    return existing


class _Plan:
    """Creates the members of a view, as described by its node of the layout."""

    def __init__(
        self,
        layout: Node,
        buffers: Sequence[Array],
        hubs: Sequence[Hub],
        handler: Handler,
        path: str,
        arrays: ViewArrays,
        below: Mapping[str, BufferView],
    ) -> None:
        self._layout, self._buffers, self._hubs, self._handler = layout, buffers, hubs, handler
        self._path, self._arrays, self._below = path, arrays, below

    def __call__(self) -> Members:
        children, full, joints = self._makers
        return Members(
            [make() for make in children],
            full(),
            {group: make() for group, make in joints.items()},
        )

    @cached_property
    def _makers(self) -> tuple[list[_Make], _Make, dict[tuple[str, ...], _Make]]:
        layout = self._layout
        nodes = {name: layout[name] for name in get_order(layout)}
        children = [self._child(name, node) for name, node in nodes.items()]
        is_contiguous = "@slice" in layout
        full = self._joined(list(nodes.values()), flat=True) if is_contiguous else lambda: None
        groups = layout.get("@joints", ())
        joints = {g: self._joined([nodes[name] for name in g], flat=False) for g in groups}
        return children, full, joints

    def _child(self, name: str, node: Node) -> _Make:
        path = self._path + name
        if node["@type"] != "array":
            view = self._below.get(name)
            if view is None:
                view = create_buffer_views_from_layout(
                    node, self._buffers, self._hubs, self._handler, None, f"{path}.", self._arrays
                )
            return lambda: view
        if "@null" in node:
            null = NullBuffer(path, node["@null"])
            return lambda: null
        structure = BufferStructure.from_layout(node)
        if "@hub" not in node:
            array = self._handler.allocate(structure.get_shape(0, 0))
            return lambda: array
        return self._part(structure, node["@hub"], node["@slice"])

    def _part(self, structure: BufferStructure, number: int, where: tuple[int, int]) -> _Make:
        buffers, hub = self._buffers, self._hubs[number]
        return lambda: structure.create_from_buffer_hub(buffers[number], hub, where)

    def _joined(self, nodes: Sequence[Node], flat: bool) -> _Make:
        """Return the maker of one array over adjacent ones, of which constant ones may be flat."""
        number, start, stop = nodes[0]["@hub"], nodes[0]["@slice"][0], nodes[-1]["@slice"][1]
        hub, shape = self._hubs[number], (stop - start,)
        if hub.buffer_type == CONSTANT and not flat:
            shape = (sum(node["@shape"][0] for node in nodes), *nodes[0]["@shape"][1:])
        columns = (hub.columns,) if hub.columns else ()
        markers = (hub.time, "B")[TIME - hub.buffer_type :]
        context = min(node.get("@context_size", 0) for node in nodes)
        structure = BufferStructure(*markers, *shape, *columns, context_size=context)
        return self._part(structure, number, (start, stop))


#: Returns a member of a view.
_Make: TypeAlias = Callable[[], Any]


def find_array(root: BufferView, path: str) -> Array:
    """Return the array at a dotted path below a view.

    Raises:
        UnknownPathError: The path does not exist, or is a view.
        NullBufferError: It is a delta that is not needed, and so not allocated.
    """
    if not isinstance(path, str):
        raise UnknownPathError(
            f"expected a dotted path such as 'Output.outputs.default', got {path!r}."
        )
    found: Any = root
    for position, part in enumerate(parts := path.split(".")):
        if not isinstance(found, BufferView):
            where = ".".join(parts[:position])
            raise UnknownPathError(f"path {path!r}: {where!r} is an array, not a group.")
        if part not in found:
            raise UnknownPathError(f"path {path!r}: {unknown('name', part, found.keys())}")
        found = found[part]
    if isinstance(found, BufferView):
        raise UnknownPathError(
            f"path {path!r} is a group of buffers. Choose one of: {', '.join(found.keys())}."
        )
    if isinstance(found, NullBuffer):
        raise found.error()
    return found
