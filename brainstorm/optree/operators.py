"""The operator table, first part: element-wise operators.

One row contains everything about an operator: its NumPy function, its derivative, its form in C and
CUDA, and the intervals for tests. `registry.Operator` explains the columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.optree import numpy_functions as nf
from brainstorm.optree.functions import (
    absolute,
    cos,
    cosh,
    digamma,
    divide,
    equal,
    exp,
    exp2,
    fmod,
    log,
    log1p,
    logical_and,
    maximum,
    minimum,
    not_equal,
    rint,
    sgn,
    sig,
    sin,
    sinh,
    sqrt,
    tanh,
    where,
)
from brainstorm.optree.registry import register_operator

LN2 = math.log(2.0)
REAL, POSITIVE = (-3.0, 3.0), (0.2, 3.0)


def _row(
    name: str,
    numpy: Callable[..., Any] | None,
    c: str,
    *rules: Any,
    kind: str = "elementwise",
    **more: Any,
) -> None:
    more.setdefault("domain", (REAL,) * len(rules))
    register_operator(name, len(rules), numpy, rules, c=c, kind=kind, **more)


# -- two operands ----------------------------------------------------------------------------


def _pow_base(dz: Any, z: Any, x: Any, y: Any) -> Any:
    if isinstance(y, (int, float)):
        if y in (0, 1, 2):
            return dz * (y * x if y == 2 else float(y))
        return dz * (y * x ** (y - 1))
    return where(equal(y, 0), 0, dz * y * x ** (y - where(equal(y, 0), 0, 1)))


def _pow_exponent(dz: Any, z: Any, x: Any, y: Any) -> Any:
    # x = 0: d/dy 0^y = 0 for y > 0. x < 0: no derivative, the logarithm gives NaN.
    return dz * z * log(where(equal(x, 0), 1, x))


_row("add", np.add, "{0} + {1}",
     lambda dz, z, x, y: dz, lambda dz, z, x, y: dz, symbol="+")  # fmt: skip
_row("sub", np.subtract, "{0} - {1}",
     lambda dz, z, x, y: dz, lambda dz, z, x, y: -dz, symbol="-")  # fmt: skip
_row("mul", np.multiply, "{0} * {1}",
     lambda dz, z, x, y: dz * y, lambda dz, z, x, y: dz * x, symbol="*")  # fmt: skip
_row("div", np.divide, "{0} / {1}",
     lambda dz, z, x, y: dz / y, lambda dz, z, x, y: -(dz * z / y),
     symbol="/", domain=(REAL, POSITIVE))  # fmt: skip
_row("pow", np.power, "pow({0}, {1})", _pow_base, _pow_exponent,
     symbol="**", cheap=False, domain=(POSITIVE, REAL))  # fmt: skip
_row("fmod", np.fmod, "fmod({0}, {1})",
     lambda dz, z, x, y: dz, lambda dz, z, x, y: dz * rint((z - x) / y),
     domain=((2.2, 2.4), (0.5, 0.54)))  # fmt: skip
_row("maximum", np.maximum, "({0} >= {1} || {0} != {0}) ? {0} : {1}",
     lambda dz, z, x, y: where(x >= y, dz, 0),
     lambda dz, z, x, y: where(y >= x, dz, 0))  # fmt: skip
_row("minimum", np.minimum, "({0} <= {1} || {0} != {0}) ? {0} : {1}",
     lambda dz, z, x, y: where(x <= y, dz, 0),
     lambda dz, z, x, y: where(y <= x, dz, 0))  # fmt: skip

# -- comparisons: 0 or 1 in the working type -------------------------------------------------

for _name, _numpy, _sign in (
    ("eq", np.equal, "=="),
    ("ne", np.not_equal, "!="),
    ("lt", np.less, "<"),
    ("le", np.less_equal, "<="),
    ("gt", np.greater, ">"),
    ("ge", np.greater_equal, ">="),
):
    _row(_name, _numpy, f"(T)({{0}} {_sign} {{1}})", None, None, kind="comparison", symbol=_sign)
_row("finite", np.isfinite, "(T)({0} - {0} == 0)", None, kind="comparison")
_row("isnan", np.isnan, "(T)({0} != {0})", None, kind="comparison")

_row("and", np.logical_and, "(T)({0} != 0 && {1} != 0)", None, None,
     kind="comparison", symbol="&")  # fmt: skip
_row("or", np.logical_or, "(T)({0} != 0 || {1} != 0)", None, None,
     kind="comparison", symbol="|")  # fmt: skip
_row("not", np.logical_not, "(T)({0} == 0)", None, kind="comparison", symbol="~")

# -- one operand -----------------------------------------------------------------------------

_row("neg", np.negative, "-{0}", lambda dz, z, x: -dz, symbol="-")
_row("abs", np.absolute, "fabs({0})", lambda dz, z, x: dz * sgn(x))
_row("sgn", np.sign, "{0} != {0} ? {0} : (T)(({0} > 0) - ({0} < 0))", None)
_row("rint", np.rint, "rint({0})", None)
_row("floor", np.floor, "floor({0})", None)
_row("binarize", nf.binarize, "{0} != {0} ? {0} : ({0} >= 0 ? (T)1 : (T)-1)", None)
_row("sqr", np.square, "{0} * {0}", lambda dz, z, x: dz * (2 * x))
_row("sqrt", np.sqrt, "sqrt({0})", lambda dz, z, x: 0.5 * dz / z, domain=(POSITIVE,))


def _transcendental(
    name: str,
    numpy: Callable[..., Any],
    c: str,
    rule: Any,
    domain: tuple[float, float] = REAL,
) -> None:
    _row(name, numpy, c, rule, cheap=False, domain=(domain,))


_transcendental("exp", np.exp, "exp({0})", lambda dz, z, x: dz * z)
_transcendental("exp2", np.exp2, "exp2({0})", lambda dz, z, x: dz * z * LN2)
_transcendental("expm1", np.expm1, "expm1({0})", lambda dz, z, x: dz * (z + 1))
_transcendental("log", np.log, "log({0})", lambda dz, z, x: dz / x, POSITIVE)
_transcendental("log2", np.log2, "log2({0})", lambda dz, z, x: dz / (x * LN2), POSITIVE)
_transcendental("log1p", np.log1p, "log1p({0})", lambda dz, z, x: dz / (1 + x), (-0.7, 3.0))
_transcendental("tanh", np.tanh, "tanh({0})", lambda dz, z, x: dz * (1 - z * z))
_transcendental("sin", np.sin, "sin({0})", lambda dz, z, x: dz * cos(x))
_transcendental("cos", np.cos, "cos({0})", lambda dz, z, x: -dz * sin(x))
_transcendental("tan", np.tan, "tan({0})", lambda dz, z, x: dz * (1 + z * z), (-1.2, 1.2))
_transcendental("sinh", np.sinh, "sinh({0})", lambda dz, z, x: dz * cosh(x))
_transcendental("cosh", np.cosh, "cosh({0})", lambda dz, z, x: dz * sinh(x))
for _name, _c, _rule, _domain in (
    ("arcsin", "asin", lambda dz, z, x: dz / sqrt(1 - x * x), (-0.8, 0.8)),
    ("arccos", "acos", lambda dz, z, x: -dz / sqrt(1 - x * x), (-0.8, 0.8)),
    ("arctan", "atan", lambda dz, z, x: dz / (1 + x * x), REAL),
    ("arcsinh", "asinh", lambda dz, z, x: dz / sqrt(1 + x * x), REAL),
    ("arccosh", "acosh", lambda dz, z, x: dz / sqrt(x * x - 1), (1.2, 3.0)),
    ("arctanh", "atanh", lambda dz, z, x: dz / (1 - x * x), (-0.8, 0.8)),
):
    _transcendental(_name, getattr(np, _name), f"{_c}({{0}})", _rule, _domain)
_transcendental(
    "erf", nf.erf, "erf({0})", lambda dz, z, x: dz * (2 / math.sqrt(math.pi) * exp(-(x * x)))
)
_transcendental("lgamma", nf.lgamma, "lgamma({0})", lambda dz, z, x: dz * digamma(x), POSITIVE)

# -- decomposed into the above ---------------------------------------------------------------

#: The steps by which the argument of digamma is moved up, and Bernoulli's numbers B_2, B_4, ...,
#: for the asymptotic series there: M. Abramowitz and I. A. Stegun, 6.3.6 and 6.3.18.
STEPS = 8
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _lower_digamma(x: Any) -> Any:
    y, total = x + STEPS, 0.0
    for n in range(len(BERNOULLI), 0, -1):
        total = (total + BERNOULLI[n - 1] / (2 * n)) / (y * y)
    total = log(y) - 0.5 / y - total
    for k in range(STEPS - 1, -1, -1):
        total = total - 1 / (x + k)
    return where(x < 0, math.nan, total)


def _trigamma(x: Any) -> Any:
    y, total = x + STEPS, 0.0
    for number in reversed(BERNOULLI):
        total = (total + number) / (y * y)
    total = (1 + 0.5 / y + total) / y
    for k in range(STEPS - 1, -1, -1):
        total = total + 1 / ((x + k) * (x + k))
    return where(x < 0, math.nan, total)


def _lower_erfc(x: Any) -> Any:
    a = minimum(absolute(x), nf.ERFC_ENDS)
    t = (a - nf.ERFC_CENTRE) / (a + nf.ERFC_CENTRE)
    is_float = getattr(x, "dtype", None) == np.float32  # x may be a number
    last, *powers = reversed(nf.ERFC_POWERS_FLOAT if is_float else nf.ERFC_POWERS)
    total: Any = last
    for power in powers:
        total = total * t + power
    tail = total * exp(-(a * a)) / (1 + 2 * a)
    sign = sgn(x)
    return (1 - sign) + sign * tail  # exact: tail for x > 0, 2 - tail for x < 0, 1 for x = 0


def _taken_apart(
    name: str, lowering: Any, rule: Any, domain: tuple[float, float] = REAL, cheap: bool = False
) -> None:
    _row(name, None, "", rule, cheap=cheap, domain=(domain,), lowering=lowering)


_taken_apart("erfc", _lower_erfc, lambda dz, z, x: dz * (-2 / math.sqrt(math.pi) * exp(-(x * x))))
_taken_apart("digamma", _lower_digamma, lambda dz, z, x: dz * _trigamma(x), POSITIVE)
_taken_apart("sig", lambda x: 1 / (1 + exp(-x)), lambda dz, z, x: dz * (z * (1 - z)))
_taken_apart("sig2", lambda x: 1 / (1 + exp2(-x)), lambda dz, z, x: dz * (z * (1 - z) * LN2))
_taken_apart("tanh2", lambda x: tanh(x * LN2), lambda dz, z, x: dz * ((1 - z * z) * LN2))
_taken_apart(
    "softplus", lambda x: maximum(x, 0) + log1p(exp(-absolute(x))), lambda dz, z, x: dz * sig(x)
)
_taken_apart(
    "safelog",
    lambda x: log(maximum(x, nf.SMALLEST)),
    lambda dz, z, x: where(x >= nf.SMALLEST, dz / maximum(x, nf.SMALLEST), 0),
    (-1.0, 3.0),
)
_taken_apart("relu", lambda x: maximum(x, 0), lambda dz, z, x: dz * (z > 0), cheap=True)


def _below(x: Any, y: Any) -> Any:
    """Return the remainder with the sign of x, and whether floor and truncation differ."""
    rest = fmod(x, y)
    return rest, logical_and(rest, not_equal(rest < 0, y < 0))


def _lower_mod(x: Any, y: Any) -> Any:
    rest, is_below = _below(x, y)
    return where(is_below, rest + y, rest)


def _lower_floordiv(x: Any, y: Any) -> Any:
    rest, is_below = _below(x, y)
    whole = rint(divide(x - rest, y)) - is_below
    return where(equal(y, 0), divide(x, y), whole)


_row("mod", None, "",
     lambda dz, z, x, y: dz, lambda dz, z, x, y: dz * rint((z - x) / y),
     symbol="%", domain=((2.2, 2.4), (-0.54, -0.5)), lowering=_lower_mod)  # fmt: skip
_row("floordiv", None, "", None, None,
     symbol="//", domain=((2.2, 2.4), (-0.54, -0.5)), lowering=_lower_floordiv)  # fmt: skip

# -- three operands --------------------------------------------------------------------------

_row("where", nf.where, "{0} != 0 ? {1} : {2}",
     None, lambda dz, z, c, x, y: where(c, dz, 0), lambda dz, z, c, x, y: where(c, 0, dz),
     domain=((-1.0, 1.0), REAL, REAL))  # fmt: skip
