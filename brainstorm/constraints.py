"""Constraints on options: which values are accepted, and a text about them.

    __constraints__ = {"decay": number(0, 1, high_open=True), "keep": whole()}

Options of layers and of `Describable` objects have them. Error messages are made from the texts.
Arguments of constructors have those of their annotations.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Container, Hashable, Mapping
from numbers import Integral
from operator import ge, gt, le, lt
from typing import Any

import numpy as np

from brainstorm.errors import MALFORMED
from brainstorm.utils import is_number, is_whole

#: Larger numbers are infinite in float32. One of Python would be converted to an array's own type.
LARGEST = np.float64(np.finfo(np.float32).max)


class Constraint:
    """A test of an option's value, and its description.

    Args:
        expected: The accepted values, as text after "expected"; or a function that returns it.
        accepts: Returns whether a value is accepted.
        is_required: Whether the option must be given.
        convert: Returns an accepted value as `Describable` objects keep it.
    """

    def __init__(
        self,
        expected: str | Callable[[], str],
        accepts: Callable[[Any], bool],
        is_required: bool = False,
        convert: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._expected = expected
        self.accepts = accepts
        self.is_required = is_required
        self.convert = convert

    def __repr__(self) -> str:
        return f"<option: {self.expected}>"

    def __contains__(self, value: Any) -> bool:
        try:
            return bool(self.accepts(value))
        except MALFORMED:  # from comparing incomparable values
            return False

    @property
    def expected(self) -> str:
        """The accepted values, as text."""
        return self._expected if isinstance(self._expected, str) else self._expected()

    def or_none(self) -> Constraint:
        """Return the constraint that accepts `None` too."""
        return _one_of_kinds([self, _KINDS["None"]])

    def required(self) -> Constraint:
        """Return the constraint for an option that has no default."""
        return Constraint(self._expected, self.accepts, True, self.convert)


def is_int(value: Any) -> bool:
    """Return whether a value is of an integer type, not a bool, and not too large for a float."""
    return isinstance(value, Integral) and is_number(value)


def is_among(value: Any, choices: Container[Any]) -> bool:
    """Return whether it equals a choice; false for arrays, which compare by element."""
    return isinstance(value, Hashable) and value in choices


def plain(value: Any) -> int | float:
    """Return a number of any type as one of Python, which does not overflow like NumPy's."""
    return int(value) if isinstance(value, Integral) else float(value)


def integer(minimum: int | None = None, maximum: int | None = None) -> Constraint:
    """A number of an integer type, at least `minimum` and at most `maximum`."""
    expected = "an int" if minimum is None else f"an int >= {minimum}"
    expected += "" if maximum is None else f" and <= {maximum}"
    ends = (minimum, ge), (maximum, le)
    return Constraint(
        expected,
        lambda v: is_int(v) and all(end is None or fits(v, end) for end, fits in ends),
        convert=int,
    )


def whole(minimum: int = 1) -> Constraint:
    """A whole number of any type, at least `minimum`."""
    return Constraint(f"an integer >= {minimum}", lambda v: is_whole(v, minimum), convert=int)


def number(
    low: float | None = None,
    high: float | None = None,
    low_open: bool = False,
    high_open: bool = False,
) -> Constraint:
    """A finite number in an interval, whose ends are included unless they are open."""
    least = -sys.float_info.max if low is None else low
    most = sys.float_info.max if high is None else high
    if low is not None and high is not None:
        expected = f"a number in {'[('[low_open]}{low:g}, {high:g}{'])'[high_open]}"
    else:
        above = "" if low is None else f" {'>' if low_open else '>='} {low:g}"
        below = "" if high is None else f" {'<' if high_open else '<='} {high:g}"
        expected = f"a finite number{above}{below}"
    exceeds, stays = (gt if low_open else ge), (lt if high_open else le)
    return Constraint(
        expected,
        lambda v: is_number(v) and exceeds(float(v), least) and stays(float(v), most),
        convert=plain,
    )


def one_of(*choices: Any) -> Constraint:
    """One of the listed values; kept as it is listed, so 1.0 as True."""
    return Constraint(
        f"one of {', '.join(map(repr, choices))}",
        lambda v: is_among(v, choices),
        convert=lambda v: choices[choices.index(v)],
    )


def instance(cls: type) -> Constraint:
    """An object of a class."""
    return Constraint(f"a {cls.__name__}", _is(cls))


def several(kind: Constraint, expected: str) -> Constraint:
    """A list (or the like) of values that another constraint accepts."""
    return Constraint(
        expected,
        lambda v: (
            isinstance(v, Collection)
            and not isinstance(v, (str, Mapping))
            and all(x in kind for x in v)
        ),
        convert=lambda v: [kind.convert(item) for item in v],
    )


# -- annotations --------------------------------------------------------------------------------


def _is(*classes: type) -> Callable[[Any], bool]:
    """Return a function that checks whether a value is an instance of one of the classes."""
    return lambda v: isinstance(v, classes)


def is_flag(value: Any) -> bool:
    """Return whether a value is True or False, or a number that equals one; no array is."""
    return isinstance(value, (bool, np.bool_)) or (is_number(value) and value in (0, 1))


def _is_number(value: Any) -> bool:
    return is_number(value) and value == value  # not NaN


_NUMBER = Constraint("a number", _is_number, convert=plain)
_TEXT = Constraint("a string", _is(str))
_PATH = Constraint("a path", _is(str, os.PathLike), convert=os.fspath)
_TEXTS = several(_TEXT, "a list of strings")
_NUMBERS = several(_NUMBER, "a list of numbers")

#: Annotation, as text, to the constraint on a value.
_KINDS = {
    "None": Constraint("None", lambda v: v is None),
    "bool": Constraint("True or False", is_flag, convert=bool),
    "int": _NUMBER,
    "float": _NUMBER,
    "str": _TEXT,
    "os.PathLike[str]": _PATH,
    "PathLike": _PATH,
    "Sequence[str]": _TEXTS,
    "Collection[str]": Constraint(
        "a string or a list of strings",
        lambda v: v in _TEXT or v in _TEXTS,
        convert=lambda v: [v] if isinstance(v, str) else _TEXTS.convert(v),
    ),
    "Sequence[int]": _NUMBERS,
    "Sequence[float]": _NUMBERS,
    **{
        f"Mapping[str, {kind}]": Constraint("a dictionary", _is(Mapping))
        for kind in ("Any", "float", "int", "tuple[int, ...]", "tuple[int, int]")
    },
}


def argument_names(init: Callable[..., None]) -> tuple[str, ...]:
    """Return the argument names of a constructor, except ``self``."""
    code = inspect.unwrap(init).__code__
    return code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]


@functools.cache
def constraints_of_arguments(init: Callable[..., None]) -> dict[str, Constraint]:
    """Return the constraints of a constructor's arguments, by their annotations, if known."""
    found = {}
    for name in argument_names(init):
        kinds = init.__annotations__.get(name, "").split(" | ")
        if all(kind in _KINDS for kind in kinds):
            found[name] = _one_of_kinds([_KINDS[kind] for kind in kinds])
    return found


def _one_of_kinds(kinds: list[Constraint]) -> Constraint:
    return Constraint(
        lambda: " or ".join(dict.fromkeys(kind.expected for kind in kinds)),
        lambda v: any(v in kind for kind in kinds),
        convert=lambda v: next(kind for kind in kinds if v in kind).convert(v),
    )
