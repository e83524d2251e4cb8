"""Formulas: Python functions of expressions, as programs for arrays of any shape.

    @formula
    def gated(x, gate):
        return fn.tanh(x) * fn.sig(gate)

    @formula
    def gated_deltas(x, gate, error):
        return gradients(gated(x, gate), [x, gate], error)

    handler.compute(gated, [x, gate], [y])
    handler.compute(gated_deltas, [x, gate, dy], [dx, dgate], accumulate=True)

Options are keyword arguments, which become constants of the programs:

    @formula
    def huber(x, targets, *, delta): ...

    handler.compute(huber.given(delta=1.0), [x, targets], [loss])

A formula is written once; for every combination of shapes and types it is converted to a program,
which executors compile or interpret, and cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from brainstorm.display import safe_repr
from brainstorm.errors import ValidationError
from brainstorm.optree.nodes import Variable
from brainstorm.optree.program import Program, linearise, signed

#: Number of programs that a formula caches: one per combination of shapes and types. Layers of one
#: type have different shapes, hundreds in deep networks.
MOST_PROGRAMS = 512
#: Number of combinations of options for which a formula is cached; a hook may change them at every
#: update.
MOST_FORMULAS = 256


class Formula:
    """A function from expressions to a tree or several trees; calling it builds them.

    Args:
        function: Takes expressions or numbers, one per positional argument. Numbers that change
            from call to call must be arguments: others become constants of the program.
        name: Its name in traces and messages; None: that of the function, or of the enclosing one.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        if not callable(function):
            raise ValidationError(f"formula: expected a function, got {function!r}.")
        self.function = function
        self.__name__ = name or _name_of(function)
        self.__doc__ = function.__doc__
        self._programs: dict[Any, Program] = {}
        self._names: dict[int, Sequence[str]] = {}
        self._given: dict[Any, Formula] = {}

    def __call__(self, *operands: Any) -> Any:
        """Build the tree or trees."""
        return self.function(*operands)

    def given(self, **options: Any) -> Formula:
        """Return the formula for these keyword arguments, which must be hashable.

        Raises:
            ValidationError: They are not, or the formula has none of these names.
        """
        key = tuple([(k, signed(x) if type(x) is float else x) for k, x in options.items()])
        try:
            found = self._given.get(key)
            if found is None:
                inspect.signature(self.function).bind_partial(**options)
        except (TypeError, ValueError) as error:
            raise ValidationError(f"formula {self.__name__!r}: options: {error}.") from None
        if found is None:
            if len(self._given) >= MOST_FORMULAS:
                oldest, *_ = self._given
                self._given.pop(oldest, None)  # other threads may do so, too
            function = functools.partial(self.function, **options)
            found = self._given[key] = Formula(function, self.__name__)
        return found

    def program(self, *arrays: Any) -> Program:
        """Return the program for arrays of these shapes and types.

        Raises:
            ValidationError: The numbers of arrays and arguments differ, shapes do not fit, or
                something is not an array.
        """
        try:
            key = tuple([(array.shape, array.dtype) for array in arrays])
        except AttributeError:
            got = ", ".join(type(array).__name__ for array in arrays)
            raise ValidationError(
                f"formula {self.__name__!r}: expected arrays, got {got}. Numbers are options "
                f"(keyword-only arguments, see Formula.given) or arrays of shape ()."
            ) from None
        program = self._programs.get(key)
        return self._linearised(key) if program is None else program

    def _linearised(self, key: Any) -> Program:
        names = self._names.get(len(key))
        if names is None:
            names = self._names[len(key)] = self._names_of(len(key))
        variables = [Variable(s, d, name, name) for (s, d), name in zip(key, names, strict=True)]
        trees = self.function(*variables)
        trees = list(trees) if type(trees) in (list, tuple) else [trees]
        program = linearise(trees, variables, name=self.__name__)
        if len(self._programs) >= MOST_PROGRAMS:
            oldest, *_ = self._programs
            self._programs.pop(oldest, None)
        self._programs[key] = program
        return program

    def _names_of(self, count: int) -> Sequence[str]:
        try:
            bound = inspect.signature(self.function).bind(*range(count))
        except (TypeError, ValueError) as error:  # ValueError: of options that it does not have
            raise ValidationError(
                f"formula {self.__name__!r}: {error}; got {count} arrays."
            ) from None
        names: list[str] = []
        for name, value in bound.arguments.items():
            several = isinstance(value, tuple)
            names.extend([f"{name}{i}" for i in range(len(value))] if several else [name])
        return names

    @safe_repr
    def __repr__(self) -> str:
        return f"<formula {self.__name__}>"


def _name_of(function: Callable[..., Any]) -> str:
    parts = getattr(function, "__qualname__", "").split(".")
    names = [part for part in parts if part.isidentifier()]
    return names[-1].lstrip("_") if names else Program.name


def formula(function: Callable[..., Any]) -> Formula:
    """Decorate a function of expressions; see `Formula`."""
    return Formula(function)
