"""The reference executor: one NumPy call per step, each into a new array."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.optree.nodes import Expression, Variable
from brainstorm.optree.program import Constant, Program, linearise
from brainstorm.utils import Array

__all__ = ["evaluate"]


def evaluate(
    program_or_trees: Program | Expression | Sequence[Expression],
    bindings: Mapping[Variable, Array],
) -> list[Array]:
    """Compute the values of trees.

    Floating-point events (overflow, division by zero, ...) give infinity or NaN and no warning.

    Args:
        program_or_trees: A program, a tree or several trees.
        bindings: The array of each variable, of exactly its shape; it is converted to the
            variable's type. Variables of equal identity need one array.

    Returns:
        One new array per tree, of the tree's shape and working type.

    Raises:
        ValidationError: If a variable has no array, or one of another shape.
    """
    program = program_or_trees
    if not isinstance(program, Program):
        program = linearise(program)
    arrays = {variable.identity: array for variable, array in bindings.items()}
    values = {i: _bound(v, arrays) for i, v in enumerate(program.inputs)}
    with np.errstate(all="ignore"):
        for step in program.steps:
            inputs = [
                x.value
                if isinstance(x, Constant)
                else values[x]
                if i in step.operator.index_operands
                else values[x].astype(step.dtype, copy=False)
                for i, x in enumerate(step.operands)
            ]
            out = np.empty(step.shape, step.dtype)
            step.operator.numpy(*inputs, out=out, **step.params)
            values[step.result] = out
            for value in step.frees:
                del values[value]
    results: list[Array] = []
    handed_out = set(range(len(program.inputs)))
    for value in program.outputs:
        results.append(values[value].copy() if value in handed_out else values[value])
        handed_out.add(value)
    return results


def _bound(variable: Variable, arrays: Mapping[Hashable, Array]) -> Array:
    if variable.identity not in arrays:
        raise ValidationError(
            f"op-tree: expected an array for the variable {variable!r} of shape "
            f"{variable.shape}, got none. Add it to the bindings."
        )
    array = np.asarray(arrays[variable.identity])
    if array.shape != variable.shape:
        raise ValidationError(
            f"op-tree: expected an array of shape {variable.shape} for the variable "
            f"{variable!r}, got shape {array.shape}."
        )
    return array.astype(variable.dtype, copy=False)
