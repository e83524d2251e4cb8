"""Activation functions on a handler: operations, and tables by name for layers.

Their formulas are in `brainstorm.optree.activations`; every handler inherits them.
"""
# ruff: noqa: B027, D403 (`operation` makes the methods; docstrings start with formulas)

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping
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


def _methods(row: Activation) -> tuple[Function, Function]:
    """Return ``name(x, y)`` and ``name_deriv(x, y, dy, dx)`` as methods of handlers."""
    value, deltas = activation_formulas(row)

    def forward(self: Any, x: Array, y: Array) -> None:
        self.compute(value, (x,), (y,))

    def backward(self: Any, x: Array, y: Array, dy: Array, dx: Array) -> None:
        self.compute(deltas, (x if row.needs_input else y, dy), (dx,))

    return forward, backward


class _Present:
    """An attribute: the result of a function of the handler, and of the present activations."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self._of = of

    def __get__(self, instance: Any, owner: type) -> Any:
        return self._of(instance)


class ActivationOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    #: Names of the activation functions, including registered ones: a tuple.
    activations: Any = _Present(lambda _: tuple(ACTIVATIONS))
    #: Names of those whose derivative is computed from the input: a frozenset.
    activations_needing_inputs: Any = _Present(
        lambda _: frozenset(name for name, row in ACTIVATIONS.items() if row.needs_input)
    )

    #: Activation name -> ``f(x, y)``, which writes y, other memory than x.
    act_func: Any = _Present(lambda handler: _Table(_function, handler))
    #: Activation name -> ``f(x, y, dy, dx)``, which writes dx, other memory than the rest; x may be
    #: None unless the name is in `activations_needing_inputs`.
    act_func_deriv: Any = _Present(lambda handler: _Table(_derivative, handler))
    #: Activation name -> ``f(x)``, which overwrites x by y.
    inplace_act_func: Any = _Present(lambda handler: _Table(_function_in_place, handler))
    #: Activation name -> ``f(y, dy, x)``, which overwrites dy by dx; x may be left out unless the
    #: name is in `activations_needing_inputs`.
    inplace_act_func_deriv: Any = _Present(lambda handler: _Table(_derivative_in_place, handler))

    # For editors and type checkers: what `_declare` makes of the table.
    sigmoid: Function
    sigmoid_deriv: Function
    rel: Function
    rel_deriv: Function
    tanh: Function
    tanh_deriv: Function
    el: Function
    el_deriv: Function
    softplus: Function
    softplus_deriv: Function
    leaky_rel: Function
    leaky_rel_deriv: Function
    gelu: Function
    gelu_deriv: Function
    silu: Function
    silu_deriv: Function
    hard_sigmoid: Function
    hard_sigmoid_deriv: Function
    exp: Function
    exp_deriv: Function
    selu: Function
    selu_deriv: Function
    mish: Function
    mish_deriv: Function
    hard_swish: Function
    hard_swish_deriv: Function

    @operation("m(M,N) ~> out(M,N)", formula=lambda m: fn.softmax(m, axis=1))
    def softmax_m(self, m: Array, out: Array) -> None:
        """out = exp(m) / sum(exp(m)), row by row."""


def _declare(row: Activation) -> None:
    """Declare a function and its derivative as operations."""
    used = "x(*S) y(*S)?" if row.needs_input else "x(*S)? y(*S)"
    texts = (
        (row.name, f"y = {row.value}.", "x(*S) ~> y(*S)"),
        (f"{row.name}_deriv", f"dx = {row.deltas}.", f"{used} dy(*S) ~> dx(*S)"),
    )
    for function, (name, doc, contract) in zip(_methods(row), texts, strict=True):
        function.__name__, function.__doc__ = name, doc
        function.__qualname__ = f"ActivationOperations.{name}"
        setattr(ActivationOperations, name, operation(contract, derived=True)(function))


for _row in dict.fromkeys(ACTIVATIONS.values()):
    if _row.value:
        _declare(_row)


class _Table(Mapping[str, Function]):
    """Activation name to function of a handler, also of activations that are registered later."""

    def __init__(self, make: Callable[[Any, str], Function], handler: Any) -> None:
        self._make, self._handler = make, handler

    def __getitem__(self, name: str) -> Function:
        return self._make(self._handler, name)

    def __contains__(self, name: object) -> bool:
        return name in ACTIVATIONS

    def __iter__(self) -> Iterator[str]:
        return iter(ACTIVATIONS)

    def __len__(self) -> int:
        return len(ACTIVATIONS)


def _function(handler: Any, name: str) -> Function:
    row = activation(name)
    return getattr(handler, row.name) if row.value else partial(_methods(row)[0], handler)


def _derivative(handler: Any, name: str) -> Function:
    row = activation(name)
    if row.value:
        return getattr(handler, f"{row.name}_deriv")
    return partial(_methods(row)[1], handler)


def _function_in_place(handler: Any, name: str) -> Function:
    function = _function(handler, name)
    return _nothing if name == "linear" else lambda x: function(x, x)


def _derivative_in_place(handler: Any, name: str) -> Function:
    derivative, needs_input = _derivative(handler, name), activation(name).needs_input

    def overwrite(y: Array, dy: Array, x: Array = None) -> None:
        if needs_input and x is None:
            raise HandlerValidationError(
                f"inplace_act_func_deriv[{name!r}](y, dy, x): expected x, the input of {name!r}, "
                f"got None. Keep the input for the activations in "
                f"Handler.activations_needing_inputs."
            )
        derivative(x, y, dy, dy)

    return _nothing if name == "linear" else overwrite


def _nothing(*arrays: Array) -> None:
    """Do nothing: the in-place version of the linear function."""
