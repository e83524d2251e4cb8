"""Descriptions: converting objects to data for JSON, and back.

A `Describable` object turns into a dictionary with its class name under ``'@type'`` and its
attributes. Class attributes control what is written; they are merged over the class hierarchy, and
subclasses take precedence:

* ``__undescribed__``: names that are left out; a dict ``{name: value on re-creation}``, or a set if
  these values are those of the class (or `None`);
* ``__default_values__``: ``{name: value}``, or a set likewise; left out while they have that value.

Loading creates objects of registered classes only (every subclass registers itself) and runs no
code from the description.

Arguments of the library's constructors are compared with their annotations. Attributes are checked
whenever they are set: those that a constructor keeps like its arguments, and the names in
``__constraints__``, which is merged over the classes too. Numbers are kept as Python's, paths as
texts, and collections as lists. How attributes must fit together is checked by constructors only.
Misspelt attributes are refused: see `brainstorm.attributes`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import FrozenInstanceError
from typing import Any, ClassVar, TypeVar

import numpy as np

from brainstorm.attributes import check_attribute, names_set_by
from brainstorm.constraints import Constraint, argument_names, constraints_of_arguments
from brainstorm.display import SHORT
from brainstorm.errors import MALFORMED, BrainstormError, DescriptionError, ValidationError, shown
from brainstorm.registry import Registry
from brainstorm.utils import MOST_DIGITS

__all__ = [
    "Describable",
    "checking",
    "create_from_description",
    "find_class",
    "get_description",
]

C = TypeVar("C", bound="Describable")

_classes: Registry[Describable] = Registry(
    "class in '@type'", "A class of your own must be imported before it can be loaded."
)


class Describable:
    """Base class of all objects with a description; see the module for the class attributes."""

    __undescribed__: Any = set()
    __default_values__: Any = {}
    __constraints__: Mapping[str, Constraint] = {}

    #: The error for an argument of another type than its annotation.
    __argument_error__: ClassVar[type[ValidationError]] = ValidationError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _classes.add(cls.__name__, cls)
        for name, wrapped in (("__init__", checking), ("set_state", _restoring)):
            if name in vars(cls) and cls.__module__.startswith("brainstorm."):
                setattr(cls, name, wrapped(vars(cls)[name]))

    def __setattr__(self, name: str, value: Any) -> None:
        check_attribute(type(self), name, value)
        constraint = _constraints_of(type(self)).get(name)  # type: ignore[arg-type]  # classes are hashable
        if constraint is not None:
            if value not in constraint:
                raise self.fail(name, constraint.expected, value)
            value = constraint.convert(value)
        super().__setattr__(name, value)

    def fail(self, name: str, expected: str, got: Any) -> ValidationError:
        """Return an error about the value of an attribute or argument."""
        where = f"{type(self).__name__}.{name}"
        return self.__argument_error__(f"{where}: expected {expected}, got {shown(got)}.")

    @classmethod
    def _merged(cls, attribute: str) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            value = base.__dict__.get(attribute, {})
            if not isinstance(value, dict):
                value = {name: getattr(cls, name, None) for name in value}
            merged.update(value)
        return merged

    def __describe__(self) -> dict[str, Any]:
        """Return the description: ``'@type'`` and the described attributes."""
        hidden, defaults = self._merged("__undescribed__"), self._merged("__default_values__")
        description: dict[str, Any] = {"@type": type(self).__name__}
        for name, value in _attributes(self).items():
            if name in hidden or (name in defaults and _equal(defaults[name], value)):
                continue
            with _located(f"[{type(self).__name__}.{name}]"):
                description[name] = _describe(value, _RESERVED)
        return description

    @classmethod
    def __new_from_description__(cls: type[C], description: Mapping[str, Any]) -> C:
        """Create an object from its description.

        Only constructors of the library are called, so that they check their arguments.
        """
        new, hidden = cls.__new__(cls), cls._merged("__undescribed__")
        defaults = cls._merged("__default_values__")
        of_class = {name for name, value in hidden.items() if getattr(cls, name, new) is value}
        of_class |= {name for name in defaults if isinstance(getattr(cls, name, None), property)}
        for name, value in {**hidden, **defaults}.items():
            if name not in of_class:
                object.__setattr__(new, name, copy.deepcopy(value))
        described = {}
        for name, value in description.items():
            if name != "@type":
                with _located(f"[{cls.__name__}.{name}]"):
                    cls._check_attribute(name, hidden)
                    described[name] = create_from_description(value)
        known = {name: getattr(new, name) for name in defaults if name not in of_class}
        arguments = cls._arguments_in({**known, **described})
        if arguments:
            cls.__init__(new, **arguments)
        for name, value in described.items():
            if name not in arguments:
                try:
                    setattr(new, name, value)
                except FrozenInstanceError:
                    Describable.__setattr__(new, name, value)
        new.__init_from_description__(description)
        new._check_complete()
        return new

    @classmethod
    def _arguments_in(cls, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a constructor of the library can be called with; none if it lacks any."""
        init = cls.__init__
        if not inspect.isfunction(init) or not init.__module__.startswith("brainstorm."):
            return {}
        kept = names_set_by(init)
        given = {}
        parameters = inspect.signature(init).parameters
        for name in argument_names(init):
            if name in known:
                given[name] = known[name]
            elif name in kept or parameters[name].default is inspect.Parameter.empty:
                return {}
        return given

    def _check_complete(self) -> None:
        """Raise an error if an attribute that a constructor keeps is missing."""
        kind, attributes = type(self), _attributes(self)
        for init in filter(inspect.isfunction, (vars(c).get("__init__") for c in kind.__mro__)):
            for name in argument_names(init):
                is_there = name in attributes or isinstance(getattr(kind, name, None), property)
                if name in names_set_by(init) and not is_there:
                    remedy = "get_description of one shows what belongs into it."
                    if name in kind._merged("__undescribed__"):
                        remedy = "It is in __undescribed__, perhaps of a base class: rename it."
                    what = f"a {kind.__name__} cannot be made without {name!r}"
                    raise DescriptionError(f"{what}. {remedy}")

    @classmethod
    def _check_attribute(cls, name: str, hidden: Container[str]) -> None:
        """Raise an error for names of methods, and for names that descriptions never contain."""
        known = inspect.getattr_static(cls, name, None)
        is_slot = inspect.ismemberdescriptor(known)
        is_method = callable(known) or (hasattr(known, "__get__") and not is_slot)
        if name != "__name__" and (name.startswith("__") or is_method or name in hidden):
            raise DescriptionError("no description can set this")
        if name not in argument_names(cls.__init__):
            try:
                check_attribute(cls, name, None)
            except ValidationError as error:
                raise DescriptionError(str(error)) from None

    def __init_from_description__(self, description: Mapping[str, Any]) -> None:
        """Finish an object after its attributes were restored; override if needed."""

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        """Return a call that creates it: the first argument, and those that are not defaults."""
        given, attributes = [], _attributes(self)
        for i, (name, known) in enumerate(inspect.signature(type(self)).parameters.items()):
            value = attributes.get(name, known.default)
            if value is known.empty or (_equal(value, known.default) and (i or not value)):
                continue
            given.append(f"{name}={SHORT.repr(value)}")
        return f"{type(self).__name__}({', '.join(given)})"


def checking(init: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that compares its arguments with their annotations.

    The class returns the error as `Describable.fail` does.
    """

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        failure = None
        try:
            init(self, *args, **kwargs)
        except BrainstormError:
            raise
        except MALFORMED as error:
            failure = error
        given = {**dict(zip(argument_names(init), args, strict=False)), **kwargs}
        for name, constraint in constraints_of_arguments(init).items():
            if name in given and given[name] not in constraint:
                raise self.fail(name, constraint.expected, given[name])
        if failure is not None:
            raise _as_called(failure, type(self), checked)

    return checked


def _restoring(set_state: Callable[..., None]) -> Callable[..., None]:
    """Return a method that takes states from files, too, and says what it expects if malformed."""

    @functools.wraps(set_state)
    def restored(self: Any, state: Any) -> None:
        try:
            set_state(self, _without_arrays_of_one(state))
        except BrainstormError:
            raise
        except MALFORMED as error:
            raise self.fail("set_state", "what get_state of another one returned", state) from error

    return restored


def _without_arrays_of_one(state: Any) -> Any:
    """Return a state in which numbers are Python's; in files they are arrays without axes."""
    if isinstance(state, dict):
        return {name: _without_arrays_of_one(value) for name, value in state.items()}
    return state.item() if isinstance(state, np.ndarray) and state.ndim == 0 else state


def _as_called(error: Exception, cls: type, init: Callable[..., None]) -> Exception:
    """Return an error about a wrong call of a class with the name of that class.

    Python's has the name of the class that defines the constructor, perhaps a private base class.
    """
    place, text = f"{init.__qualname__}() ", str(error)
    is_called = cls.__init__ is init  # type: ignore[misc]  # not by a subclass's
    if not is_called or not text.startswith(place):
        return error
    return TypeError(f"{cls.__name__}.__init__() {text.removeprefix(place)}")


@functools.cache
def _constraints_of(cls: Any) -> Mapping[str, Constraint]:
    """Return the constraints of attributes: those of kept arguments, and those declared."""
    found: dict[str, Constraint] = {}
    for base in reversed(cls.__mro__):
        init = vars(base).get("__init__")
        if inspect.isfunction(init) and base.__module__.startswith("brainstorm."):
            kept, of_arguments = names_set_by(init), constraints_of_arguments(init)
            found |= {name: of_arguments[name] for name in of_arguments if name in kept}
    return found | cls._merged("__constraints__")


def _attributes(this: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, those in slots first."""
    bases = [base for base in reversed(type(this).__mro__) if issubclass(base, Describable)]
    members = (item for base in bases for item in vars(base).items())
    slots = [name for name, member in members if inspect.ismemberdescriptor(member)]
    return {name: getattr(this, name) for name in slots if hasattr(this, name)} | vars(this)


def _equal(a: Any, b: Any) -> bool:
    """Return whether two values are described alike; tuples are described as lists."""
    a, b = (list(value) if isinstance(value, tuple) else value for value in (a, b))
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    return type(a) is type(b) and bool(a == b)


@contextlib.contextmanager
def _located(place: str) -> Iterator[None]:
    """Prepend a place to the path that a DescriptionError has collected so far."""
    try:
        yield
    except DescriptionError as error:
        text = error.args[0]
        error.args = (f"{place}{'' if text.startswith('[') else ': '}{text}",)
        raise


_INFINITE = [{"@float": "inf"}, {"@float": "-inf"}]
#: Keys that dicts among the attributes of an object cannot have, because they would be read as
#: something else.
_RESERVED = ("@type", "@float")


def get_description(this: Any) -> Any:
    """Return a description of `this` as data for JSON.

    Supported are numbers, strings, booleans, `None`, lists, tuples, dicts with string keys, NumPy
    arrays (as nested lists) and `Describable` objects. An infinite number, which JSON cannot hold,
    is ``{'@float': 'inf'}``.

    Raises:
        DescriptionError: It is not supported; the message names the place inside `this`.
    """
    return _describe(this, ())


def _describe(this: Any, reserved: Container[str]) -> Any:
    """Return a description of something, whose dicts have no reserved keys."""
    if isinstance(this, Describable):
        return this.__describe__()
    if isinstance(this, np.longdouble):
        this = float(this)
    elif isinstance(this, (np.ndarray, np.generic)) and not isinstance(this, np.clongdouble):
        is_plain = this.dtype.char in "?bhilqBHILQefd" and np.isfinite(this).all()
        return this.tolist() if is_plain else _describe(this.tolist(), reserved)
    if isinstance(this, float) and math.isinf(this):
        return {"@float": str(this)}
    if isinstance(this, float) and math.isnan(this):
        raise DescriptionError("nan cannot be written as JSON.")
    if isinstance(this, int) and abs(this) >= 10**MOST_DIGITS:
        raise DescriptionError(
            f"an integer of more than {MOST_DIGITS} digits cannot be read again. Make it a string."
        )
    if isinstance(this, str):
        return str.__str__(this)  # of an enumeration its value
    if this is None or isinstance(this, (bool, int, float)):
        return this
    if isinstance(this, (list, tuple)):
        described = []
        for index, item in enumerate(this):
            with _located(f"[{index}]"):
                described.append(_describe(item, reserved))
        return described
    if isinstance(this, Mapping):
        result = {}
        for key, item in this.items():
            with _located(f"[{key}]"):
                if not isinstance(key, str):
                    raise DescriptionError(f"keys must be strings, got {key!r}")
                if key in reserved:
                    raise DescriptionError("this key is that of an object. Choose another one.")
                result[key] = _describe(item, reserved)
        return result
    raise DescriptionError(
        f"a {type(this).__name__} has no description. Derive it from Describable, or name the "
        f"attribute in __undescribed__."
    )


def create_from_description(description: Any) -> Any:
    """Create the object with a description; plain data is returned unchanged.

    Raises:
        UnknownTypeError: ``'@type'`` names no registered class.
        DescriptionError: The description contains something that is not valid in descriptions, or
            not valid for its class.
        ValidationError: A value has another type than the constructor of its class takes.
    """
    if isinstance(description, Mapping):
        if "@type" in description and isinstance(description["@type"], str):
            return _create(find_class(description["@type"]), description)
        if description in _INFINITE:
            return float(description["@float"])
        return {key: create_from_description(item) for key, item in description.items()}
    if isinstance(description, (list, tuple)):
        is_plain = set(map(type, description)) <= {bool, int, float, str}  # perhaps very many
        return [x if is_plain else create_from_description(x) for x in description]
    if description is None or isinstance(description, (bool, int, float, str)):
        return description
    raise DescriptionError(f"a {type(description).__name__} is not a description")


def find_class(name: str) -> type[Describable]:
    """Return the class that ``'@type'`` names.

    Raises:
        UnknownTypeError: There is none, or several modules define one.
    """
    return _classes.get(name)


def _create(cls: type[Describable], description: Mapping[str, Any]) -> Any:
    try:
        return cls.__new_from_description__(description)
    except BrainstormError:
        raise
    except MALFORMED as error:
        raise DescriptionError(
            f"a {cls.__name__} cannot be made of {', '.join(map(repr, description))}: {error!r}"
        ) from error
