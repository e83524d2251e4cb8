"""The operator table, first part: element-wise operators.

One row contains everything about an operator: its NumPy function, its derivative, its form in C and
CUDA, and the intervals for tests. `registry.Operator` explains the columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.optree import functions as fn
from brainstorm.optree import numpy_functions as nf
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
    return fn.where(fn.equal(y, 0), 0, dz * y * x ** (y - fn.where(fn.equal(y, 0), 0, 1)))


def _pow_exponent(dz: Any, z: Any, x: Any, y: Any) -> Any:
    # x = 0: d/dy 0^y = 0 for y > 0. x < 0: no derivative, the logarithm gives NaN.
    return dz * z * fn.log(fn.where(fn.equal(x, 0), 1, x))


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
     lambda dz, z, x, y: dz, lambda dz, z, x, y: dz * fn.rint((z - x) / y),
     domain=((2.2, 2.4), (0.5, 0.54)))  # fmt: skip
_row("maximum", np.maximum, "({0} >= {1} || {0} != {0}) ? {0} : {1}",
     lambda dz, z, x, y: fn.where(x >= y, dz, 0),
     lambda dz, z, x, y: fn.where(y >= x, dz, 0))  # fmt: skip
_row("minimum", np.minimum, "({0} <= {1} || {0} != {0}) ? {0} : {1}",
     lambda dz, z, x, y: fn.where(x <= y, dz, 0),
     lambda dz, z, x, y: fn.where(y <= x, dz, 0))  # fmt: skip

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
_row("abs", np.absolute, "fabs({0})", lambda dz, z, x: dz * fn.sgn(x))
_row("sgn", np.sign, "{0} != {0} ? {0} : (T)(({0} > 0) - ({0} < 0))", None)
_row("rint", np.rint, "rint({0})", None)
_row("floor", np.floor, "floor({0})", None)
_row("binarize", nf.binarize, "{0} != {0} ? {0} : ({0} >= 0 ? (T)1 : (T)-1)", None)
_row("sqr", np.square, "{0} * {0}", lambda dz, z, x: dz * (2 * x))
_row("sqrt", np.sqrt, "sqrt({0})", lambda dz, z, x: 0.5 * dz / z, domain=(POSITIVE,))

for _name, _rule, _domain in (
    ("exp", lambda dz, z, x: dz * z, REAL),
    ("exp2", lambda dz, z, x: dz * z * LN2, REAL),
    ("expm1", lambda dz, z, x: dz * (z + 1), REAL),
    ("log", lambda dz, z, x: dz / x, POSITIVE),
    ("log2", lambda dz, z, x: dz / (x * LN2), POSITIVE),
    ("log1p", lambda dz, z, x: dz / (1 + x), (-0.7, 3.0)),
    ("tanh", lambda dz, z, x: dz * (1 - z * z), REAL),
    ("sin", lambda dz, z, x: dz * fn.cos(x), REAL),
    ("cos", lambda dz, z, x: -dz * fn.sin(x), REAL),
    ("tan", lambda dz, z, x: dz * (1 + z * z), (-1.2, 1.2)),
    ("sinh", lambda dz, z, x: dz * fn.cosh(x), REAL),
    ("cosh", lambda dz, z, x: dz * fn.sinh(x), REAL),
    ("arcsin", lambda dz, z, x: dz / fn.sqrt(1 - x * x), (-0.8, 0.8)),
    ("arccos", lambda dz, z, x: -dz / fn.sqrt(1 - x * x), (-0.8, 0.8)),
    ("arctan", lambda dz, z, x: dz / (1 + x * x), REAL),
    ("arcsinh", lambda dz, z, x: dz / fn.sqrt(1 + x * x), REAL),
    ("arccosh", lambda dz, z, x: dz / fn.sqrt(x * x - 1), (1.2, 3.0)),
    ("arctanh", lambda dz, z, x: dz / (1 - x * x), (-0.8, 0.8)),
):
    _c = f"{_name.replace('arc', 'a')}({{0}})"  # C's names are asin, acosh, ...
    _row(_name, getattr(np, _name), _c, _rule, cheap=False, domain=(_domain,))
_row("erf", nf.erf, "erf({0})",
     lambda dz, z, x: dz * (2 / math.sqrt(math.pi) * fn.exp(-(x * x))), cheap=False)  # fmt: skip
_row("lgamma", nf.lgamma, "lgamma({0})", lambda dz, z, x: dz * fn.digamma(x),
     cheap=False, domain=(POSITIVE,))  # fmt: skip

# -- decomposed into the above ---------------------------------------------------------------

#: The steps by which the argument of digamma is moved up, and Bernoulli's numbers B_2, B_4, ...,
#: for the asymptotic series there: M. Abramowitz and I. A. Stegun, 6.3.6 and 6.3.18.
STEPS = 8
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _lower_digamma(x: Any) -> Any:
    y, total = x + STEPS, 0.0
    for n in range(len(BERNOULLI), 0, -1):
        total = (total + BERNOULLI[n - 1] / (2 * n)) / (y * y)
    total = fn.log(y) - 0.5 / y - total
    for k in range(STEPS - 1, -1, -1):
        total = total - 1 / (x + k)
    return fn.where(x < 0, math.nan, total)


def _trigamma(x: Any) -> Any:
    y, total = x + STEPS, 0.0
    for number in reversed(BERNOULLI):
        total = (total + number) / (y * y)
    total = (1 + 0.5 / y + total) / y
    for k in range(STEPS - 1, -1, -1):
        total = total + 1 / ((x + k) * (x + k))
    return fn.where(x < 0, math.nan, total)


def _lower_erfc(x: Any) -> Any:
    a = fn.minimum(fn.absolute(x), nf.ERFC_ENDS)
    t = (a - nf.ERFC_CENTRE) / (a + nf.ERFC_CENTRE)
    is_float = getattr(x, "dtype", None) == np.float32  # x may be a number
    last, *powers = reversed(nf.ERFC_POWERS_FLOAT if is_float else nf.ERFC_POWERS)
    total: Any = last
    for power in powers:
        total = total * t + power
    tail = total * fn.exp(-(a * a)) / (1 + 2 * a)
    sign = fn.sgn(x)
    return (1 - sign) + sign * tail  # exact: tail for x > 0, 2 - tail for x < 0, 1 for x = 0


def _taken_apart(
    name: str, lowering: Any, rule: Any, domain: tuple[float, float] = REAL, cheap: bool = False
) -> None:
    _row(name, None, "", rule, cheap=cheap, domain=(domain,), lowering=lowering)


_taken_apart(
    "erfc", _lower_erfc, lambda dz, z, x: dz * (-2 / math.sqrt(math.pi) * fn.exp(-(x * x)))
)
_taken_apart("digamma", _lower_digamma, lambda dz, z, x: dz * _trigamma(x), POSITIVE)
_taken_apart("sig", lambda x: 1 / (1 + fn.exp(-x)), lambda dz, z, x: dz * (z * (1 - z)))
_taken_apart("sig2", lambda x: 1 / (1 + fn.exp2(-x)), lambda dz, z, x: dz * (z * (1 - z) * LN2))
_taken_apart("tanh2", lambda x: fn.tanh(x * LN2), lambda dz, z, x: dz * ((1 - z * z) * LN2))
_taken_apart(
    "softplus",
    lambda x: fn.maximum(x, 0) + fn.log1p(fn.exp(-fn.absolute(x))),
    lambda dz, z, x: dz * fn.sig(x),
)
_taken_apart(
    "safelog",
    lambda x: fn.log(fn.maximum(x, nf.SMALLEST)),
    lambda dz, z, x: fn.where(x >= nf.SMALLEST, dz / fn.maximum(x, nf.SMALLEST), 0),
    (-1.0, 3.0),
)
_taken_apart("relu", lambda x: fn.maximum(x, 0), lambda dz, z, x: dz * (z > 0), cheap=True)


def _below(x: Any, y: Any) -> Any:
    """Return the remainder with the sign of x, and whether floor and truncation differ."""
    rest = fn.fmod(x, y)
    return rest, fn.logical_and(rest, fn.not_equal(rest < 0, y < 0))


def _lower_mod(x: Any, y: Any) -> Any:
    rest, is_below = _below(x, y)
    return fn.where(is_below, rest + y, rest)


def _lower_floordiv(x: Any, y: Any) -> Any:
    rest, is_below = _below(x, y)
    whole = fn.rint(fn.divide(x - rest, y)) - is_below
    return fn.where(fn.equal(y, 0), fn.divide(x, y), whole)


_row("mod", None, "",
     lambda dz, z, x, y: dz, lambda dz, z, x, y: dz * fn.rint((z - x) / y),
     symbol="%", domain=((2.2, 2.4), (-0.54, -0.5)), lowering=_lower_mod)  # fmt: skip
_row("floordiv", None, "", None, None,
     symbol="//", domain=((2.2, 2.4), (-0.54, -0.5)), lowering=_lower_floordiv)  # fmt: skip

# -- three operands --------------------------------------------------------------------------

_row("where", nf.where, "{0} != 0 ? {1} : {2}",
     None, lambda dz, z, c, x, y: fn.where(c, dz, 0), lambda dz, z, c, x, y: fn.where(c, 0, dz),
     domain=((-1.0, 1.0), REAL, REAL))  # fmt: skip
