"""References: which initializer or modifiers belong to which parameter.

References are the arguments of ``net.initialize`` and ``net.set_weight_modifiers``, such as ::

    {"Lstm": {"b*": 0, "default": Gaussian(0.1)}, "Conv*": DenseSqrtFanIn(), "default": 0.01}

Keys of the first level name layers, keys of the second parameters. A key is a name, a pattern
with ``*`` for any letters, digits and underscores, ``default`` (applies if nothing else does;
the innermost wins) or ``fallback`` (initializers only: used if the other one does not support
the shape; the innermost wins). A value of the first level that is not a dictionary applies to all
parameters of the matching layers.

A parameter has one initializer. If several keys match, the most specific wins: the one whose
matches are all matched by the others, such as ``Conv_1`` and ``Conv_*`` compared with ``Conv*``.
Of modifiers, all that match apply.

The functions here are pure. `Structure` maps each layer to the names of its parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

from brainstorm.errors import (
    NetworkValidationError,
    UnknownTypeError,
    ValidationError,
    shown,
    unknown,
)
from brainstorm.utils import copy_containers, flatten

__all__ = [
    "copy_modifier_for",
    "get_references",
    "matches",
    "order_and_copy_modifiers",
    "resolve_initializers",
    "resolve_modifiers",
    "resolve_references",
]

Structure: TypeAlias = Mapping[str, Sequence[str]]
References: TypeAlias = Mapping[str, Any]

#: Values, each with its keys of both levels; the second may be missing.
Found: TypeAlias = list[tuple[tuple[str, ...], Any]]

_RESERVED = ("default", "fallback")


def get_references(default_or_dict: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge all forms in which references can be given; the arguments are not changed.

    Args:
        default_or_dict: `None`, a dictionary of references, or the value of ``default``.
        kwargs: Further references by keyword.

    Returns:
        One dictionary. Dictionaries and lists in it are copies, other values are not.

    Raises:
        UnknownTypeError: A key is given twice; it is also a `TypeError`.
    """
    if default_or_dict is None:
        given: Mapping[str, Any] = {}
    elif isinstance(default_or_dict, Mapping):
        given = default_or_dict
    else:
        given = {"default": default_or_dict}
    repeated = [repr(key) for key in given if key in kwargs]
    if repeated:
        raise UnknownTypeError(
            f"expected every reference once, got {', '.join(repeated)} both in the first argument "
            f"and by keyword."
        )
    return copy_containers({**given, **kwargs})


def resolve_initializers(
    structure: Structure, references: References, convert: Callable[[Any], Any]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Find the one initializer of every parameter.

    Args:
        structure: Layer names to parameter names.
        references: As `get_references` returns them.
        convert: Converts a value to an initializer, or raises a `ValidationError`.

    Returns:
        ``{layer: {parameter: (initializer, fallback or None)}}``, layers and parameters sorted by
        name, layers without parameters left out.

    Raises:
        NetworkValidationError: A key matches nothing, or a parameter has none or several, none of
            them the most specific. In a dictionary for a pattern with ``*`` a key may match
            nothing, so that it can be used for networks with other parameters.
    """
    scopes, common = _prepared(structure, references, convert, is_open=True)
    resolved: dict[str, dict[str, tuple[Any, Any]]] = {}
    missing = []
    for layer, parameter in _sorted_paths(structure):
        found = _select(scopes[layer], parameter) or _select(common, parameter)
        if not found:
            missing.append(f"'{layer}.{parameter}'")
            continue
        initializer = _the_only(found, "initializer", layer, parameter)
        fallback = _the_only(_fallbacks(scopes[layer], common), "fallback", layer, parameter)
        resolved.setdefault(layer, {})[parameter] = (initializer, fallback)
    if missing:
        raise NetworkValidationError(
            f"expected an initializer for every parameter, got none for {', '.join(missing)}. Name "
            f"them, or give a default, as in initialize(default=Gaussian(0.1), ...)."
        )
    return resolved


def resolve_modifiers(
    structure: Structure, references: References, check: Callable[[Any], Any]
) -> dict[str, dict[str, list[Any]]]:
    """Find the modifiers of every parameter.

    Args:
        structure: Layer names to parameter names.
        references: As `get_references` returns them; values are modifiers or lists of them.
        check: Returns a modifier unchanged, or raises a `ValidationError`.

    Returns:
        ``{layer: {parameter: [modifier, ...]}}`` without empty entries. Each modifier is a copy
        with ``layer_name`` and ``view_name`` set. Lists keep their order; different keys that
        match the same parameter follow each other in the order of the dictionary.

    Raises:
        NetworkValidationError: A key matches nothing, or ``fallback`` is among the keys.
    """
    _check_kinds(structure, references)
    for key, value in references.items():
        if key == "fallback" or (isinstance(value, Mapping) and "fallback" in value):
            raise NetworkValidationError(
                "modifiers have no 'fallback': expected layers, patterns or 'default' as keys. "
                "Only initializers take one."
            )
    return order_and_copy_modifiers(resolve_references(structure, references, check))


def resolve_references(
    structure: Structure, references: References, check: Callable[[Any], Any] = lambda value: value
) -> dict[str, dict[str, list[Any]]]:
    """Return all values for every parameter: ``{layer: {parameter: [value, ...]}}``.

    Args:
        structure: Layer names to parameter names.
        references: As `get_references` returns them; values may be lists of values.
        check: Returns a value unchanged, or raises a `ValidationError`.

    Raises:
        NetworkValidationError: A key matches nothing.
    """
    scopes, common = _prepared(
        structure, references, lambda value: [check(item) for item in flatten([value])]
    )
    resolved: dict[str, dict[str, list[Any]]] = {}
    for layer, parameter in _sorted_paths(structure):
        found = _select(scopes[layer], parameter) or _select(common, parameter)
        if values := [item for _, items in found for item in items]:
            resolved.setdefault(layer, {})[parameter] = values
    return resolved


def order_and_copy_modifiers(
    resolved: Mapping[str, Mapping[str, Sequence[Any]]],
) -> dict[str, dict[str, list[Any]]]:
    """Return the result of `resolve_references` in order, with a copy for each parameter."""
    return {
        layer: {
            parameter: [copy_modifier_for(modifier, layer, parameter) for modifier in modifiers]
            for parameter, modifiers in parameters.items()
        }
        for layer, parameters in resolved.items()
    }


def copy_modifier_for(modifier: Any, layer_name: str, view_name: str) -> Any:
    """Return a copy of a modifier with the names of its parameter."""
    copied = copy.deepcopy(modifier)
    copied.layer_name, copied.view_name = layer_name, view_name
    return copied


# -- checks and conversion ----------------------------------------------------------------------


def matches(key: str, name: str) -> bool:
    """Return whether a key, a name or a pattern with ``*``, matches a name."""
    first, *parts = key.split("*")
    if not parts:
        return key == name
    # The earliest match of each part leaves most space for the others. (A regular expression may
    # take time exponential in the number of stars.)
    position = len(first)
    for part in parts[:-1]:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return name.startswith(first) and name[position:].endswith(parts[-1])


def _check_kinds(structure: Structure, references: References) -> None:
    """Check the arguments of a function that resolves references."""
    for name, example, value in (
        ("structure", "{'Hidden': ['W', 'bias']}", structure),
        ("references", "{'Hidden': {'W': 0}, 'default': 1}", references),
    ):
        if not isinstance(value, Mapping):
            raise NetworkValidationError(
                f"{name}: expected a dictionary such as {example}, got {shown(value)}."
            )
    for layer, names in structure.items():
        if isinstance(names, str) or not isinstance(names, Collection):
            raise NetworkValidationError(
                f"structure, layer {layer!r}: expected a list of parameter names, got "
                f"{shown(names)}."
            )


def _prepared(
    structure: Structure,
    references: References,
    convert: Callable[[Any], Any],
    is_open: bool = False,
) -> tuple[dict[str, Found], Found]:
    """Return the references to each layer, and those to all, after checking that every key matches.

    With `is_open`, keys in dictionaries for patterns need not match.
    """
    _check_kinds(structure, references)
    scopes: dict[str, Found] = {layer: [] for layer in structure}
    common: Found = []
    for key, value in references.items():
        layers = list(structure) if key in _RESERVED else _find_layers(_checked(key), structure)
        if not layers and key not in _RESERVED:
            layer, dot, _ = key.partition(".")
            nested = f" Write {{{layer!r}: {{{key.rpartition('.')[2]!r}: ...}}}}." if dot else ""
            text = f"reference {key!r}: {unknown('layer', key, structure)}{nested}"
            raise NetworkValidationError(text)
        given: dict[tuple[str, ...], Any] = {(key,): value}
        if isinstance(value, Mapping) and key != "fallback":
            _check_parameters(structure, layers, key, value, is_open and "*" in key)
            given = {(key, name): item for name, item in value.items()}
        found = [
            (keys, _converted(".".join(map(str, keys)), item, convert))
            for keys, item in given.items()
        ]
        for scope in [common] if key in _RESERVED else map(scopes.__getitem__, layers):
            scope.extend(found)
    return scopes, common


def _check_parameters(
    structure: Structure, layers: Iterable[str], key: str, names: Iterable[str], is_open: bool
) -> None:
    parameters = list(dict.fromkeys(name for layer in layers for name in structure[layer]))
    for name in names:
        if name in _RESERVED or any(matches(_checked(name), p) for p in parameters):
            continue
        if not is_open:
            raise NetworkValidationError(
                f"reference '{key}.{name}': {unknown('parameter', name, parameters)}"
            )


def _checked(key: Any) -> str:
    if not isinstance(key, str):
        raise NetworkValidationError(
            f"reference {key!r}: expected a name or a pattern, got a {type(key).__name__}."
        )
    return key


def _converted(path: str, value: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(value)
    except ValidationError as error:
        raise type(error)(f"reference '{path}': {error}") from error


# -- lookup ---------------------------------------------------------------------------------------


def _sorted_paths(structure: Structure) -> list[tuple[str, str]]:
    return sorted((layer, parameter) for layer in structure for parameter in structure[layer])


def _find_layers(key: str, structure: Structure) -> list[str]:
    """Return the layers that a key matches; without a star this needs no search."""
    if "*" not in key:
        return [key] if key in structure else []
    return [layer for layer in structure if matches(key, layer)]


def _select(scope: Found, parameter: str) -> Found:
    """Return the values that apply to a parameter; defaults only if nothing else does."""
    found = [
        (keys, value)
        for keys, value in scope
        if keys[-1] != "fallback"
        and (len(keys) == 1 or (keys[1] != "default" and matches(keys[1], parameter)))
    ]
    return found or [(keys, value) for keys, value in scope if keys[1:] == ("default",)]


def _fallbacks(scope: Found, common: Found) -> Found:
    """Return the fallbacks of the innermost scope that has any."""
    own, of_default, of_all = (
        [(keys, value) for keys, value in found if keys[-1] == "fallback" and len(keys) == depth]
        for found, depth in ((scope, 2), (common, 2), (common, 1))
    )
    return own or of_default or of_all


def _is_within(keys: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether everything that `keys` match is matched by `others` too."""
    # If a pattern is used as a name, only a star matches a star.
    return all(matches(other, key) for key, other in zip_longest(keys, others, fillvalue="*"))


def _the_only(found: Found, kind: str, layer: str, parameter: str) -> Any:
    found = [
        (keys, value)
        for keys, value in found
        if not any(_is_within(other, keys) and not _is_within(keys, other) for other, _ in found)
    ]
    if len(found) > 1:
        name = kind if kind == "fallback" else parameter
        raise NetworkValidationError(
            f"expected one {kind} for '{layer}.{parameter}', got {len(found)}: from "
            f"{' and '.join(repr('.'.join(keys)) for keys, _ in found)}, none of which is more "
            f"specific than the other in both names. Name both in full: {{{layer!r}: {{{name!r}: "
            f"...}}}}."
        )
    return found[0][1] if found else None
