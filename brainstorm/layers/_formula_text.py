"""Formulas as text: parsed, but never executed as Python, because files may be untrusted.

    formula = FormulaText("tanh(scale * x + shift) * gate")
    formula.names                        # ('scale', 'x', 'shift', 'gate')
    tree = formula(scale, x, shift, gate)

A formula consists of numbers, names, ``+ - * / // % ** @``, one of ``< <= > >= == !=`` (with values
0 and 1), ``& | ~`` of such values, and calls of activation functions (``gelu(x)``) and of the
functions in `brainstorm.optree.functions`, whose options are numbers, True, False, None, or tuples
of integers: ``sum(x, axis=-1)``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

from brainstorm.errors import ValidationError, unknown
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS

#: The maximum length of a formula, and depth of nesting.
MOST_CHARACTERS, MOST_LEVELS = 2000, 100

#: How many of its characters a message shows.
SHOWN = 80

#: The functions for formulas: all but those that take lists, or shapes including T and B.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    name: getattr(fn, name)
    for name in fn.__all__
    if name not in ("broadcast_to", "concatenate", "full", "reshape")
}

#: Functions that are layers instead.
_LAYERS = {
    **dict.fromkeys(
        ("stop_gradient", "detach"), "DeltasScaling(0), before an input of the formula"
    ),
    **dict.fromkeys(("concatenate", "concat"), "Merge, before an input of the formula"),
    "reshape": "Reshape, before or after the formula",
}

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: fn.add,
    ast.Sub: fn.subtract,
    ast.Mult: fn.multiply,
    ast.Div: fn.divide,
    ast.FloorDiv: fn.floor_divide,
    ast.Mod: fn.mod,
    ast.BitAnd: fn.logical_and,
    ast.BitOr: fn.logical_or,
    ast.Pow: fn.power,
    ast.MatMult: fn.dot,
    ast.Lt: fn.less,
    ast.LtE: fn.less_equal,
    ast.Gt: fn.greater,
    ast.GtE: fn.greater_equal,
    ast.Eq: fn.equal,
    ast.NotEq: fn.not_equal,
}

_FOREIGN = re.compile(r"[^\w\s.,+\-*/%@&|~<>=!()]", re.ASCII)

#: What to write instead of characters that formulas elsewhere may have.
_REMEDIES = {
    "^": " Powers are written with **.",
    "[": " Use the layer Slice, before an input of the formula, or an index in a subclass of "
    "ExpressionLayer; for constants a parameter, frozen by a ParameterGroup.",
}

#: From the values of the names to the tree of a part of the formula.
TreeBuilder: TypeAlias = Callable[[Mapping[str, Any]], Any]


class FormulaText:
    """A formula over names; calling it with one operand per name returns the tree.

    Args:
        text: The formula.

    Attributes:
        names: Its names except functions, in the order of their first occurrence.

    Raises:
        ValidationError: The text is not a formula; the message says at which character and why.
    """

    def __init__(self, text: str) -> None:
        self.text = text = " ".join(text.split())
        self._found: dict[str, None] = {}
        if len(text) > MOST_CHARACTERS:
            raise ValidationError(
                f"{_start(text)} has {len(text)} characters, expected at most {MOST_CHARACTERS}. "
                "Write it in Python, as a subclass of ExpressionLayer."
            )
        if foreign := _FOREIGN.search(text):
            raise ValidationError(
                f"{_start(text)} contains {foreign[0]!r}, at character {foreign.start() + 1}: "
                "expected letters, digits, _ . , + - * / % @ & | ~ < > = ! ( and ) only."
                f"{_REMEDIES.get(foreign[0], '')}"
            )
        try:
            parsed = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValidationError(f"{_start(text)} is not a formula: {error.args[0]}.") from None
        self._root = self._part(parsed.body, 1)
        self.names = tuple(self._found)

    def __call__(self, *operands: Any) -> Any:
        """Build the tree."""
        return self._root(dict(zip(self.names, operands, strict=True)))

    def _refuse(self, node: Any, why: str) -> NoReturn:
        part = _start(ast.get_source_segment(self.text, node) or "")
        place = f", at character {node.col_offset + 1} of {_start(self.text)}"
        raise ValidationError(f"{part}{'' if part == _start(self.text) else place}: {why}")

    def _part(self, node: ast.AST, level: int) -> TreeBuilder:
        kind = f"_{type(node).__name__.lower()}"
        if level > MOST_LEVELS:
            self._refuse(node, f"expected at most {MOST_LEVELS} levels of nesting.")
        if kind not in ("_constant", "_name", "_unaryop", "_binop", "_compare", "_call"):
            hint = " Name the option: axis=(0, 1)." if isinstance(node, ast.Tuple) else ""
            self._refuse(
                node, f"expected numbers, names, arithmetic, comparisons and calls only.{hint}"
            )
        part: TreeBuilder = getattr(self, kind)(node, level + 1)
        return part

    def _constant(self, node: ast.Constant, level: int) -> TreeBuilder:
        number: Any = node.value
        if type(number) not in (int, float) or number > sys.float_info.max:
            self._refuse(node, "expected a finite number.")
        return lambda values: number

    def _name(self, node: ast.Name, level: int) -> TreeBuilder:
        name = node.id
        if name in FUNCTIONS:
            self._refuse(node, f"is a function. Call it: {name}(...), or use another name.")
        self._found[name] = None
        return lambda values: values[name]

    def _unaryop(self, node: ast.UnaryOp, level: int) -> TreeBuilder:
        operand = self._part(node.operand, level)
        if isinstance(node.op, ast.UAdd):
            return operand
        if isinstance(node.op, ast.Invert):
            return lambda values: fn.logical_not(operand(values))
        if not isinstance(node.op, ast.USub):
            self._refuse(node, "expected +, - or ~ as sign.")
        # -1 stays an integer: it may be the number of an axis.
        return lambda values: -operand(values)

    def _binop(self, node: ast.BinOp, level: int) -> TreeBuilder:
        left, right = self._part(node.left, level), self._part(node.right, level)
        return self._applied(node, type(node.op), left, right)

    def _compare(self, node: ast.Compare, level: int) -> TreeBuilder:
        if len(node.ops) > 1:
            self._refuse(node, "expected one comparison. Join two: (0 < x) & (x < 1).")
        left, right = self._part(node.left, level), self._part(node.comparators[0], level)
        return self._applied(node, type(node.ops[0]), left, right)

    def _applied(
        self, node: ast.AST, kind: type[ast.AST], left: TreeBuilder, right: TreeBuilder
    ) -> TreeBuilder:
        if kind not in _OPERATORS:
            self._refuse(node, "expected one of + - * / // % ** @ & | < <= > >= == !=.")
        function = _OPERATORS[kind]
        return lambda values: function(left(values), right(values))

    def _call(self, node: ast.Call, level: int) -> TreeBuilder:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        known: dict[str, Callable[..., Any]] = {**ACTIVATIONS, **FUNCTIONS}
        if name not in known:
            layer = f"unknown function {name!r}. Use the layer {_LAYERS.get(name)}."
            self._refuse(
                node, layer if name in _LAYERS else unknown("function", name, sorted(known))
            )
        function = known[name]
        arguments = [self._part(argument, level) for argument in node.args]
        options = {str(keyword.arg): self._option(keyword.value) for keyword in node.keywords}
        if len(options) < len(node.keywords):
            self._refuse(node, "expected each option once.")
        signature = inspect.signature(function)
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
            self._refuse(node, f"expected {name}{inspect.Signature(bare)}: {error}.")
        if name in ("max", "min"):
            for axis in map(ast.unparse, node.args[1:2]):
                if not re.fullmatch("-[0-9]+|[2-9]", axis):
                    why = f"expected a feature axis, got {_start(axis)}. Did you mean"
                    self._refuse(node, f"{why} {name}imum(x, y)?")
        return lambda values: function(*[argument(values) for argument in arguments], **options)

    def _option(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            value = ""
        items = value if isinstance(value, tuple) else (0,)
        if not isinstance(value, (int, float, tuple, type(None))) or any(
            type(item) is not int for item in items
        ):
            self._refuse(node, "expected a number, True, False, None or a tuple of integers.")
        return value


def _start(text: str) -> str:
    """Return a text for a message: quoted, and shortened if it is long."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
