"""Activation functions on a handler: operations, and tables by name for layers.

Their formulas are in `brainstorm.optree.activations`; every handler inherits them.
"""
# ruff: noqa: B024, B027, D403 (`operation` makes the methods; docstrings start with formulas)

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeAlias

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.contracts import operation
from brainstorm.optree import Formula, gradients
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS, Activation, activation
from brainstorm.utils import Array

Function: TypeAlias = Callable[..., None]


@cache
def activation_formulas(row: Activation) -> tuple[Formula, Formula]:
    """Return y as a formula of x, and dx as one of y and dy, or x and dy if it needs the input."""

    def deltas(x: Any, dy: Any) -> Any:
        return gradients(row(x), [x], dy) if row.needs_input else dy * row.slope(None, x)

    return Formula(row, row.name), Formula(deltas, f"{row.name}_deriv")


def activation_formula(name: str) -> Formula:
    """Return an activation function as the formula of its input."""
    return activation_formulas(activation(name))[0]


def _forward(handler: Any, name: str, x: Array, y: Array) -> None:
    handler.compute(activation_formula(name), (x,), (y,))


def _backward(handler: Any, name: str, x: Array, y: Array, dy: Array, dx: Array) -> None:
    row = activation(name)
    handler.compute(activation_formulas(row)[1], (x if row.needs_input else y, dy), (dx,))


class _Listed:
    """A class attribute: the result of a function of the present table of activations."""

    def __init__(self, of: Callable[[], Any]) -> None:
        self._of = of

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._of()


class ActivationOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    #: Names of the activation functions, including registered ones: a tuple.
    activations: Any = _Listed(lambda: tuple(ACTIVATIONS))
    #: Names of those whose derivative is computed from the input: a frozenset.
    activations_needing_inputs: Any = _Listed(
        lambda: frozenset(name for name, row in ACTIVATIONS.items() if row.needs_input)
    )

    @operation("m(M,N) ~> out(M,N)", formula=lambda m: fn.softmax(m, axis=1))
    def softmax_m(self, m: Array, out: Array) -> None:
        """out = exp(m) / sum(exp(m)), row by row."""


def _declare(row: Activation) -> None:
    """Declare the operations ``name(x, y)`` and ``name_deriv(x, y, dy, dx)``."""

    def forward(self: Any, x: Array, y: Array) -> None:
        _forward(self, row.name, x, y)

    def backward(self: Any, x: Array, y: Array, dy: Array, dx: Array) -> None:
        _backward(self, row.name, x, y, dy, dx)

    used = "x(*S) y(*S)?" if row.needs_input else "x(*S)? y(*S)"
    functions: tuple[tuple[Any, str, str, str], ...] = (
        (forward, row.name, f"y = {row.value}.", "x(*S) ~> y(*S)"),
        (backward, f"{row.name}_deriv", f"dx = {row.deltas}.", f"{used} dy(*S) ~> dx(*S)"),
    )
    for function, name, doc, contract in functions:
        function.__name__, function.__doc__ = name, doc
        function.__qualname__ = f"ActivationOperations.{name}"
        setattr(ActivationOperations, name, operation(contract, derived=True)(function))


for _row in dict.fromkeys(ACTIVATIONS.values()):
    if _row.value:
        _declare(_row)


class ActivationTable(dict[str, Function]):
    """Activation name to function; also contains activations that are registered later.

    Args:
        handler: The handler that computes.
        make: Called with the handler and a row of the table, returns the function.
    """

    def __init__(self, handler: Any, make: Callable[[Any, str], Function]) -> None:
        super().__init__((name, make(handler, name)) for name in ACTIVATIONS)
        self._handler, self._make = handler, make

    def __missing__(self, name: str) -> Function:
        function = self[name] = self._make(self._handler, name)
        return function


def activation_tables(handler: Any) -> tuple[ActivationTable, ...]:
    """Return functions, derivatives, and both in place; see `Handler` for their arguments."""
    makers = (_function, _derivative, _function_in_place, _derivative_in_place)
    return tuple(ActivationTable(handler, make) for make in makers)


def _function(handler: Any, name: str) -> Function:
    row = activation(name)
    return getattr(handler, row.name) if row.value else partial(_forward, handler, name)


def _derivative(handler: Any, name: str) -> Function:
    row = activation(name)
    return getattr(handler, f"{row.name}_deriv") if row.value else partial(_backward, handler, name)


def _function_in_place(handler: Any, name: str) -> Function:
    if name == "linear":
        return _nothing
    return partial(_overwrite, _function(handler, name))


def _derivative_in_place(handler: Any, name: str) -> Function:
    if name == "linear":
        return _nothing
    derivative = _derivative(handler, name)
    if activation(name).needs_input:
        derivative = partial(_require_input, name, derivative)
    return partial(_overwrite_deltas, derivative)


def _nothing(*arrays: Array) -> None:
    """Do nothing: the in-place version of the linear function."""


def _overwrite(function: Function, x: Array) -> None:
    function(x, x)


def _require_input(
    name: str, derivative: Function, x: Array, y: Array, dy: Array, dx: Array
) -> None:
    if x is None:
        raise HandlerValidationError(
            f"inplace_act_func_deriv[{name!r}](y, dy, x): expected x, the input of {name!r}, got "
            f"None. Keep the input for the activations in Handler.activations_needing_inputs."
        )
    derivative(x, y, dy, dx)


def _overwrite_deltas(derivative: Function, y: Array, dy: Array, x: Array = None) -> None:
    derivative(x, y, dy, dy)
