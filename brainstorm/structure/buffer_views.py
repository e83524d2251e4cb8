"""BufferView: named arrays, reachable by index, name, attribute and dotted path."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from brainstorm.display import Node, ShownAsTree, Statistics, Tree
from brainstorm.errors import NetworkValidationError, UnknownPathError, unknown
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.null_buffers import NullBuffer
from brainstorm.structure.view_arrays import ViewArrays
from brainstorm.utils import Array, format_bytes


class Origin(NamedTuple):
    """The origin of a view of a network.

    Attributes:
        path: Its dotted path; empty for the whole tree.
        layout: The node of the layout for the view.
        handler: The handler of its arrays.
    """

    path: str
    layout: Mapping[str, Any]
    handler: Any


#: Attributes of a view that are created when needed, and those that always exist.
_MADE = ("_children", "_full_buffer", "_joints", "_looks")
_FIXED = frozenset(
    {"_buffer_names", "_keys", "_attributes", "_arrays", "_below", "_origin", "_make"}
)


class Members(NamedTuple):
    """The members of a view.

    Attributes:
        children: Arrays or views, in order.
        full_buffer: One array over all children, if they are contiguous in memory.
        joints: Names of adjacent children to the one array over them.
    """

    children: Sequence[Any]
    full_buffer: Array | None = None
    joints: Mapping[tuple[str, ...], Array] | None = None


def _looks(children: Mapping[str, Any]) -> list[Any]:
    """Return what users can change of the arrays themselves, apart from their values."""
    return [(a.shape, a.flags.num) for a in children.values() if isinstance(a, np.ndarray)]


class BufferView(ShownAsTree, list[Any]):
    """A node of the tree of buffers: an ordered collection of arrays or further views.

    ``view[0]``, ``view['W']``, ``view.W`` and ``view['a.b']`` all work, and so does unpacking in
    the order of declaration. A child named like a method (``keys``) is not an attribute.

    Args:
        buffer_names: Names of the children, in order.
        buffers: The children: arrays or views.
        full_buffer: One array over all children, if they are contiguous in memory.
        joints: Names of adjacent children to the one array over them.
        origin: Its origin, if it is a view of a network.

    Raises:
        ValueError: The numbers of names and buffers differ.
    """

    def __init__(
        self,
        buffer_names: Sequence[str],
        buffers: Iterable[Any],
        full_buffer: Array | None = None,
        joints: Mapping[tuple[str, ...], Array] | None = None,
        origin: Origin | None = None,
    ) -> None:
        members = Members(list(buffers), full_buffer, joints)
        super().__init__(members.children)
        self._name(buffer_names)
        self.adjust(self._buffer_names, lambda: members, origin)
        self._fill()

    @classmethod
    def planned(
        cls,
        names: Sequence[str],
        make: Callable[[], Members],
        origin: Origin,
        arrays: ViewArrays,
    ) -> BufferView:
        """Return a view whose members are created when needed; see `adjust`.

        Args:
            names: The names.
            make: See `adjust`.
            origin: Its origin.
            arrays: That of the tree.
        """
        view = cls.__new__(cls)
        list.__init__(view, [None] * len(names))
        view._name(names)
        view.__dict__.update(_make=make, _origin=origin, _arrays=arrays)
        return view

    def _name(self, names: Sequence[str]) -> None:
        own = {"_buffer_names": tuple(names), "_keys": frozenset(names)}
        self.__dict__.update(own, _attributes=None, _below={}, _origin=None, _arrays=None)

    def adjust(
        self, names: Sequence[str], make: Callable[[], Members], origin: Origin | None = None
    ) -> None:
        """Replace the members by others of the same names.

        Args:
            names: The names.
            make: Returns the members. It is called when one is needed, and again after `leave`;
                the views among them are always the same ones.
            origin: The new origin of the view.

        Raises:
            ValueError: The names or the number of members differ from the present ones.
        """
        if tuple(names) != self._buffer_names:
            raise ValueError(f"expected the names {self._buffer_names}, got {tuple(names)}")
        self.leave()
        self.__dict__.update(_make=make, _origin=origin or self._origin, _attributes=None)

    def leave(self) -> dict[str, Any]:
        """Drop the members, which are created again when needed.

        Returns:
            The members by attribute; nothing if there were none, or an earlier call had dropped
            some of them and was interrupted.
        """
        attributes = self.__dict__  # without _children, the view counts as empty: they go first
        left = {name: attributes.pop(name, None) for name in (*_MADE, *(self._attributes or ()))}
        return {} if left["_children"] is None else left

    def _fill(self) -> dict[str, Any]:
        """Give the view its members, and return them."""
        arrays = self._arrays
        if arrays is None:
            return self._take(self._made())
        with arrays.lock:
            if "_children" in self.__dict__:  # meanwhile another thread gave it its members
                return dict(self.__dict__)
            found = self._known() or self._made()
            if found["_full_buffer"] is not None or len(self._below) < len(self._keys):
                arrays.filled[id(self)] = self  # before it has any that could be forgotten
            return self._take(found)

    def _take(self, members: dict[str, Any]) -> dict[str, Any]:
        super().__setitem__(slice(None), members["_children"].values())
        self.__dict__.update(members)
        return members

    def _sort(self, children: Mapping[str, Any]) -> None:
        """Distinguish views, which stay, and arrays, which come and go with sizes."""
        free = [name for name in children if name not in _FIXED and not hasattr(BufferView, name)]
        below = {name: child for name, child in children.items() if isinstance(child, BufferView)}
        arrays = [name for name in free if name not in below]
        stay = {name: below[name] for name in free if name in below}
        self.__dict__.update(stay, _attributes=arrays, _below=below)

    def _known(self) -> dict[str, Any] | None:
        """Return the members that the view had for the same sizes, unless users changed them."""
        known = None if self._arrays is None else self._arrays.ready.get(self._origin.path)
        return known if known and known["_looks"] == _looks(known["_children"]) else None

    def _made(self) -> dict[str, Any]:
        names, (members, full_buffer, joints) = self._buffer_names, self._make()
        if len(names) != len(members):
            raise ValueError(f"expected as many buffers as names {names}, got {len(members)}")
        children = dict(zip(names, members, strict=True))
        made = {"_children": children, "_full_buffer": full_buffer, "_joints": dict(joints or {})}
        made["_looks"] = None if self._arrays is None else _looks(children)
        if self._attributes is None:
            self._sort(children)
        return {**{name: children[name] for name in self._attributes}, **made}

    def joint(self, *names: str) -> Array:
        """Return one array over several children that the layer declares as ``joint_buffers``.

        Raises:
            UnknownPathError: They are not declared as adjacent.
        """
        try:
            return self._joints[names]
        except KeyError:
            declared = [", ".join(group) for group in self._joints]
            raise UnknownPathError(unknown("joint buffer", ", ".join(names), declared)) from None

    def with_leading_axis(self, names: Collection[str]) -> BufferView:
        """Return a view of the same arrays, with an axis of size 1 in front of the named ones.

        Null buffers are unchanged.
        """
        if not names:
            return self

        def lifted(array: Any) -> Any:
            return array if isinstance(array, NullBuffer) else array.reshape((1, *array.shape))

        children = [lifted(child) if name in names else child for name, child in self.items()]
        joints = {
            group: lifted(array) if group[0] in names else array
            for group, array in self._joints.items()
        }
        return BufferView(self._buffer_names, children, joints=joints)

    def keys(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return self._buffer_names

    def values(self) -> list[Any]:
        """Return the children, in order."""
        return list(self._children.values())

    def items(self) -> list[tuple[str, Any]]:
        """Return (name, child) pairs, in order."""
        return list(self._children.items())

    def _asdict(self) -> OrderedDict[str, Any]:
        return OrderedDict(self.items())

    def __getitem__(self, item: Any) -> Any:
        if not isinstance(item, str):
            return self.values()[item]
        name, _, rest = item.partition(".")
        if name not in self._keys:
            raise UnknownPathError(unknown("buffer", name, self._buffer_names))
        child = self._below.get(name) or self._children[name]
        if not rest:
            return child
        if not isinstance(child, BufferView):
            raise UnknownPathError(f"path {item!r}: {name!r} is an array, not a group.")
        return child[rest]

    def __getattr__(self, name: str) -> Any:
        # Only called for missing attributes: children become ordinary ones when created.
        if name.startswith("__"):
            raise AttributeError(name)
        attributes = self.__dict__
        known = attributes.get("_buffer_names", ())
        if "_make" in attributes and (name in known or name in _MADE):
            found = self._fill()
            return found[name] if name in _MADE else found["_children"][name]
        raise AttributeError(unknown("buffer", name, known))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.values())

    def __add__(self, other: Any) -> Any:
        return self.values() + other

    def copy(self) -> list[Any]:
        """Return the children, in order."""
        return self.values()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_keys", ()) and not name.startswith("_"):
            if value is not self[name]:  # as it is after ``view.W += 1``
                raise self._no_replacing(name)
            return
        super().__setattr__(name, value)

    def __setitem__(self, item: Any, value: Any) -> None:
        if isinstance(item, slice) or value is not self[item]:
            name = item if isinstance(item, str) else self._buffer_names[item]
            raise self._no_replacing(name if isinstance(name, str) else ", ".join(name))

    def _no_replacing(self, name: str) -> NetworkValidationError:
        path = self._path(name)
        return NetworkValidationError(
            f"buffer {path!r} cannot be replaced. Write into its memory: buffer[{path!r}][:] = ..."
        )

    def _path(self, name: str) -> str:
        """Return the dotted path of a child in the network of this view."""
        return f"{self._origin.path}.{name}".lstrip(".") if self._origin else name

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._buffer_names]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        made = self._buffer_names, self.values(), self._full_buffer, self._joints, self._origin
        return BufferView, made

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferView:
        copied = BufferView(
            self._buffer_names,
            [copy.deepcopy(child, memo) for child in self],
            copy.deepcopy(self._full_buffer, memo),
            {names: copy.deepcopy(array, memo) for names, array in self._joints.items()},
            self._origin,
        )
        memo[id(self)] = copied
        return copied

    # -- showing ------------------------------------------------------------------------------

    def paths(self, pattern: str = "*") -> list[str]:
        """Return the dotted paths, relative to this view, of all arrays that match a pattern.

        Args:
            pattern: ``*`` stands for anything, including dots: ``'Conv*.parameters.W'``.
        """
        found = []
        for name, child in self.items():
            if isinstance(child, BufferView):
                found += [f"{name}.{path}" for path in child.paths()]
            elif child is not None and not isinstance(child, NullBuffer):
                found.append(name)
        return [path for path in found if fnmatchcase(path, pattern)]

    def tree(self, values: bool = False) -> Tree:
        """Return a tree of all arrays in this view, which can be printed or shown in a notebook.

        Each array has its shape as the layer declares it, dtype[shape] and size, and a note if
        it shares its memory (then its values are valid only within the time given by the note).

        Args:
            values: Whether to show statistics: the minimum, mean and maximum of the finite
                values, and how many are NaN or infinite.
        """
        return Tree(self._nodes(values), self._origin.path if self._origin else "")

    def _nodes(self, values: bool) -> list[Node]:
        """Return the nodes of `tree`, except groups without arrays."""
        nodes = []
        for name, child in self.items():
            path = self._path(name)
            if not isinstance(child, BufferView):
                nodes.append(Node(name, path, self._cells(name, child, values)))
            elif len(child):
                nodes.append(Node(name, path, children=tuple(child._nodes(values))))
        return nodes

    def _cells(self, name: str, child: Any, values: bool) -> dict[str, str]:
        if child is None or isinstance(child, NullBuffer):
            return {"array": "not allocated"}
        array = getattr(child, "array", child)
        cells = {
            "array": f"{array.dtype}[{', '.join(map(str, array.shape))}]",
            "bytes": format_bytes(array.size * array.dtype.itemsize),
        }
        if self._origin is not None:
            node = self._origin.layout[name]
            cells["template"] = BufferStructure.from_layout(node).template
            cells["note"] = f"shared: {node['@lives']}" if "@lives" in node else ""
        if values and array.size:
            content = self._origin.handler.get_numpy_copy(child) if self._origin else array
            cells.update(Statistics.of(content).as_cells())
        return cells
