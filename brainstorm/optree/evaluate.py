"""The values of trees, in new arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.optree.interpreter import Interpreter
from brainstorm.optree.nodes import Expression, Variable
from brainstorm.optree.program import Program, linearise
from brainstorm.utils import Array


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
    inputs = [_bound(variable, arrays) for variable in program.inputs]
    results = [np.empty(program.shape_of(x), program.dtype_of(x)) for x in program.outputs]
    Interpreter()(program, inputs, results, [False] * len(results))
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
