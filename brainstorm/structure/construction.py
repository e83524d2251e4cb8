"""Wiring: the results of the layer functions, and the operators ``>>`` and ``-``.

    Input(...) >> FullyConnected(100) >> 'default' - SoftmaxCE() - 'loss' >> Loss()

creates connected `LayerDetails` objects; nothing is computed. `architecture` turns them into a
dictionary.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from brainstorm.display import safe_repr
from brainstorm.errors import NetworkValidationError, UnknownTypeError, shown, unknown
from brainstorm.utils import PYTHON_IDENTIFIER, is_valid_layer_name

IMPLEMENTATION_SUFFIX = "LayerImpl"
_creation_ids = itertools.count()


class Default(str):
    """The default of an option, as opposed to a text from the user. In files both are the same."""

    __slots__ = ()


#: The default of options called ``activation``.
RECTIFIED = Default("rel")


class _Scope(dict[str, "list[UniquelyNamed]"]):
    """Wanted names to the objects that want them; unique names are cached until one is added."""

    def __init__(self, *members: UniquelyNamed) -> None:
        super().__init__({member._basename: [member] for member in members})
        self.size = len(members)
        self.names: dict[UniquelyNamed, str] = {}

    def add(self, other: _Scope) -> None:
        """Add all members of another scope."""
        for basename, members in other.items():
            self.setdefault(basename, []).extend(members)
            for member in members:
                member.scope = self
        self.size += other.size
        self.names = {}

    def name_all(self) -> dict[UniquelyNamed, str]:
        """Return the unique name of each member."""
        if not self.names:
            for basename, members in self.items():
                # A number is skipped if that name is used by a single other object.
                numbered = (f"{basename}_{i}" for i in itertools.count(1))
                free = (name for name in numbered if len(self.get(name, ())) != 1)
                names = [basename] if len(members) == 1 else free
                in_order = sorted(members, key=lambda member: member.creation_id)
                self.names.update(zip(in_order, names, strict=False))
        return self.names


class UniquelyNamed:
    """A name that is made unique among all connected objects.

    Args:
        basename: The wanted name. It is used unchanged if it is unique in its scope; otherwise
            the names are ``basename_1``, ``basename_2``, ... in order of creation.
    """

    def __init__(self, basename: str) -> None:
        self._basename = basename
        self.creation_id = next(_creation_ids)
        self.scope = _Scope(self)

    @safe_repr
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def merge_scopes(self, other: UniquelyNamed) -> None:
        """Merge the scopes of two objects, including all objects in either scope."""
        if self.scope is other.scope:
            return
        large, small = self.scope, other.scope
        if small.size > large.size:
            large, small = small, large
        large.add(small)

    @property
    def name(self) -> str:
        """The unique name; final only when everything is connected."""
        return self.scope.name_all()[self]


class LayerDetails(UniquelyNamed):
    """One layer of a wiring: its type, options and connections.

    Args:
        layer_type: Type name, e.g. ``'FullyConnected'``.
        name: Wanted layer name; the type name if `None`.
        **kwargs: The layer's options.
    """

    def __init__(self, layer_type: str, name: str | None = None, **kwargs: Any) -> None:
        if not PYTHON_IDENTIFIER.match(layer_type):
            raise NetworkValidationError(
                f"layer type {layer_type!r}: expected an identifier (letters, digits, '_')."
            )
        if name is not None and not (isinstance(name, str) and is_valid_layer_name(name)):
            remedy = (
                "Use letters of ASCII, digits and '_', not starting with a digit."
                if isinstance(name, str)
                else f"If it is an option of {layer_type}, give it by keyword."
            )
            raise NetworkValidationError(
                f"layer name {name!r}: expected an identifier other than 'default' and "
                f"'fallback'. {remedy}"
            )
        super().__init__(name or layer_type)
        self.layer_type = layer_type
        self.layer_kwargs = kwargs
        self.shared_parameters: dict[str, tuple[LayerDetails, str]] | LayerDetails | None = None
        self.incoming: list[tuple[LayerDetails, str, str]] = []
        self.outgoing: list[tuple[str, str, LayerDetails]] = []

    def collect_connected_layers(self) -> set[LayerDetails]:
        """Return every layer that is connected with this one, along or against connections."""
        found = {self}
        todo = [self]
        while todo:
            layer = todo.pop()
            neighbours = [out[2] for out in layer.outgoing] + [inc[0] for inc in layer.incoming]
            new = set(neighbours) - found
            found |= new
            todo.extend(new)
        return found

    @safe_repr
    def __repr__(self) -> str:
        return f"<LayerDetails: {self.name} ({self.layer_type})>"


@dataclass(eq=False, repr=False, slots=True)
class ConstructionWrapper:
    """A layer together with the input and the output for the next ``>>``.

    Created by the layer functions; ``'in' - layer - 'out'`` selects ports, ``a >> b`` connects.

    Args:
        layer: The layer.
        input_name: The end of the next connection to it.
        output_name: The start of the next connection from it.
        entries: For several layers wired together, with the output of `layer`: input name of the
            whole to the layers (each with the input) that it stands for.
    """

    layer: LayerDetails
    input_name: str = "default"
    output_name: str = "default"
    entries: Mapping[str, Iterable[ConstructionWrapper]] | None = None

    @classmethod
    def create(
        cls, layer_type: type | str, name: str | None = None, **kwargs: Any
    ) -> ConstructionWrapper:
        """Return a new layer for wiring.

        Args:
            layer_type: The implementing class, or its name, which ends in ``LayerImpl``.
            name: Wanted layer name; the type name if `None`.
            **kwargs: The layer's options.

        Raises:
            NetworkValidationError: The class name does not end in ``LayerImpl``.
        """
        type_name = layer_type if isinstance(layer_type, str) else layer_type.__name__
        if not type_name.endswith(IMPLEMENTATION_SUFFIX):
            raise NetworkValidationError(
                f"layer class {type_name!r}: its name must end in '{IMPLEMENTATION_SUFFIX}'. "
                f"Rename it to '{type_name}{IMPLEMENTATION_SUFFIX}'."
            )
        return cls(LayerDetails(type_name.removesuffix(IMPLEMENTATION_SUFFIX), name, **kwargs))

    def share_parameters_with(self, other: ConstructionWrapper) -> ConstructionWrapper:
        """Use the parameters of another layer, which has all of them in the same shapes.

        It may have more: an `Embedding` shares the matrix of a `FullyConnected` with a bias.

        The gradients of both add up; initializers, modifiers and decay apply once.

        Raises:
            NetworkValidationError: `other` is not a layer, or made of more or fewer layers.
        """
        if not isinstance(other, ConstructionWrapper):
            raise NetworkValidationError(
                f"share_parameters_with: expected a layer, as FullyConnected(100) returns one, got "
                f"{other!r}."
            )
        users, owners = self._members(), other._members()
        if len(users) != len(owners):
            raise NetworkValidationError(
                f"share_parameters_with: {self.layer.name!r} is made of {len(users)} layers, but "
                f"{other.layer.name!r} of {len(owners)}."
            )
        for user, owner in zip(users, owners, strict=True):
            user.shared_parameters = owner
            user.merge_scopes(owner)
        return self

    def _members(self) -> list[LayerDetails]:
        """Return the layers that this stands for; the last is `layer`."""
        ends = itertools.chain(*(self.entries or {}).values())
        members = [layer for end in ends for layer, _ in end._targets()]
        for member in members:  # more are added meanwhile
            following = [layer for *_, layer in member.outgoing]
            members += [layer for layer in following if layer not in (*members, self.layer)]
        return [*dict.fromkeys(members), self.layer]

    def __rshift__(self, other: ConstructionWrapper) -> ConstructionWrapper:
        if not isinstance(other, ConstructionWrapper):
            raise self._no_layer("after", other)
        for layer, input_name in other._targets():
            self.layer.outgoing.append((self.output_name, input_name, layer))
            layer.incoming.append((self.layer, self.output_name, input_name))
            self.layer.merge_scopes(layer)
        return other

    def __rrshift__(self, other: object) -> NoReturn:
        raise self._no_layer("before", other)

    def _no_layer(self, side: str, got: object) -> UnknownTypeError:
        return UnknownTypeError(
            f"'>>' {side} {self.layer.name!r}: expected a layer such as FullyConnected(100), got "
            f"{shown(got)}. Call layer functions, and connect several layers one by one."
        )

    def _targets(self) -> Iterator[tuple[LayerDetails, str]]:
        """Yield the inputs at which a connection to this wrapper ends."""
        if self.entries is None:
            yield self.layer, self.input_name
        elif self.input_name in self.entries:
            for entry in self.entries[self.input_name]:
                yield from entry._targets()
        else:
            what = unknown("input", self.input_name, self.entries)
            raise NetworkValidationError(f"the layers before {self.layer.name!r}: {what}")

    def __sub__(self, output_name: str) -> ConstructionWrapper:
        if not isinstance(output_name, str):
            return NotImplemented
        return ConstructionWrapper(self.layer, self.input_name, output_name, self.entries)

    def __rsub__(self, input_name: str) -> ConstructionWrapper:
        if not isinstance(input_name, str):
            return NotImplemented
        return ConstructionWrapper(self.layer, input_name, self.output_name, self.entries)

    @safe_repr
    def __repr__(self) -> str:
        return f"<Layer: '{self.input_name}' - {self.layer.name} - '{self.output_name}'>"
