"""The tree of named views over the hubs' arrays, as described by a layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from brainstorm.errors import UnknownPathError, unknown
from brainstorm.forks import cached_property
from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, Members, Origin
from brainstorm.structure.hub_arrays import ArraysBySize, HubArrays
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import Node
from brainstorm.structure.null_buffers import NullBuffer
from brainstorm.structure.orders import get_order
from brainstorm.utils import Array


def create_buffer_views_from_layout(
    layout: Node,
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    handler: Handler,
    existing: BufferView | None = None,
) -> BufferView:
    """Return the tree of named views over the hubs' arrays.

    Args:
        layout: The layout.
        buffers: One array per hub.
        hubs: The hubs.
        handler: Allocates arrays of size zero, which lie in no hub.
        existing: A tree from an earlier call, to be updated in place.
    """
    arrays = ArraysBySize()
    arrays.present = HubArrays.of(buffers, hubs)
    return create_views(layout, arrays, hubs, handler, existing)


def create_views(
    layout: Node,
    arrays: ArraysBySize,
    hubs: Sequence[Hub],
    handler: Handler,
    existing: BufferView | None = None,
    path: str = "",
) -> BufferView:
    """Return a tree like `create_buffer_views_from_layout`, over what are the present arrays.

    Args:
        layout: The layout, or a view node of it.
        arrays: One array per hub, and what is made of them.
        hubs: The hubs.
        handler: Allocates arrays of size zero, which lie in no hub.
        existing: A tree from an earlier call, to be updated in place.
        path: Dotted path of `layout`.
    """
    names, origin = get_order(layout), Origin(path, layout, handler)
    views = {}
    for name in names:
        if layout[name]["@type"] != "array":
            present = None if existing is None else existing._views[name]
            where = origin.path_of(name)
            views[name] = create_views(layout[name], arrays, hubs, handler, present, where)
    if existing is None:
        existing = BufferView(names, map(views.get, names))
    existing._find, existing._origin = _Plan(origin, arrays, hubs), origin
    return existing


class _Plan:
    """Finds or creates the arrays of a view, as described by its node of the layout."""

    def __init__(self, origin: Origin, arrays: ArraysBySize, hubs: Sequence[Hub]) -> None:
        self._origin, self._arrays, self._hubs = origin, arrays, hubs

    def __call__(self) -> Members:
        present, path = self._arrays.present, self._origin.path
        found = present.members.get(path)
        if found is None:
            arrays, full, joints = self._makers
            made = {name: make(present) for name, make in arrays.items()}
            joined = {group: make(present) for group, make in joints.items()}
            found = present.members.setdefault(path, Members(made, full(present), joined))
        return found

    @cached_property
    def _makers(self) -> tuple[dict[str, _Make], _Make, dict[tuple[str, ...], _Make]]:
        layout = self._origin.layout
        nodes = {name: layout[name] for name in get_order(layout)}
        arrays = {n: self._array(n, node) for n, node in nodes.items() if node["@type"] == "array"}
        is_contiguous = "@slice" in layout
        full = self._joined(list(nodes.values()), flat=True) if is_contiguous else lambda _: None
        groups = layout.get("@joints", ())
        joints = {g: self._joined([nodes[name] for name in g], flat=False) for g in groups}
        return arrays, full, joints

    def _array(self, name: str, node: Node) -> _Make:
        if "@null" in node:
            null = NullBuffer(self._origin.path_of(name), node["@null"])
            return lambda _: null
        structure = BufferStructure.from_layout(node)
        if "@hub" not in node:
            array = self._origin.handler.allocate(structure.get_shape(0, 0))
            return lambda _: array
        return self._part(structure, node["@hub"], node["@slice"])

    def _part(self, structure: BufferStructure, number: int, where: tuple[int, int]) -> _Make:
        hub = self._hubs[number]
        return lambda arrays: structure.create_from_buffer_hub(arrays[number], hub, where)

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


#: Returns an array of a view, given those of the hubs.
_Make: TypeAlias = Callable[[HubArrays], Any]


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
    above: Any = {}
    for position, part in enumerate(parts := path.split(".")):
        if not isinstance(found, BufferView):
            where = ".".join(parts[:position])
            raise UnknownPathError(f"path {path!r}: {where!r} is an array, not a group.")
        if part not in found:
            others = [name for name in above.keys() if f"{name}.{part}" in above]  # noqa: SIM118
            where = f" Others of this name are in {', '.join(others)}." if others else ""
            raise UnknownPathError(f"path {path!r}: {unknown('name', part, found.keys())}{where}")
        above, found = found, found[part]
    if isinstance(found, BufferView):
        choices = f"Choose one of: {', '.join(found.keys())}" if found.keys() else "It is empty"
        raise UnknownPathError(f"path {path!r} is a group of buffers. {choices}.")
    if isinstance(found, NullBuffer):
        raise found.error()
    return found
