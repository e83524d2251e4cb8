"""Programs: op-trees as flat lists of steps for executors.

    program = linearise([loss, *gradients(loss, [x, y])])

Equal computations become one step, also across trees. Values are numbered: first the input
variables, then the result of each step. A step lists the values that are used for the last time,
so that an executor can reuse their memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.optree.graph import expressions, listed, postorder, rewrite
from brainstorm.optree.nodes import Expression, OpTreeNode, Variable, fold
from brainstorm.optree.registry import Operator, get_operator
from brainstorm.optree.shapes import Params, Shape
from brainstorm.utils import Array


class Constant(NamedTuple):
    """A number as operand of an element-wise step; it takes the step's type."""

    value: float

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same number, including the sign of zero."""
        return isinstance(other, Constant) and signed(self.value) == signed(other.value)

    def __hash__(self) -> int:
        return hash(self.value)


def signed(value: float) -> tuple[float, float]:
    """Return a key that distinguishes all numbers: in Python 0.0 equals -0.0."""
    return value, math.copysign(1.0, value)


#: The number of a value, or a constant.
Source: TypeAlias = int | Constant


class Step(NamedTuple):
    """One operation.

    Attributes:
        operator: The operator.
        operands: Numbers of values, and constants.
        params: Options of the operator in normal form, such as ``{'axis': (1,), ...}``.
        shape: Shape of the result.
        dtype: Working type: operands (except indices) are converted to it, the result has it.
        result: The number of the value that the step computes.
        frees: Values of earlier steps that no later step and no output uses.
    """

    operator: Operator
    operands: tuple[Source, ...]
    params: Params
    shape: Shape
    dtype: np.dtype[Any]
    result: int
    frees: tuple[int, ...] = ()

    @property
    def values(self) -> list[int]:
        """The operands without constants."""
        return [x for x in self.operands if isinstance(x, int)]

    def view(self, array: Any) -> Any:
        """Return the result of a view step: a view of its operand."""
        function: Any = self.operator.numpy
        return function(array, self.shape, **self.params)


@dataclass(frozen=True, eq=False)
class Program:
    """Steps from input variables to outputs; programs compare by identity.

    Attributes:
        inputs: The variables; input i is value i. One per identity.
        steps: In order of execution.
        outputs: For each tree the number of its value; this may be an input, or occur twice.
        name: Name of the computation in traces and messages.
    """

    inputs: tuple[Variable, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    name: str = "run_program"

    def check_arrays(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: Sequence[bool]
    ) -> None:
        """Raise an error unless there is one array for each input and output, of its shape.

        Raises:
            HandlerValidationError: The message names the program and has all shapes.
        """
        for what, expected, arrays in zip(
            ("input", "output"), self._shapes, (inputs, outputs), strict=True
        ):
            got = [getattr(array, "shape", type(array).__name__) for array in arrays]
            if expected != got or (what == "output" and len(accumulate) != len(got)):
                raise HandlerValidationError(
                    f"{self.name}: expected {what}s of shapes {expected}, got {got} and "
                    f"accumulate={accumulate}. Give one array for each, and linearise trees again "
                    f"for other shapes."
                )

    @functools.cached_property
    def _shapes(self) -> tuple[list[Shape], list[Shape]]:
        return [x.shape for x in self.inputs], [self.shape_of(x) for x in self.outputs]

    def shape_of(self, value: int) -> Shape:
        """Return the shape of a value."""
        return (self.step_of(value) or self.inputs[value]).shape

    def dtype_of(self, value: int) -> np.dtype[Any]:
        """Return the element type of a value."""
        return (self.step_of(value) or self.inputs[value]).dtype

    def step_of(self, value: int) -> Step | None:
        """Return the step that computes a value; None for an input."""
        count = len(self.inputs)
        return None if value < count else self.steps[value - count]

    def __str__(self) -> str:
        lines = [f"v{i} = input {v!r} {v.shape} {v.dtype}" for i, v in enumerate(self.inputs)]
        for step in self.steps:
            operands = [
                repr(x.value) if isinstance(x, Constant) else f"v{x}" for x in step.operands
            ]
            options = [f"{k}={v}" for k, v in step.params.items()]
            call = f"{step.operator.name}({', '.join(operands + options)})"
            frees = f"  frees {', '.join(f'v{x}' for x in step.frees)}" if step.frees else ""
            lines.append(f"v{step.result} = {call} {step.shape} {step.dtype}{frees}")
        lines.append("return " + ", ".join(f"v{x}" for x in self.outputs))
        return "\n".join(lines)


def _lowered(trees: Sequence[Expression]) -> list[Expression]:
    """Return the trees with composite operators (softmax, ...) replaced by others."""

    def replace(node: Expression, operands: tuple[Any, ...]) -> Any:
        if not isinstance(node, OpTreeNode):
            return None
        operator = get_operator(node.op)
        return operator.lowering and operator.lower(node.shape, operands, node.params)

    return rewrite(trees, replace)


def linearise(
    trees: Expression | Sequence[Expression],
    inputs: Sequence[Variable] = (),
    lower: bool = True,
    name: str = Program.name,
) -> Program:
    """Convert trees to a program; operators with a lowering are decomposed.

    Args:
        trees: One or several.
        inputs: Variables that become the first inputs, in this order, even if unused.
        lower: False: do not decompose operators, for formats that support them; executors do not.
        name: Name of the program.

    Raises:
        ValidationError: If something other than an expression is given.
    """
    roots = listed(trees)
    order = postorder(roots)
    if lower and any(isinstance(x, OpTreeNode) and get_operator(x.op).lowering for x in order):
        roots = _lowered(roots)
        order = postorder(roots)
    builder = _Builder([*expressions(inputs), *order])
    for node in order:
        if isinstance(node, OpTreeNode):
            builder.sources[id(node)] = builder.computed(node)
    outputs = tuple(builder.value_of(root) for root in roots)
    steps = _with_frees(builder.steps, len(builder.inputs), outputs)
    return Program(builder.inputs, steps, outputs, name)


class _Builder:
    """Numbers values, with one number for equal computations.

    Args:
        order: Variables and nodes, operands before their users.
    """

    def __init__(self, order: Iterable[Expression]) -> None:
        self.steps: list[Step] = []
        self.known: dict[Hashable, int] = {}
        self.sources: dict[int, Source] = {}
        numbers: dict[Hashable, int] = {}
        inputs: list[Variable] = []
        for leaf in order:
            if isinstance(leaf, Variable):
                number = numbers.setdefault(leaf.identity, len(inputs))
                if number == len(inputs):
                    inputs.append(leaf)
                self.sources[id(leaf)] = number
        self.inputs = tuple(inputs)

    def computed(self, node: OpTreeNode) -> Source:
        if node.op == "full":  # becomes a step only if an array is needed
            return Constant(node.params["value"])
        operator = get_operator(node.op)
        if not operator.is_elementwise:
            operands: tuple[Source, ...] = tuple(self.value_of(x) for x in node.operands)
        else:
            operands = tuple(self.source_of(x) for x in node.operands)
            numbers = [x.value for x in operands if isinstance(x, Constant)]
            if len(numbers) == len(operands):
                return Constant(fold(operator, tuple(numbers)))
            if node.op == "mul" and 1.0 in numbers:
                factor = node.operands[isinstance(operands[0], Constant)]
                if factor.shape == node.shape and factor.dtype == node.dtype:
                    return self.value_of(factor)
        return self.number(operator, operands, node.params, node.shape, node.dtype)

    def number(
        self,
        operator: Operator,
        operands: tuple[Source, ...],
        params: Params,
        shape: Shape,
        dtype: Any,
    ) -> int:
        options = signed(params["value"]) if operator.kind == "constant" else tuple(params.items())
        key = (operator.name, operands, options, shape, dtype)
        if key not in self.known:
            result = len(self.inputs) + len(self.steps)
            self.steps.append(Step(operator, operands, params, shape, dtype, result))
            self.known[key] = result
        return self.known[key]

    def source_of(self, x: Any) -> Source:
        return self.sources[id(x)] if isinstance(x, Expression) else Constant(float(x))

    def value_of(self, x: Any) -> int:
        source = self.sources[id(x)]
        if isinstance(source, int):
            return source
        params = {"value": source.value, "dtype": x.dtype.name}
        return self.number(get_operator("full"), (), params, x.shape, x.dtype)


def _with_frees(steps: list[Step], inputs: int, outputs: tuple[int, ...]) -> tuple[Step, ...]:
    last: dict[int, int] = {}
    for step in steps:
        for x in step.values:
            last[x] = step.result
    frees: dict[int, list[int]] = {}
    for value, user in last.items():
        if value >= inputs and value not in outputs:
            frees.setdefault(user, []).append(value)
    return tuple(Step(*step[:-1], tuple(frees.get(step.result, ()))) for step in steps)
