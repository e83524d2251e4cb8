"""Loops for rendering, and their bodies as text.

A `Loop` is a stage whose arrays have a known pattern, but unknown sizes, and whose numbers have
types, but unknown values: these are arguments. Two stages with equal loops have equal text.
`render_body`, the formula of one element, is valid C, C++ and CUDA C; `render_c` adds the loops in
C around it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from brainstorm.optree.program import Constant, Step
from brainstorm.optree.registry import Operator, get_operator

_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
#: NumPy's element types, in native byte order -> C's.
C_TYPES: dict[np.dtype[Any], str] = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.bool_): "_Bool",
    **{np.dtype(name): f"{name}_t" for name in _INTEGERS},
}

#: C's floating-point types; all others are integer types.
FLOATING = ("float", "double")

#: Constants rendered as text: they are few, have special instructions, and shape the formula.
LITERALS = (-1, 0, 1, 2)


class Read(NamedTuple):
    """An array whose elements a loop reads, or that is read by functions that the body calls.

    Attributes:
        type: C type of its elements.
        inner: Its stride on the innermost axis: 'unit', 'fixed' (0) or 'any'.
    """

    type: str
    inner: str


class Line(NamedTuple):
    """An element-wise step: operands are names of variables, or literals, and their C types."""

    name: str
    type: str
    c: str
    operands: tuple[tuple[str, str], ...]


class Write(NamedTuple):
    """An array that a loop writes, or adds to.

    Attributes:
        type: C type of its elements.
        inner: See `Read`.
        source: The variable whose value is stored or reduced, and its type.
        add: Whether to add to the present content.
        reduction: '' or the name of the operator.
    """

    type: str
    inner: str
    source: tuple[str, str]
    add: bool
    reduction: str = ""

    @property
    def operator(self) -> Operator:
        """The operator of a reduction."""
        return get_operator(self.reduction)

    @property
    def is_index(self) -> bool:
        """Whether the result is an index and not the value."""
        return self.operator.exact == "index"

    @property
    def block_type(self) -> str:
        """The type in which elements are reduced; totals of integers wrap around at 64 bits.

        Those with a sign do, too, which C only has for types without one.
        """
        type_ = self.source[1]
        return "uint64_t" if self.operator.exact == "total" and type_ not in FLOATING else type_

    @property
    def total_type(self) -> str:
        """The type in which results of blocks are combined; it has at most 8 bytes."""
        is_float = self.operator.exact == "total" and self.block_type == "float"
        return "double" if is_float else self.block_type

    @property
    def start(self) -> str:
        """The initial value of a reduction."""
        return typed(self.operator.initial, self.block_type)

    def step(self, total: str, value: str) -> str:
        """Return the C expression of a reduction's next total; see `Operator.c`."""
        return typed(self.operator.c, self.block_type).format(value, acc=total)


class Loop(NamedTuple):
    """A loop nest.

    Attributes:
        reduced: For each axis, from the outermost to the innermost, whether it is reduced.
        reads: The arrays that are read.
        body: The steps that are computed.
        writes: The arrays that are written.
        constants: C types of the numbers ``c0``, ``c1``, ... that the body uses.
        file: Of functions that the body calls, with pointers ``p0``, ... to arrays that it reads,
            and where in the first array that is written the element lies, ``at``; on GPUs.
    """

    reduced: tuple[bool, ...]
    reads: tuple[Read, ...]
    body: tuple[Line, ...]
    writes: tuple[Write, ...]
    constants: tuple[str, ...] = ()
    file: str = ""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.reduced)

    @property
    def arrays(self) -> int:
        """The number of arrays."""
        return len(self.reads) + len(self.writes)

    @property
    def accessed(self) -> tuple[Read | Write, ...]:
        """What is read, then what is written."""
        return (*self.reads, *self.writes)

    @property
    def reductions(self) -> list[Write]:
        """What is written by reductions."""
        return [write for write in self.writes if write.reduction]

    @property
    def extents(self) -> int:
        """The number of sizes of axes and strides of arrays."""
        return self.rank * (1 + self.arrays)

    @property
    def kind(self) -> str:
        """'map', 'rows' or 'columns'."""
        if not any(self.reduced):
            return "map"
        return "rows" if self.reduced[-1] else "columns"

    @property
    def can_chunk(self) -> bool:
        """Whether the outermost reduced axis can be divided into chunks."""
        return self.kind != "map" and all(write.operator.joins for write in self.reductions)


def _extremes(type_: str) -> tuple[str, str]:
    """Return the lowest and the highest value of a type in C."""
    if type_ in FLOATING:
        return f"(-({type_})INFINITY)", f"(({type_})INFINITY)"
    if type_ == "_Bool":
        return "0", "1"
    bits = int("".join(filter(str.isdigit, type_)))
    if type_.startswith("u"):
        return "0", f"{2**bits - 1}ULL"
    return f"(-{2 ** (bits - 1) - 1}LL - 1)", f"{2 ** (bits - 1) - 1}LL"


@functools.cache
def typed(c: str, type_: str) -> str:
    """Return a snippet of the operator table for one element type."""
    lowest, highest = _extremes(type_)
    words = {"T": type_, "LOWEST": lowest, "HIGHEST": highest}
    return re.sub(r"\b(T|LOWEST|HIGHEST)\b", lambda word: words[word[0]], c)


def source_of(step: Step, variable: tuple[str, str]) -> tuple[str, str]:
    """Return name and type of the operand of a reduction, perhaps without conversion."""
    name, type_ = variable
    if type_ in FLOATING or step.operator.exact:
        return variable
    working = C_TYPES[step.dtype]
    return f"(({working}){name})", working


def line_of(
    step: Step,
    name: str,
    names: Mapping[int, tuple[str, str]],
    constants: list[tuple[str, float]],
) -> Line:
    """Return a step as a line.

    Args:
        step: The step.
        name: Name of its result.
        names: Names and types of the values that it uses.
        constants: Types and values of the loop's numbers; those of the step are added.
    """
    type_ = C_TYPES[step.dtype]
    operator = step.operator
    c = operator.c

    def constant(value: float) -> tuple[str, str]:
        if value in LITERALS:
            return f"(({type_}){float(value)!r})", type_
        constants.append((type_, value))
        return f"c{len(constants) - 1}", type_

    operands = tuple(
        constant(x.value) if isinstance(x, Constant) else names[x] for x in step.operands
    )
    if operator.kind == "constant":
        operands = (constant(step.params["value"]),)
    exponent = step.operands[1] if operator.name == "pow" else None
    if isinstance(exponent, Constant) and exponent.value in (1, 2, -1):
        c = {1: "{0}", 2: "{0} * {0}", -1: "(T)1 / {0}"}[int(exponent.value)]
    return Line(name, type_, typed(c, type_), operands)


def render_body(lines: Iterable[Line]) -> list[str]:
    """Return one statement per line: the common part of all C-family executors."""
    statements = []
    for line in lines:
        operands = [
            text if type_ == line.type else f"(({line.type}){text})"
            for text, type_ in line.operands
        ]
        expression = line.c.format(*operands)
        statements.append(f"const {line.type} {line.name} = ({line.type})({expression});")
    return statements
