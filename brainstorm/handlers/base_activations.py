"""Activation functions: their operations, and the tables in which layers find them by name.

Most derivatives follow from the output alone; then the output may overwrite the input. For those
in `activations_needing_inputs` a layer keeps the input until the backward pass.
"""
# ruff: noqa: B024, B027, D402, D403 (`operation` makes methods abstract; formulas)

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from brainstorm.errors import HandlerValidationError, unknown
from brainstorm.handlers.contracts import operation
from brainstorm.utils import Array

__all__ = ["ActivationOperations", "ActivationTable", "activation_tables", "register_activation"]

Function = Callable[..., None]

#: Names of activation functions whose operation is called otherwise.
_SYNONYMS = {"relu": "rel", "elu": "el", "leaky_relu": "leaky_rel", "swish": "silu"}


class ActivationOperations(abc.ABC):
    """Declarations; part of `Handler`."""

    #: Names of the activation functions, the registered ones included.
    activations: ClassVar[tuple[str, ...]] = (
        *("sigmoid", "rel", "relu", "tanh", "linear", "el", "elu", "softplus", "leaky_rel"),
        *("leaky_relu", "gelu", "silu", "swish", "hard_sigmoid", "exp"),
    )
    #: Names of those whose derivative is computed from the input.
    activations_needing_inputs: ClassVar[frozenset[str]] = frozenset({"gelu", "silu", "swish"})

    @operation("x(*S) ~> y(*S)")
    def sigmoid(self, x: Array, y: Array) -> None:
        """y = 1 / (1 + exp(-x))."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def sigmoid_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * y * (1 - y)."""

    @operation("x(*S) ~> y(*S)")
    def tanh(self, x: Array, y: Array) -> None:
        """y = tanh(x)."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def tanh_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * (1 - y * y)."""

    @operation("x(*S) ~> y(*S)")
    def rel(self, x: Array, y: Array) -> None:
        """y = max(x, 0)."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def rel_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy if y > 0 else 0."""

    @operation("x(*S) ~> y(*S)")
    def el(self, x: Array, y: Array) -> None:
        """y = x if x >= 0 else exp(x) - 1."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def el_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy if y >= 0 else dy * (y + 1)."""

    @operation("x(*S) ~> y(*S)")
    def softplus(self, x: Array, y: Array) -> None:
        """y = log(1 + exp(x))."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def softplus_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * (1 - exp(-y))."""

    @operation("x(*S) ~> y(*S)")
    def leaky_rel(self, x: Array, y: Array) -> None:
        """y = x if x > 0 else 0.01 * x."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def leaky_rel_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy if y > 0 else 0.01 * dy."""

    @operation("x(*S) ~> y(*S)")
    def gelu(self, x: Array, y: Array) -> None:
        """y = x * (1 + erf(x / sqrt(2))) / 2: x times the normal distribution function of x."""

    @operation("x(*S) y(*S)? dy(*S) ~> dx(*S)")
    def gelu_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * ((1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi))."""

    @operation("x(*S) ~> y(*S)")
    def silu(self, x: Array, y: Array) -> None:
        """y = x * sigmoid(x)."""

    @operation("x(*S) y(*S)? dy(*S) ~> dx(*S)")
    def silu_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))."""

    @operation("x(*S) ~> y(*S)")
    def hard_sigmoid(self, x: Array, y: Array) -> None:
        """y = min(max(x / 6 + 1 / 2, 0), 1)."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def hard_sigmoid_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy / 6 if 0 < y < 1 else 0."""

    @operation("x(*S) ~> y(*S)")
    def exp(self, x: Array, y: Array) -> None:
        """y = exp(x), or about the largest number of the dtype where that would be infinite."""

    @operation("x(*S)? y(*S) dy(*S) ~> dx(*S)")
    def exp_deriv(self, x: Array, y: Array, dy: Array, dx: Array) -> None:
        """dx = dy * y."""

    @operation("m(M,N) ~> out(M,N)")
    def softmax_m(self, m: Array, out: Array) -> None:
        """out = exp(m) / sum(exp(m)), row by row."""


class _Registered(NamedTuple):
    forward: Function
    derivative: Function
    needs_input: bool


_registered: dict[str, _Registered] = {}


def register_activation(
    name: str, forward: Function, derivative: Function, needs_input: bool = False
) -> None:
    """Add an activation function, which every layer on every handler finds by its name.

    It consists of operations of the handler, which write into the last argument; for a square:

        register_activation(
            "square",
            lambda handler, x, y: handler.mult_tt(x, x, y),
            square_deriv,  # handler.mult_tt(x, dy, dx), then handler.mult_st(2.0, dx, dx)
            needs_input=True,
        )

    Args:
        name: What layers are to call it.
        forward: ``f(handler, x, y)`` writes y and leaves x as it is; y has other memory than x.
        derivative: ``f(handler, x, y, dy, dx)`` overwrites dx by dy times the slope and leaves the
            others as they are; dx has memory of its own.
        needs_input: Whether the derivative needs x, which is `None` otherwise.

    Raises:
        HandlerValidationError: The name is taken, or something is not what it should be.
    """
    if not isinstance(name, str) or not name:
        raise HandlerValidationError(f"register_activation: expected a name, got {name!r}.")
    if not (callable(forward) and callable(derivative)):
        raise HandlerValidationError(
            f"register_activation({name!r}): expected two functions, got {forward!r} and "
            f"{derivative!r}."
        )
    if name in ActivationOperations.activations:
        raise HandlerValidationError(
            f"register_activation({name!r}): the name is taken. Choose another than "
            f"{', '.join(ActivationOperations.activations)}."
        )
    _registered[name] = _Registered(forward, derivative, needs_input)
    ActivationOperations.activations = (*ActivationOperations.activations, name)
    if needs_input:
        ActivationOperations.activations_needing_inputs |= {name}


class ActivationTable(dict[str, Function]):
    """Activation name to function; those that are registered later are found too.

    Args:
        handler: What computes.
        make: Called with the handler and a name, returns the function.
    """

    def __init__(self, handler: Any, make: Callable[[Any, str], Function]) -> None:
        super().__init__((name, make(handler, name)) for name in ActivationOperations.activations)
        self._handler, self._make = handler, make

    def __missing__(self, name: str) -> Function:
        if name not in ActivationOperations.activations:
            choices = ActivationOperations.activations
            raise HandlerValidationError(unknown("activation", name, choices))
        function = self[name] = self._make(self._handler, name)
        return function


def activation_tables(handler: Any) -> tuple[ActivationTable, ...]:
    """Return functions, derivatives, and both in place; `Handler` says how they are called."""
    makers = (_function, _derivative, _function_in_place, _derivative_in_place)
    return tuple(ActivationTable(handler, make) for make in makers)


def _function(handler: Any, name: str) -> Function:
    if name in _registered:
        return functools.partial(_registered[name].forward, handler)
    if name == "linear":
        return handler.copy_to
    return getattr(handler, _SYNONYMS.get(name, name))


def _derivative(handler: Any, name: str) -> Function:
    if name in _registered:
        return functools.partial(_derive_registered, handler, _registered[name])
    if name == "linear":
        return functools.partial(_derive_linear, handler.copy_to)
    return getattr(handler, f"{_SYNONYMS.get(name, name)}_deriv")


def _function_in_place(handler: Any, name: str) -> Function:
    if name == "linear":
        return _nothing
    if name in _registered:
        return functools.partial(_overwrite_by_copy, _function(handler, name), handler)
    return functools.partial(_overwrite, _function(handler, name))


def _derivative_in_place(handler: Any, name: str) -> Function:
    if name == "linear":
        return _nothing
    derivative = _derivative(handler, name)
    if name in _registered:
        derivative = functools.partial(_derive_by_copy, derivative, handler)
    if name in ActivationOperations.activations_needing_inputs:
        derivative = functools.partial(_require_input, name, derivative)
    return functools.partial(_overwrite_deltas, derivative)


def _nothing(*arrays: Array) -> None:
    """What an in-place linear function does."""


def _overwrite(function: Function, x: Array) -> None:
    function(x, x)


def _overwrite_by_copy(function: Function, handler: Any, x: Array) -> None:
    copied = handler.allocate(x.shape)
    handler.copy_to(x, copied)
    function(copied, x)


def _derive_linear(copy_to: Function, x: Array, y: Array, dy: Array, dx: Array) -> None:
    copy_to(dy, dx)


def _derive_registered(
    handler: Any, entry: _Registered, x: Array, y: Array, dy: Array, dx: Array
) -> None:
    entry.derivative(handler, x if entry.needs_input else None, y, dy, dx)


def _derive_by_copy(
    derivative: Function, handler: Any, x: Array, y: Array, dy: Array, dx: Array
) -> None:
    copied = handler.allocate(dy.shape)
    handler.copy_to(dy, copied)
    derivative(x, y, copied, dx)


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
