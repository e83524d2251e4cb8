"""BufferView: named arrays, reachable by index, name, attribute and dotted path."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from brainstorm.display import Node, ShownAsTree, Statistics, Tree
from brainstorm.errors import NetworkValidationError, UnknownPathError, unknown
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.null_buffers import NullBuffer
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

    def path_of(self, name: str) -> str:
        """Return the dotted path of a child."""
        return f"{self.path}.{name}".lstrip(".")


class Members(NamedTuple):
    """The arrays of a view, for some T and B.

    Attributes:
        arrays: Name to array, or what stands for one.
        full_buffer: One array over all children, if they are contiguous in memory.
        joints: Names of adjacent children to the one array over them.
    """

    arrays: Mapping[str, Any]
    full_buffer: Array | None
    joints: Mapping[tuple[str, ...], Array]


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
        names, children = tuple(buffer_names), list(buffers)
        if len(names) != len(children):
            raise ValueError(f"expected as many buffers as names {names}, got {len(children)}")
        super().__init__(children)
        named = dict(zip(names, children, strict=True))
        views = {name: child for name, child in named.items() if isinstance(child, BufferView)}
        arrays = {name: child for name, child in named.items() if name not in views}
        members = Members(arrays, full_buffer, dict(joints or {}))
        own = {"_buffer_names": names, "_keys": frozenset(names), "_views": views}
        self.__dict__.update(own, _find=lambda: members, _origin=origin)
        for name, view in views.items():
            if not (name in self.__dict__ or hasattr(BufferView, name)):
                self.__dict__[name] = view

    def adjust(
        self, names: Sequence[str], buffers: Iterable[Any], full_buffer: Array | None = None
    ) -> BufferView:
        """Replace the children by others of the same names, and return the view.

        Args:
            names: The names of the children, in order.
            buffers: The children: arrays or views.
            full_buffer: One array over all children, if they are contiguous in memory.

        Raises:
            ValueError: The names differ from the present ones.
        """
        if tuple(names) != self._buffer_names:
            raise ValueError(f"expected the names {self._buffer_names}, got {tuple(names)}")
        self.__dict__.update(vars(BufferView(names, buffers, full_buffer, origin=self._origin)))
        return self

    @property
    def _full_buffer(self) -> Array | None:
        return self._find().full_buffer

    def joint(self, *names: str) -> Array:
        """Return one array over several children that the layer declares as ``joint_buffers``.

        Raises:
            UnknownPathError: They are not declared as adjacent.
        """
        joints = self._find().joints
        try:
            return joints[names]
        except KeyError:
            declared = [", ".join(group) for group in joints]
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
            for group, array in self._find().joints.items()
        }
        return BufferView(self._buffer_names, children, joints=joints)

    def keys(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return self._buffer_names

    def values(self) -> list[Any]:
        """Return the children, in order."""
        views, arrays = self._views, self._find().arrays
        return [views[n] if n in views else arrays[n] for n in self._buffer_names]

    def items(self) -> list[tuple[str, Any]]:
        """Return (name, child) pairs, in order."""
        return list(zip(self._buffer_names, self.values(), strict=True))

    def _asdict(self) -> OrderedDict[str, Any]:
        return OrderedDict(self.items())

    def __getitem__(self, item: Any) -> Any:
        if not isinstance(item, str):
            return self.values()[item]
        view, rest = self, item
        while True:
            name, _, rest = rest.partition(".")
            below = view._views.get(name)
            if below is None:
                break
            if not rest:
                return below
            view = below
        if name not in view._keys:
            raise UnknownPathError(unknown("buffer", name, view._buffer_names))
        if rest:
            raise UnknownPathError(f"path '{name}.{rest}': {name!r} is an array, not a group.")
        return view._find().arrays[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.__dict__.get("_keys", ()):
            return self._find().arrays[name]
        raise AttributeError(unknown("buffer", name, self.__dict__.get("_buffer_names", ())))

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
        if "_keys" not in self.__dict__ or name.startswith("_"):
            super().__setattr__(name, value)
        elif name not in self._keys:
            raise AttributeError(unknown("buffer", name, self._buffer_names))
        elif value is not self[name]:  # as it is after ``view.W += 1``
            raise self._no_replacing(name)

    def __setitem__(self, item: Any, value: Any) -> None:
        if value is not self[item]:
            name = item if isinstance(item, str) else self._buffer_names[item]
            raise self._no_replacing(name if isinstance(name, str) else ", ".join(name))

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error: the layout says which buffers there are."""
        raise NetworkValidationError(
            f"buffers {self._path('*')!r} cannot be added, removed or moved. Take a list of them: "
            f"list(view)."
        )

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __delattr__ = __delitem__ = __iadd__ = __imul__ = __mul__ = __radd__ = __rmul__ = _refuse

    def _no_replacing(self, name: str) -> NetworkValidationError:
        path = self._path(name)
        return NetworkValidationError(
            f"buffer {path!r} cannot be replaced. Write into its memory: buffer[{path!r}][:] = ..."
        )

    def _path(self, name: str) -> str:
        """Return the dotted path of a child in the network of this view."""
        return self._origin.path_of(name) if self._origin else name

    def __contains__(self, name: object) -> bool:
        first, _, rest = name.partition(".") if isinstance(name, str) else ("", "", "")
        return rest in self._views.get(first, ()) if rest else first in self._keys

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._buffer_names]

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        _, full_buffer, joints = self._find()
        return BufferView, (self._buffer_names, self.values(), full_buffer, joints, self._origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> BufferView:
        made, arguments = self.__reduce__()
        copied = made(*copy.deepcopy(arguments[:-1], memo), self._origin)
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
