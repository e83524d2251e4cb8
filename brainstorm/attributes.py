"""Which attributes objects of the library may have, so that misspelt ones are refused.

A class has what it or a base of it defines, declares by an annotation or in ``__undescribed__``, or
sets in a constructor. Names that begin with an underscore are free, and so are those in classes of
users, except those of methods.

Some classes list names of attributes, such as ``state_names``: `merged_names` adds those of bases.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from typing import Any

from brainstorm.errors import unknown

__all__ = ["check_attribute", "merged_names", "names_set_by"]

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
    if name.startswith("_"):
        return
    if problem := _problem(cls, name, callable(value)):
        raise cls.__argument_error__(f"{cls.__name__}: {problem}")


@functools.lru_cache(MOST_KNOWN)
def _problem(cls: Any, name: str, is_callable: bool) -> str:
    """Return why an attribute cannot be set to something that can be called, or not; or ''."""
    members, is_own = _members(cls), not cls.__module__.startswith("brainstorm.")
    if name in members:
        is_lost = inspect.isfunction(members[name]) and not is_callable
        remedy = "give the attribute another name" if is_own else f"call {name}(...)"
        return f"{name} is a method: {remedy}." if is_lost else ""
    if is_own:
        return ""
    settings, hidden = _settings(cls), cls._merged("__undescribed__")
    if name in settings or name in hidden:
        return ""
    if name in inspect.signature(cls).parameters:
        return f"{name!r} can only be given to the constructor."
    return unknown("attribute", name, [n for n in settings if n not in hidden])


def merged_names(cls: type, attribute: str) -> tuple[str, ...]:
    """Return the names that a class and its bases list in an attribute, its own first."""
    listed = (vars(base).get(attribute, ()) for base in cls.__mro__)
    return tuple(dict.fromkeys(itertools.chain(*listed)))


def _members(cls: type) -> dict[str, Any]:
    """Return what a class and its bases define."""
    return {name: value for base in reversed(cls.__mro__) for name, value in vars(base).items()}


@functools.cache
def _settings(cls: Any) -> tuple[str, ...]:
    """Return the public names of attributes that can be set, those of arguments first."""
    members = _members(cls)
    setters = {n: v.fset for n, v in members.items() if isinstance(v, property)}
    fixed = {n for n, v in members.items() if inspect.isroutine(v) or setters.get(n, n) is None}
    initial = {name for base in cls.__mro__ for name in names_set_by(vars(base).get("__init__"))}
    declared = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]
    arguments = (*inspect.signature(cls).parameters, *cls._merged("__default_values__"))
    names = (
        *(name for name in arguments if name in members or name in initial),
        *(name for name in declared if name not in members),
        *sorted(initial),
        *sorted(setters),
    )
    return tuple(dict.fromkeys(n for n in names if n not in fixed and not n.startswith("_")))
