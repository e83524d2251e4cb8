"""Functions that build op-trees, with the names of neon's backend and of NumPy.

Operands are expressions or numbers. Reductions take `axis` (an int, several, negative; None: all
axes) and keep the reduced axes with length 1 unless ``keepdims=False``. If shapes do not fit, a
`ValidationError` shows the operands and the tree.
"""

from __future__ import annotations

import builtins
import numbers
from collections.abc import Callable
from typing import Any, Protocol

from brainstorm.errors import ValidationError
from brainstorm.optree.nodes import Expression, Operand, build

__all__ = [
    "abs", "absolute", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh",
    "argmax", "argmin", "binarize", "broadcast_to", "clip", "concatenate", "cos", "cosh",
    "cross_entropy_with_logits", "cumsum", "digamma", "divide", "dot", "equal", "erf", "erfc",
    "exp", "exp2", "expm1", "fabs", "finite", "floor", "floor_divide", "fmod", "full", "gather",
    "greater", "greater_equal", "isnan", "less", "less_equal", "lgamma", "log", "log1p", "log2",
    "log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp", "max", "maximum",
    "mean", "min", "minimum", "mod", "multiply", "negative", "not_equal", "onehot", "power", "prod",
    "reciprocal", "relu", "reshape", "rint", "safelog", "sgn", "sig", "sig2", "sin", "sinh",
    "softmax", "softplus", "sqrt", "square", "std", "subtract", "sum", "take", "tan", "tanh",
    "tanh2", "transpose", "true_divide", "var", "where",
]  # fmt: skip

Axis = int | tuple[int, ...] | None


def _unary(name: str, text: str, op: str = "") -> Callable[[Operand], Any]:
    def function(x: Operand) -> Any:
        return build(op or name, (x,))

    function.__name__, function.__qualname__, function.__doc__ = name, name, text
    return function


def _binary(name: str, text: str, op: str = "") -> Callable[[Operand, Operand], Any]:
    def function(x: Operand, y: Operand) -> Any:
        return build(op or name, (x, y))

    function.__name__, function.__qualname__, function.__doc__ = name, name, text
    return function


class _Reduction(Protocol):
    def __call__(self, x: Expression, axis: Axis = None, keepdims: bool = True) -> Any: ...


def _reduction(name: str, text: str) -> _Reduction:
    def function(x: Expression, axis: Axis = None, keepdims: bool = True) -> Any:
        return build(name, (x,), {"axis": axis, "keepdims": keepdims})

    function.__name__, function.__qualname__, function.__doc__ = name, name, text
    return function


add = _binary("add", "The sum x + y.")
subtract = _binary("subtract", "The difference x - y.", "sub")
multiply = _binary("multiply", "The product x * y.", "mul")
divide = _binary("divide", "The quotient x / y.", "div")
power = _binary(
    "power",
    "The power x ** y; the gradient of the exponent is NaN where x < 0 (there is none).",
    "pow",
)


def reciprocal(x: Operand) -> Any:
    """Return 1 / x."""
    return build("div", (1, x))


negative = _unary("negative", "-x.", "neg")
absolute = _unary("absolute", "abs(x); gradient 0 at 0.", "abs")
fmod = _binary("fmod", "x - trunc(x / y) * y: the remainder with the sign of x.")
mod = _binary("mod", "x - floor(x / y) * y: the remainder with the sign of y, as % in Python.")
floor_divide = _binary(
    "floor_divide", "floor(x / y), as // in Python, without rounding x / y; gradient 0.", "floordiv"
)
sgn = _unary("sgn", "-1, 0 or 1; gradient 0.")
sqrt = _unary("sqrt", "The square root.")
square = _unary("square", "The square x * x.", "sqr")
exp = _unary("exp", "e^x.")
exp2 = _unary("exp2", "2^x.")
expm1 = _unary("expm1", "e^x - 1, exact near 0.")
log = _unary("log", "The natural logarithm.")
log2 = _unary("log2", "Logarithm to base 2.")
log1p = _unary("log1p", "ln(1 + x), exact near 0.")
safelog = _unary("safelog", "ln(max(x, e^-50)); gradient 0 below e^-50.")
sig = _unary("sig", "1 / (1 + e^-x).")
sig2 = _unary("sig2", "1 / (1 + 2^-x).")
tanh = _unary("tanh", "The hyperbolic tangent.")
tanh2 = _unary("tanh2", "(2^2x - 1) / (2^2x + 1).")
erf = _unary("erf", "The error function.")
erfc = _unary("erfc", "1 - erf(x), exact also where that is almost 0.")
lgamma = _unary("lgamma", "ln(abs(gamma(x))); its gradient is NaN where x < 0.")
digamma = _unary("digamma", "The derivative of lgamma; NaN where x < 0.")
relu = _unary("relu", "max(x, 0), with gradient 0 at 0 (unlike that of `maximum`).")
softplus = _unary("softplus", "ln(1 + e^x) without overflow.")
sin = _unary("sin", "The sine.")
cos = _unary("cos", "The cosine.")
tan = _unary("tan", "The tangent.")
arcsin = _unary("arcsin", "The inverse sine, from -pi/2 to pi/2; NaN beyond -1 and 1.")
arccos = _unary("arccos", "The inverse cosine, from 0 to pi; NaN beyond -1 and 1.")
arctan = _unary("arctan", "The inverse tangent, from -pi/2 to pi/2.")
sinh = _unary("sinh", "The hyperbolic sine.")
cosh = _unary("cosh", "The hyperbolic cosine.")
arcsinh = _unary("arcsinh", "The inverse hyperbolic sine.")
arccosh = _unary("arccosh", "The inverse hyperbolic cosine, at least 0; NaN below 1.")
arctanh = _unary("arctanh", "The inverse hyperbolic tangent; NaN beyond -1 and 1.")
floor = _unary("floor", "The largest integer that is not above x; gradient 0.")
rint = _unary("rint", "The nearest integer, halves to even; gradient 0.")
binarize = _unary("binarize", "1 where x >= 0, -1 where x < 0; gradient 0.")
maximum = _binary("maximum", "The larger of two; where they are equal both get the whole gradient.")
minimum = _binary(
    "minimum", "The smaller of two; where they are equal both get the whole gradient."
)


def clip(x: Operand, low: Operand, high: Operand) -> Any:
    """Return minimum(maximum(x, low), high)."""
    return minimum(maximum(x, low), high)


equal = _binary("equal", "1 where x == y, else 0; gradient 0, as of all comparisons.", "eq")
not_equal = _binary("not_equal", "1 where x != y, else 0.", "ne")
less = _binary("less", "1 where x < y, else 0.", "lt")
less_equal = _binary("less_equal", "1 where x <= y, else 0.", "le")
greater = _binary("greater", "1 where x > y, else 0.", "gt")
greater_equal = _binary("greater_equal", "1 where x >= y, else 0.", "ge")
finite = _unary("finite", "1 where x is neither NaN nor infinite, else 0.")
isnan = _unary("isnan", "1 where x is NaN, else 0.")
logical_and = _binary("logical_and", "1 where neither is 0, else 0; also ``x & y``.", "and")
logical_or = _binary("logical_or", "1 where one of them is not 0, else 0; also ``x | y``.", "or")
logical_not = _unary("logical_not", "1 where x is 0, else 0; also ``~x``.", "not")


def where(condition: Operand, x: Operand, y: Operand) -> Any:
    """Return x where the condition is not 0, else y; elements not chosen get gradient 0.

    Their own derivative is multiplied by this 0, so it must be finite. Guard the argument, too, as
    in ``where(x > 0, x * log(where(x > 0, x, 1)), 0)``: otherwise the gradient at 0 is NaN.
    """
    return build("where", (condition, x, y))


# -- reductions ------------------------------------------------------------------------------


sum = _reduction("sum", "The sum over the axes.")
prod = _reduction(
    "prod", "The product over the axes; at zeros, only the first derivative is correct."
)
max = _reduction("max", "The largest element; all elements equal to it get the whole gradient.")
min = _reduction("min", "The smallest element; all elements equal to it get the whole gradient.")
argmax = _reduction(
    "argmax", "The index of the first largest element in the axes flattened in C order."
)
argmin = _reduction(
    "argmin", "The index of the first smallest element in the axes flattened in C order."
)
logsumexp = _reduction("logsumexp", "ln(sum(e^x)) without overflow.")


def mean(x: Expression, axis: Axis = None, keepdims: bool = True) -> Any:
    """Return the mean over the axes."""
    total = sum(x, axis, keepdims)
    count = x.size // builtins.max(total.size, 1)
    return total * (1.0 / count if count else float("nan"))


def var(x: Expression, axis: Axis = None, keepdims: bool = True) -> Any:
    """Return the population variance over the axes."""
    return mean(square(x - mean(x, axis)), axis, keepdims)


def std(x: Expression, axis: Axis = None, keepdims: bool = True) -> Any:
    """Return the population standard deviation over the axes."""
    return sqrt(var(x, axis, keepdims))


def softmax(x: Expression, axis: Axis = -1) -> Any:
    """Return e^x / sum(e^x) without overflow."""
    return build("softmax", (x,), {"axis": axis})


def log_softmax(x: Expression, axis: Axis = -1) -> Any:
    """Return ln(softmax(x)), exact even if softmax(x) is 0."""
    return build("log_softmax", (x,), {"axis": axis})


def cross_entropy_with_logits(
    logits: Expression, target: Expression, axis: Axis = -1, keepdims: bool = True
) -> Any:
    """Return -sum(target * log_softmax(logits)).

    Args:
        logits: Any shape.
        target: Probabilities, of the same shape. (With class indices instead:
            ``logsumexp(logits, axis) - gather(logits, indices, axis)``.)
        axis: The axes over which `target` sums to 1.
        keepdims: Whether these keep length 1.
    """
    options = {"axis": axis, "keepdims": keepdims}
    return build("cross_entropy_with_logits", (logits, target), options)


def cumsum(x: Expression, axis: int = -1) -> Any:
    """Return the cumulative sums along the axis."""
    return build("cumsum", (x,), {"axis": axis})


# -- products, indexing, structure -----------------------------------------------------------


def dot(x: Expression, y: Expression) -> Any:
    """Return the matrix product (..., m, k) (..., k, n) -> (..., m, n); other axes broadcast."""
    return build("dot", (x, y))


def take(x: Expression, indices: Operand, axis: int = 0) -> Any:
    """Return the slices of x at the indices, whose axes replace `axis`; -1 is the last.

    One index may be a whole number: ``take(x, 1, axis=2)`` is ``x[:, :, 1]``.
    """
    if isinstance(indices, numbers.Integral):
        at = build("take", (x, full((), indices)), {"axis": axis}).params["axis"]
        return x[(*(slice(None),) * at, indices)]
    return build("take", (x, indices), {"axis": axis})


def gather(x: Expression, indices: Expression, axis: int = -1) -> Any:
    """Return ``x[..., indices[..., i], ...]`` along the axis; the other axes must agree."""
    return build("gather", (x, indices), {"axis": axis})


def onehot(indices: Expression, axis: int, size: int) -> Any:
    """Return 1 at the index and 0 elsewhere; `axis` has length 1 and gets length `size`."""
    return build("onehot", (indices,), {"axis": axis, "size": size})


def transpose(x: Expression, axes: tuple[int, ...] | None = None) -> Any:
    """Return the tree with its axes in another order; by default reversed."""
    return build("transpose", (x,), {"axes": axes})


def reshape(x: Expression, shape: int | tuple[int, ...]) -> Any:
    """Return the elements, in C order, in another shape; one length may be -1."""
    return build("reshape", (x,), {"shape": shape})


def broadcast_to(x: Expression, shape: int | tuple[int, ...]) -> Any:
    """Return the elements broadcast to `shape`."""
    return build("broadcast", (x,), {"shape": shape})


def concatenate(parts: list[Expression] | tuple[Expression, ...], axis: int = -1) -> Any:
    """Return the parts concatenated along the axis."""
    if isinstance(parts, Expression) or not isinstance(parts, (list, tuple)):
        got = type(parts).__name__
        raise ValidationError(f"op-tree 'concatenate': expected a list of op-trees, got {got}.")
    return build("concatenate", tuple(parts), {"axis": axis})


def full(shape: int | tuple[int, ...], value: float, dtype: Any = "float32") -> Any:
    """Return an array filled with one number."""
    return build("full", (), {"shape": shape, "value": value, "dtype": dtype})


abs = fabs = absolute
true_divide = divide
