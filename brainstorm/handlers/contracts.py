"""Contracts: one line per operation that specifies its arguments and what it writes.

::

    @operation("a(M,K)^transa b(K,N)^transb -> out(M,N)")
    def dot_mm(self, a, b, out, transa=False, transb=False): ...

The line is parsed once, when the class is created. The checks of `DebugHandler`, the reference
documentation and the contract tests are all derived from it. Its grammar::

    contract = argument ... [("->" | "~>") argument ...] ["=>" result]
    argument = [low "<="] name [shapes] ["?"] [":" kind] ["^" flag] ["+" [flag]] ["<" high]
    shapes   = shape ["|" shape] ...           # alternatives; the first one that fits counts
    shape    = "(" [dim ["," dim] ...] ")"

Arguments after an arrow are written. After ``->`` they must not overlap any other argument; after
``~>`` they may also *be* one (same memory, same shape: an element-wise operation in place).
``name:scalar`` is a Python number or an array of one element. The marks of an argument:

``(M,3,*S,M+K)``
    It is an array. A dimension is a symbol, a number, ``*S`` (any number of dimensions, once per
    shape) or an expression over symbols. A symbol stands for one size throughout the contract.
``?``
    It may be `None` or an array of size 0: then it is absent.
``:kind``
    Its kind, if it is not an array of the handler: a key of `KINDS`. With a shape: ``:host`` is a
    NumPy array of any dtype, ``:any`` an array of the handler of any dtype, ``:unread`` one of
    which only the shape matters, and neither content nor memory.
``^flag``
    The shape is that after transposition if the argument `flag` is true.
``+`` or ``+flag``
    Its old content matters (always, or if `flag` is true): it is added to or kept in parts.
``low<=name(...)<high``
    Its elements are integral numbers in [low, high); low is 0 if only high is given.

`where` holds conditions in Python syntax, joined by ``;``, over the symbols (``*S`` is the tuple
``S``), the arguments that are not arrays, `len`, and `around`, `kept` and `reduces` of
`argument_kinds`. The result is ``array`` (of the handler), ``ndarray``, ``bool`` or ``stream``.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeVar

from brainstorm.errors import HandlerValidationError, unknown
from brainstorm.forks import cached_property
from brainstorm.handlers.argument_kinds import KINDS, around, kept, reduces
from brainstorm.optree import Formula
from brainstorm.optree.shapes import Shape

F = TypeVar("F", bound=Callable[..., Any])

RESULTS = ("array", "ndarray", "bool", "stream")

_ARGUMENT = re.compile(
    r"(?:(?P<low>-?\d+)<=)?(?P<name>[a-z_]\w*)(?P<shapes>\([^()]*\)(?:\|\([^()]*\))*)?"
    r"(?P<optional>\?)?(?::(?P<kind>\w+))?(?:\^(?P<transposed>\w+))?"
    r"(?P<kept>\+(?P<kept_if>\w+)?)?(?:<(?P<high>\S+))?"
)
_SYMBOL = re.compile(r"\*?[A-Z]\w*")


#: Names available in expressions.
_FUNCTIONS = {"around": around, "kept": kept, "len": len, "reduces": reduces}


@dataclass(frozen=True)
class Argument:
    """The specification of one argument of an operation; see the module for the marks."""

    name: str
    kind: str = "array"
    shapes: tuple[tuple[str, ...], ...] = ()
    optional: bool = False
    transposed: str | None = None
    written: bool = False
    in_place: bool = False
    kept: str | bool = False
    low: int = 0
    high: str | None = None

    @property
    def is_array(self) -> bool:
        """Whether it is an array of the handler or of the host."""
        return bool(self.shapes)

    def keeps(self, values: Mapping[str, Any]) -> bool:
        """Return whether its old content matters in a call with these arguments."""
        return bool(values[self.kept]) if isinstance(self.kept, str) else self.kept

    def bounds(self, sizes: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the limits [low, high) of its elements; None: no limits."""
        return None if self.high is None else (self.low, evaluate(self.high, sizes))

    def is_absent(self, value: Any) -> bool:
        """Return whether it is optional and `value` is None or empty."""
        return self.optional and (value is None or getattr(value, "size", None) == 0)


@dataclass(frozen=True)
class Contract:
    """The parsed contract of one operation.

    Attributes:
        name: Name of the operation.
        text: The contract as written, for documentation.
        signature: Arguments with their defaults, without `self`.
        arguments: One `Argument` per array or scalar, those after the arrow last.
        where: Conditions over symbols and scalars.
        result: What the operation returns; `None` for nothing.
    """

    name: str
    text: str
    signature: inspect.Signature
    arguments: tuple[Argument, ...]
    where: tuple[str, ...] = ()
    result: str | None = None

    @property
    def call(self) -> str:
        """The operation with its required arguments, e.g. ``dot_mm(a, b, out)``."""
        required = [n for n, p in self.signature.parameters.items() if p.default is p.empty]
        return f"{self.name}({', '.join(required)})"

    @cached_property
    def _defaults(self) -> list[tuple[str, Any]]:
        return [(name, p.default) for name, p in self.signature.parameters.items()]

    def complete(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments of a call in their order; faster than `inspect`.

        Raises:
            TypeError: There are too many or too few, or one has an unknown name.
        """
        rest = self._defaults[len(args) :]
        values = args + tuple([kwargs.get(name, default) for name, default in rest])
        missing = any(value is inspect.Parameter.empty for value in values)
        if missing or len(args) > len(self._defaults) or not kwargs.keys() <= dict(rest).keys():
            self.signature.bind(*args, **kwargs)  # raises the error
        return values

    def error(self, argument: str, what: str, array: Any = None) -> HandlerValidationError:
        """Return an error about an argument, which may be an array."""
        error = HandlerValidationError(f"{self.call}: argument {argument!r}{what}")
        error.array = array
        return error

    def bind(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Match the shapes of all arrays and return the size of each symbol.

        Args:
            values: Every argument of the call by name; arrays need only a `shape`.

        Raises:
            HandlerValidationError: A shape does not fit, or a condition does not hold.
        """
        sizes: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for argument in self.arguments:
            if argument.is_array and not argument.is_absent(values[argument.name]):
                self._bind_array(argument, values, sizes, origin)
        names = {**values, **sizes}
        for condition in self.where:
            if not evaluate(condition, names):
                used = [name for name in names if re.search(rf"\b{name}\b", condition)]
                got = ", ".join(f"{name}={names[name]}" for name in used)
                raise HandlerValidationError(
                    f"{self.call}: expected {condition}, got {got}{_given_by(origin, used)}"
                )
        return sizes

    def _bind_array(
        self,
        argument: Argument,
        values: Mapping[str, Any],
        sizes: dict[str, Any],
        origin: dict[str, str],
    ) -> None:
        real = tuple(values[argument.name].shape)
        turned = argument.transposed is not None and bool(values[argument.transposed])
        shape = real[::-1] if turned else real
        for dims in argument.shapes:
            new = _match(dims, shape, sizes)
            if new is not None:
                sizes.update(new)
                origin.update(dict.fromkeys(new, f"{argument.name!r} {real}"))
                return
        told = [_spell(dims[::-1] if turned else dims, sizes) for dims in argument.shapes]
        used = [symbol for dims in argument.shapes for dim in dims for symbol in _symbols(dim)]
        raise self.error(
            argument.name,
            f": expected shape {' or '.join(told)}, got {real}{_given_by(origin, used)}",
            values[argument.name],
        )


def operation(
    text: str,
    where: str = "",
    derived: bool = False,
    formula: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare a method as an operation with the contract `text` (grammar: see the module).

    Args:
        text: The contract.
        where: Conditions over symbols and arguments that are not arrays, joined by ``;``.
        derived: Whether the method works on every handler; else it is abstract.
        formula: The result, as a tree of the arguments that it names; every handler then computes
            it by this formula. If old content matters, and is not one of the arguments, the result
            is added to it.
    """

    def declare(function: F) -> F:
        contract = _parse(text, where, function)
        method = function if formula is None else _computed(contract, formula, function)
        method.contract = contract  # type: ignore[attr-defined]
        method.__isabstractmethod__ = not derived and formula is None  # type: ignore[attr-defined]
        return method

    return declare


def _computed(contract: Contract, formula: Callable[..., Any], declared: F) -> F:
    """Return the method that computes a formula; numbers become arrays of one element."""
    names = list(contract.signature.parameters)
    named = {argument.name: argument for argument in contract.arguments}
    given = list(inspect.signature(formula).parameters)
    reads = [(names.index(name), named[name].kind == "scalar") for name in given]
    (written,) = (argument for argument in contract.arguments if argument.written)
    place, adds = names.index(written.name), bool(written.kept) and written.name not in given
    its_formula, count = Formula(formula, contract.name), len(names)

    @functools.wraps(declared)
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        values = args if len(args) == count and not kwargs else contract.complete(args, kwargs)
        inputs = [self._as_number(values[i]) if is_number else values[i] for i, is_number in reads]
        self.compute(its_formula, inputs, (values[place],), adds)

    return run  # type: ignore[return-value]


def _parse(text: str, where: str, function: Callable[..., Any]) -> Contract:
    signature = inspect.signature(function)
    signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    place = f"contract of {function.__name__}: "
    body, _, result = (part.strip() for part in text.partition("=>"))
    if result and result not in RESULTS:
        raise HandlerValidationError(place + unknown("result", result, RESULTS))
    read, arrow, written = re.fullmatch(r"(.*?)(?:([-~]>)(.*))?", body).groups("")  # type: ignore
    arguments = [_parse_argument(item, place) for item in read.split()]
    for item in written.split():
        arguments.append(_parse_argument(item, place, written=True, in_place=arrow == "~>"))
    names = [a.name for a in arguments]
    flags = {flag for a in arguments for flag in (a.transposed, a.kept) if isinstance(flag, str)}
    if sorted([*names, *flags]) != sorted(signature.parameters):
        raise HandlerValidationError(
            f"{place}it speaks of ({', '.join(sorted([*names, *flags]))}), but the arguments are "
            f"({', '.join(sorted(signature.parameters))})"
        )
    arguments += [Argument(flag, kind="bool") for flag in sorted(flags)]
    conditions = tuple(c.strip() for c in where.split(";") if c.strip())
    _check_names(place, arguments, conditions)
    return Contract(
        function.__name__, text, signature, tuple(arguments), conditions, result or None
    )


def _check_names(place: str, arguments: list[Argument], conditions: tuple[str, ...]) -> None:
    """Raise an error for names in expressions that are neither symbols nor arguments."""
    dims = [dim for argument in arguments for shape in argument.shapes for dim in shape]
    known = {dim.lstrip("*") for dim in dims if _SYMBOL.fullmatch(dim)}
    known |= {argument.name for argument in arguments} | _FUNCTIONS.keys()
    highs = [argument.high for argument in arguments if argument.high]
    for expression in [*conditions, *highs, *(dim.lstrip("*") for dim in dims)]:
        if missing := set(_code(expression).co_names) - known:
            raise HandlerValidationError(
                f"{place}expected defined names in {expression!r}, got {', '.join(sorted(missing))}"
            )


def _parse_argument(
    item: str, place: str, written: bool = False, in_place: bool = False
) -> Argument:
    found = _ARGUMENT.fullmatch(item)
    if found is None:
        raise HandlerValidationError(
            f"{place}cannot read {item!r}. An argument looks like name(M,N), name:scalar or "
            f"name(M,N)<K, without spaces."
        )
    kind = found["kind"] or "array"
    if kind not in KINDS and kind != "array":
        raise HandlerValidationError(place + unknown("kind", kind, KINDS))
    if kind == "array" and not found["shapes"]:
        raise HandlerValidationError(f"{place}{item!r} has neither a shape nor a kind")
    alternatives = (found["shapes"] or "").split("|") if found["shapes"] else []
    return Argument(
        name=found["name"],
        kind=kind,
        shapes=tuple(tuple(filter(None, shape[1:-1].split(","))) for shape in alternatives),
        optional=bool(found["optional"]),
        transposed=found["transposed"],
        written=written,
        in_place=in_place,
        kept=found["kept_if"] or bool(found["kept"]),
        low=int(found["low"] or 0),
        high=found["high"],
    )


def _symbols(dim: str) -> list[str]:
    return [symbol.lstrip("*") for symbol in _SYMBOL.findall(dim)]


@functools.cache
def _code(expression: str) -> CodeType:
    return compile(expression, "<contract>", "eval")


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression in a contract."""
    # The expression is in this library's source beside an operation: it is code, not data.
    return eval(_code(expression), {"__builtins__": {}, **_FUNCTIONS}, dict(names))


def _match(dims: tuple[str, ...], shape: Shape, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the symbols that `shape` defines, or None if it does not fit `dims`."""
    new: dict[str, Any] = {}
    star = next((i for i, dim in enumerate(dims) if dim.startswith("*")), None)
    parts: list[Any] = list(shape)
    if star is not None:
        behind = len(dims) - star - 1
        if len(shape) < star + behind:
            return None
        parts = [*shape[:star], shape[star : len(shape) - behind], *shape[len(shape) - behind :]]
    if len(parts) != len(dims):
        return None
    for dim, size in zip(dims, parts, strict=True):
        name = dim.lstrip("*")
        known = {**sizes, **new}
        if _SYMBOL.fullmatch(dim) and name not in known:
            new[name] = size
        elif evaluate(name, known) != size:
            return None
    return new


def _given_by(origin: Mapping[str, str], symbols: Iterable[str]) -> str:
    """Return the names of the arguments that determine the sizes of the symbols."""
    sources = sorted({origin[symbol] for symbol in symbols if symbol in origin})
    return f"; sizes given by {', '.join(sources)}" if sources else ""


def _spell(dims: tuple[str, ...], sizes: Mapping[str, Any]) -> str:
    """Return a shape as text, with known sizes: ``(K=5, N)``."""
    parts = []
    for dim in dims:
        if all(symbol in sizes for symbol in _symbols(dim)) and _symbols(dim):
            parts.append(f"{dim}={evaluate(dim.lstrip('*'), sizes)}")
        else:
            parts.append(dim)
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
