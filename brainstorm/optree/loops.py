"""What is rendered: loops, and their bodies as text.

A `Loop` is a stage whose arrays have a known pattern, but no known sizes. Two stages with equal
loops have equal text. `render_body`, the formula of one element, is C, C++ and CUDA C at once;
`render_c` has the loops in C around it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from brainstorm.optree.program import Constant, Step

__all__ = ["C_TYPES", "Line", "Loop", "Read", "Write", "line_of", "render_body", "typed"]

#: NumPy's names of element types -> C's.
C_TYPES = {
    "float32": "float",
    "float64": "double",
    "bool": "_Bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

#: Reductions of which two results can be reduced to one -> OpenMP's name, and how.
COMBINED = {
    "sum": ("+", "{acc} + {0}"),
    "max": ("bs_max", "({0} > {acc} || {0} != {0}) ? {0} : {acc}"),
    "min": ("bs_min", "({0} < {acc} || {0} != {0}) ? {0} : {acc}"),
}


@dataclass(frozen=True)
class Read:
    """An array whose elements a loop reads.

    Attributes:
        type: C type of its elements.
        inner: Its stride on the innermost axis: 'unit', 'fixed' (0) or 'any'.
    """

    type: str
    inner: str


@dataclass(frozen=True)
class Line:
    """An element-wise step: operands are names of variables, or numbers, and their C types."""

    name: str
    type: str
    c: str
    operands: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Write:
    """An array that a loop writes, or adds to.

    Attributes:
        type: C type of its elements.
        inner: As for `Read`.
        source: The variable whose value is stored or reduced, and its type.
        add: Whether to add to what is there.
        reduction: '' or the name of the operator.
        c: Its text.
        initial: Its start.
    """

    type: str
    inner: str
    source: tuple[str, str]
    add: bool
    reduction: str = ""
    c: str = ""
    initial: str = ""

    @property
    def is_index(self) -> bool:
        """Whether the place is wanted and not the value."""
        return self.reduction.startswith("arg")

    @property
    def total_type(self) -> str:
        """The type in which results of blocks are collected."""
        return "double" if self.reduction == "sum" else self.source[1]


@dataclass(frozen=True)
class Loop:
    """A loop nest: axes from the outermost to the innermost, `reduced` says which are reduced."""

    reduced: tuple[bool, ...]
    reads: tuple[Read, ...]
    body: tuple[Line, ...]
    writes: tuple[Write, ...]

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.reduced)

    @property
    def kind(self) -> str:
        """'map', 'rows' or 'columns'."""
        if not any(self.reduced):
            return "map"
        return "rows" if self.reduced[-1] else "columns"

    @property
    def can_chunk(self) -> bool:
        """Whether the outermost reduced axis can be cut into chunks."""
        return self.kind != "map" and all(
            w.reduction in COMBINED for w in self.writes if w.reduction
        )


def number(value: float, type_: str) -> str:
    """Return a constant in C."""
    if math.isnan(value):
        return f"({type_})NAN"
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}({type_})INFINITY)"
    return f"(({type_}){float(value)!r})"


def typed(c: str, type_: str) -> str:
    """Return a snippet of the operator table for one element type."""
    return re.sub(r"\bT\b", type_, c)


def line_of(step: Step, name: str, names: Mapping[int, tuple[str, str]]) -> Line:
    """Return a step as a line, given the names and types of the values it uses."""
    type_ = C_TYPES[step.dtype.name]
    operator = step.operator
    c = {"full": "{0}", "broadcast": "{0}"}.get(operator.name, operator.c)
    operands = tuple(
        (number(x.value, type_), type_) if isinstance(x, Constant) else names[x]
        for x in step.operands
    )
    if operator.name == "full":
        operands = ((number(step.params["value"], type_), type_),)
    exponent = step.operands[1] if operator.name == "pow" else None
    if isinstance(exponent, Constant) and exponent.value in (1, 2, -1):
        c = {1: "{0}", 2: "{0} * {0}", -1: "(T)1 / {0}"}[int(exponent.value)]
    return Line(name, type_, typed(c, type_), operands)


def render_body(lines: Iterable[Line]) -> list[str]:
    """Return one statement per line: the part that every C-family executor shares."""
    statements = []
    for line in lines:
        operands = [
            text if type_ == line.type else f"(({line.type}){text})"
            for text, type_ in line.operands
        ]
        expression = line.c.format(*operands)
        statements.append(f"const {line.type} {line.name} = ({line.type})({expression});")
    return statements
