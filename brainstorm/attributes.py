"""Which attributes objects of the library may have, so that misspelt ones are refused.

A class has what it or a base of it defines, declares by an annotation or in ``__undescribed__``, or
sets in a constructor. Names that begin with an underscore, and classes of users, are free.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Mapping
from typing import Any

from brainstorm.errors import unknown

__all__ = ["check_attribute", "names_set_by"]

#: Number of pairs of a class and a name that are remembered.
MOST_KNOWN = 4096


@functools.cache
def names_set_by(init: Any) -> frozenset[str]:
    """Return the names of the attributes that a constructor sets."""
    if not inspect.isfunction(init):
        return frozenset()
    steps = dis.get_instructions(inspect.unwrap(init))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


def check_attribute(cls: Any, name: str, value: Any) -> None:
    """Raise the error of a `Describable` class if its objects cannot have an attribute."""
    if name.startswith("_") or not cls.__module__.startswith("brainstorm."):
        return
    problem, is_method = _problem(cls, name)
    if problem and not (is_method and callable(value)):
        raise cls.__argument_error__(f"{cls.__name__}: {problem}")


@functools.lru_cache(MOST_KNOWN)
def _problem(cls: Any, name: str) -> tuple[str, bool]:
    """Return why no object has an attribute, or ''; and whether it is a method."""
    members = _members(cls)
    if name in members:
        is_method = inspect.isfunction(members[name])
        return (f"{name} is a method: call {name}(...)." if is_method else ""), is_method
    settings, hidden = _settings(cls), cls._merged("__undescribed__")
    if name in settings or name in hidden:
        return "", False
    if name in inspect.signature(cls).parameters:
        return f"{name!r} can only be given to the constructor.", False
    return unknown("attribute", name, [n for n in settings if n not in hidden]), False


def _members(cls: type) -> dict[str, Any]:
    """Return what a class and its bases define."""
    return {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}


@functools.cache
def _settings(cls: Any) -> Mapping[str, None]:
    """Return the public names of attributes that can be set, those of arguments first."""
    arguments = (*inspect.signature(cls).parameters, *cls._merged("__default_values__"))
    initial = {name for base in cls.__mro__ for name in names_set_by(vars(base).get("__init__"))}
    declared = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    members, settings = _members(cls), dict[str, None]()
    for name in (*arguments, *declared, *sorted(initial), *sorted(members)):
        found = members.get(name)
        if name not in members:
            can_be_set = name in declared or name in initial
        elif isinstance(found, property):
            can_be_set = found.fset is not None
        else:
            can_be_set = not inspect.isroutine(found) and (name in arguments or name in initial)
        if can_be_set and not name.startswith("_"):
            settings[name] = None
    return settings
