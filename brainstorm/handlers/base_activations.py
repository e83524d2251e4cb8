"""Activation functions on a handler: operations, and the tables in which layers find them by name.

What they compute stands in `brainstorm.optree.activations`; every handler inherits them.
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

__all__ = ["ActivationOperations", "ActivationTable", "activation_formula", "activation_tables"]

Function: TypeAlias = Callable[..., None]


@cache
def _formulas(row: Activation) -> tuple[Formula, Formula]:
    """Return y as a formula of x, and dx as one of y and dy, or x and dy if it needs the input."""

    def deltas(x: Any, dy: Any) -> Any:
        return gradients(row(x), [x], dy) if row.needs_input else dy * row.slope(None, x)

    return Formula(row), Formula(deltas)


def activation_formula(name: str) -> Formula:
    """Return an activation function as the formula of its input."""
    return _formulas(activation(name))[0]


def _forward(handler: Any, name: str, x: Array, y: Array) -> None:
    handler.compute(activation_formula(name), (x,), (y,))


def _backward(handler: Any, name: str, x: Array, y: Array, dy: Array, dx: Array) -> None:
    row = activation(name)
    handler.compute(_formulas(row)[1], (x if row.needs_input else y, dy), (dx,))


#: Names of the activation functions that are operations of the handler.
_declared: set[str] = set()


def _operations(name: str, value: str, deltas: str) -> tuple[Function, Function]:
    """Declare the operations ``name(x, y)`` and ``name_deriv(x, y, dy, dx)``, given their texts."""
    row = activation(name)
    y_of, dx_of = _formulas(row)

    def forward(self: Any, x: Array, y: Array) -> None:
        self.compute(y_of, (x,), (y,))

    def backward(self: Any, x: Array, y: Array, dy: Array, dx: Array) -> None:
        self.compute(dx_of, (x if row.needs_input else y, dy), (dx,))

    used = "x(*S) y(*S)?" if row.needs_input else "x(*S)? y(*S)"
    _declared.add(name)
    return (
        _operation(forward, name, value, "x(*S) ~> y(*S)"),
        _operation(backward, f"{name}_deriv", deltas, f"{used} dy(*S) ~> dx(*S)"),
    )


def _operation(function: Function, name: str, doc: str, contract: str) -> Function:
    function.__name__, function.__doc__ = name, doc
    function.__qualname__ = f"ActivationOperations.{name}"
    return operation(contract, derived=True)(function)


class _Listed:
    """A class attribute: what a function makes of the table of activations as it is now."""

    def __init__(self, of: Callable[[], Any]) -> None:
        self._of = of

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._of()


class ActivationOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    #: Names of the activation functions, the registered ones included: a tuple.
    activations: Any = _Listed(lambda: tuple(ACTIVATIONS))
    #: Names of those whose derivative is computed from the input: a frozenset.
    activations_needing_inputs: Any = _Listed(
        lambda: frozenset(name for name, row in ACTIVATIONS.items() if row.needs_input)
    )

    sigmoid, sigmoid_deriv = _operations(
        "sigmoid", "y = 1 / (1 + exp(-x)).", "dx = dy * y * (1 - y)."
    )
    tanh, tanh_deriv = _operations("tanh", "y = tanh(x).", "dx = dy * (1 - y * y).")
    rel, rel_deriv = _operations("rel", "y = max(x, 0).", "dx = dy if y > 0 else 0.")
    el, el_deriv = _operations(
        "el", "y = x if x >= 0 else exp(x) - 1.", "dx = dy if y >= 0 else dy * (y + 1)."
    )
    softplus, softplus_deriv = _operations(
        "softplus", "y = log(1 + exp(x)).", "dx = dy * (1 - exp(-y))."
    )
    leaky_rel, leaky_rel_deriv = _operations(
        "leaky_rel", "y = x if x > 0 else 0.01 * x.", "dx = dy if y > 0 else 0.01 * dy."
    )
    gelu, gelu_deriv = _operations(
        "gelu",
        "y = x * (1 + erf(x / sqrt(2))) / 2: x times the normal distribution function of x.",
        "dx = dy * ((1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi)).",
    )
    silu, silu_deriv = _operations(
        "silu", "y = x * sigmoid(x).", "dx = dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))."
    )
    hard_sigmoid, hard_sigmoid_deriv = _operations(
        "hard_sigmoid",
        "y = min(max(x / 6 + 1 / 2, 0), 1).",
        "dx = dy / 6 if 0 < y < 1 else 0.",
    )
    exp, exp_deriv = _operations(
        "exp",
        "y = exp(x), or about the largest number of the dtype where that would be infinite.",
        "dx = dy * y.",
    )

    @operation("m(M,N) ~> out(M,N)", formula=lambda m: fn.softmax(m, axis=1))
    def softmax_m(self, m: Array, out: Array) -> None:
        """out = exp(m) / sum(exp(m)), row by row."""


class ActivationTable(dict[str, Function]):
    """Activation name to function; those that are registered later are found too.

    Args:
        handler: What computes.
        make: Called with the handler and a row of the table, returns the function.
    """

    def __init__(self, handler: Any, make: Callable[[Any, str], Function]) -> None:
        super().__init__((name, make(handler, name)) for name in ACTIVATIONS)
        self._handler, self._make = handler, make

    def __missing__(self, name: str) -> Function:
        function = self[name] = self._make(self._handler, name)
        return function


def activation_tables(handler: Any) -> tuple[ActivationTable, ...]:
    """Return functions, derivatives, and both in place; `Handler` says how they are called."""
    makers = (_function, _derivative, _function_in_place, _derivative_in_place)
    return tuple(ActivationTable(handler, make) for make in makers)


def _function(handler: Any, name: str) -> Function:
    own = activation(name).name
    return getattr(handler, own) if own in _declared else partial(_forward, handler, own)


def _derivative(handler: Any, name: str) -> Function:
    own = activation(name).name
    declared = own in _declared
    return getattr(handler, f"{own}_deriv") if declared else partial(_backward, handler, own)


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
    """What an in-place linear function does."""


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
