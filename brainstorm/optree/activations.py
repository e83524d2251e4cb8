"""Activation functions as formulas: one table for layers, handlers and user formulas.

    act = activation("tanh")
    y = act(x)                      # in a formula: a tree
    dx = dy * act.slope(x, y)       # the tree of the derivative

Most derivatives can be computed from the output; then the output may overwrite the input. The
others are derived from the formula, and need the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import HandlerValidationError, unknown
from brainstorm.optree import functions as fn
from brainstorm.optree.autodiff import gradients
from brainstorm.optree.nodes import Expression, Variable

#: Function from an expression to one of the same shape.
Function: TypeAlias = Callable[[Any], Any]

#: Slope of leaky_rel for negative inputs.
LEAK = 0.01

#: Slope of selu for positive inputs, and minus its limit at minus infinity divided by that: they
#: preserve mean 0 and variance 1 (Klambauer et al. 2017).
SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772


@dataclass(frozen=True)
class Activation:
    """One row of the table; calling it with an expression builds the tree of its value.

    Attributes:
        name: Its first name; the table may contain it under others too.
        formula: Function from x to y.
        slope_from_output: Function from y to the derivative; None: it is derived, and needs x.
        value: y as text, if it is an operation of every handler.
        deltas: dx, given dy, as text.
    """

    name: str
    formula: Function
    slope_from_output: Function | None = None
    value: str = ""
    deltas: str = ""

    def __call__(self, x: Any) -> Any:
        """Build the tree of y."""
        return self.formula(x)

    @property
    def needs_input(self) -> bool:
        """Whether the derivative is a function of x, not of y."""
        return self.slope_from_output is None

    def slope(self, x: Any, y: Any) -> Any:
        """Build the tree of the derivative of y by x, which uses only one of them."""
        if self.slope_from_output is not None:
            return self.slope_from_output(y)
        return gradients(self.formula(x), [x])[0]


def _largest(x: Any) -> float:
    return float(np.finfo(getattr(x, "dtype", np.float32)).max)  # x may be a number


def _exp(x: Expression) -> Any:
    """Return e^x, or about the largest number of the type if that is infinite."""
    return fn.exp(fn.minimum(x, math.log(_largest(x)) * (1 - 1e-6)))


def _selu(x: Expression) -> Any:
    rising = fn.relu(fn.minimum(x, _largest(x) / SELU_SCALE * (1 - 1e-6)))
    return SELU_SCALE * (rising + SELU_ALPHA * fn.expm1(fn.minimum(x, 0)))


def _gelu(x: Expression) -> Any:
    """Return x times the normal distribution function of x, which is erfc(-x / sqrt(2)) / 2."""
    return 0.5 * x * fn.erfc(x * -math.sqrt(0.5))


def _hard_sigmoid(x: Expression) -> Any:
    """Return min(max(x / 6 + 1 / 2, 0), 1), or NaN if x is NaN."""
    return 1 - fn.relu(1 - fn.relu(x * (1 / 6) + 0.5))


_ROWS = (
    Activation("sigmoid", fn.sig, lambda y: y * (1 - y),
               "1 / (1 + exp(-x))", "dy * y * (1 - y)"),
    Activation("rel", fn.relu, lambda y: y > 0, "max(x, 0)", "dy if y > 0 else 0"),
    Activation("tanh", fn.tanh, lambda y: 1 - y * y, "tanh(x)", "dy * (1 - y * y)"),
    Activation("linear", lambda x: x, lambda y: fn.full(y.shape, 1.0, y.dtype)),
    Activation("el", lambda x: fn.relu(x) + fn.expm1(fn.minimum(x, 0)),
               lambda y: 1 + fn.minimum(y, 0),
               "x if x >= 0 else exp(x) - 1", "dy if y >= 0 else dy * (y + 1)"),
    Activation("softplus", fn.softplus, lambda y: -fn.expm1(-y),
               "log(1 + exp(x))", "dy * (1 - exp(-y))"),
    Activation("leaky_rel", lambda x: fn.relu(x) + LEAK * fn.minimum(x, 0),
               lambda y: (y > 0) * (1 - LEAK) + LEAK,
               "x if x > 0 else 0.01 * x", "dy if y > 0 else 0.01 * dy"),
    Activation("gelu", _gelu, None,
               "x * (1 + erf(x / sqrt(2))) / 2: x times the normal distribution function of x",
               "dy * ((1 + erf(x / sqrt(2))) / 2 + x * exp(-x * x / 2) / sqrt(2 * pi))"),
    Activation("silu", lambda x: x * fn.sig(x), None,
               "x * sigmoid(x)", "dy * sigmoid(x) * (1 + x * (1 - sigmoid(x)))"),
    Activation("hard_sigmoid", _hard_sigmoid, lambda y: (y > 0) * (y < 1) * (1 / 6),
               "min(max(x / 6 + 1 / 2, 0), 1)", "dy / 6 if 0 < y < 1 else 0"),
    Activation("exp", _exp, lambda y: y,
               "exp(x), or about the largest number of the dtype where that would be infinite",
               "dy * y"),
    Activation("selu", _selu,
               lambda y: fn.where(y > 0, SELU_SCALE, y + SELU_SCALE * SELU_ALPHA),
               "1.0507 * (x if x > 0 else 1.67326 * (exp(x) - 1))",
               "1.0507 * dy if y > 0 else dy * (y + 1.0507 * 1.67326)"),
    Activation("mish", lambda x: x * fn.tanh(fn.softplus(x)), None,
               "x * tanh(log(1 + exp(x)))",
               "dy * (t + x * sigmoid(x) * (1 - t * t)) with t = tanh(log(1 + exp(x)))"),
    Activation("hard_swish", lambda x: x * _hard_sigmoid(x), None,
               "x * min(max(x / 6 + 1 / 2, 0), 1)",
               "dy * (0 if x <= -3 else 1 if x >= 3 else x / 3 + 1 / 2)"),
)  # fmt: skip
_SYNONYMS = {"rel": "relu", "el": "elu", "leaky_rel": "leaky_relu", "silu": "swish"}

_table: dict[str, Activation] = {
    name: row for row in _ROWS for name in (row.name, _SYNONYMS.get(row.name, row.name))
}

#: Name -> `Activation`; `register_activation` adds to it.
ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(_table)


def activation(name: str) -> Activation:
    """Return the activation function with this name.

    Raises:
        HandlerValidationError: There is none; the message lists the names.
    """
    try:
        return _table[name]
    except KeyError:
        raise HandlerValidationError(unknown("activation", name, _table)) from None


def register_activation(
    name: str, formula: Function, slope_from_output: Function | None = None
) -> None:
    """Add an activation function, which every layer on every handler can use by its name.

        from brainstorm.optree import functions as fn

        register_activation("square", lambda x: x * x)
        register_activation(
            "softsign", lambda x: x / (1 + fn.absolute(x)), lambda y: fn.square(1 - fn.absolute(y))
        )

    Args:
        name: Its name in layers.
        formula: Takes an expression of any shape, returns one of that shape. Its derivative is
            derived, and layers keep its input for that.
        slope_from_output: Function from y to the derivative of y by x, if that depends only on y;
            layers then need not keep x, and may overwrite it by y.

    Raises:
        HandlerValidationError: The name is taken, or an argument is not valid.
    """
    where = f"register_activation({name!r})"
    if not isinstance(name, str) or not name:
        raise HandlerValidationError(f"register_activation: expected a name, got {name!r}.")
    if name in _table:
        raise HandlerValidationError(
            f"{where}: the name is taken. Choose another than {', '.join(_table)}."
        )
    for what, function in (("formula", formula), ("slope_from_output", slope_from_output)):
        if function is not None or what == "formula":
            _check(f"{where}: {what}", function)
    _table[name] = Activation(name, formula, slope_from_output)


def _check(where: str, function: Any) -> None:
    if not callable(function):
        raise HandlerValidationError(f"{where}: expected a function, got {function!r}.")
    x = Variable((2, 3), np.float32, "x")
    tree = function(x)
    if not isinstance(tree, Expression) or tree.shape != x.shape:
        got = f"shape {tree.shape}" if isinstance(tree, Expression) else repr(tree)
        raise HandlerValidationError(
            f"{where}: expected an op-tree of its argument's shape, got {got} for {x.shape}. Write "
            f"it with operators and brainstorm.optree.functions."
        )
