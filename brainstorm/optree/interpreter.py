"""The reference executor of programs: one NumPy call per step.

Elements are computed in the working type of their step. Some values are more exact until they are
used or written: integers that are only moved, compared or added, sums, which have the type of an
accumulator (float64, or 64-bit integers), and indices.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.optree.nodes import Expression, Variable
from brainstorm.optree.program import Constant, Program, Step, linearise
from brainstorm.optree.shapes import Shape, real_type
from brainstorm.utils import Array

Dtype: TypeAlias = np.dtype[Any]

INDEX, BOOLEAN = np.dtype(np.intp), np.dtype(np.bool_)
#: The type in which numbers of a kind are summed, unless their own is wider.
ACCUMULATORS = {"f": np.float64, "b": np.int64, "i": np.int64, "u": np.uint64}


class Interpreter(threading.local):
    """Runs programs on NumPy arrays.

    The memory of values is kept per thread and grows to the size for the largest program: from the
    second run on only some functions of NumPy (in erf, argmax, and gather) allocate memory. Copies
    and pickles start empty.
    """

    def __init__(self) -> None:
        self._pool = _Pool()

    def __reduce__(self) -> tuple[Any, ...]:
        return (Interpreter, ())

    def __call__(
        self,
        program: Program,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: Sequence[bool],
    ) -> None:
        """Compute all values of a program, then write or add them to the outputs in their order.

        Outputs may overlap inputs and each other. Floating-point events (overflow, division by
        zero, ...) give infinity or NaN and no warning.

        Raises:
            HandlerValidationError: The arrays are not those of `Program.check_arrays`.
        """
        program.check_arrays(inputs, outputs, accumulate)  # NumPy would broadcast a smaller value
        run = _Run(inputs, _places(program, outputs, accumulate), self._pool)
        with np.errstate(all="ignore"):
            for step in program.steps:
                run.compute(step)
            if len(outputs) > 1:  # writing the first may change an input that is the second
                run.detach(program.outputs)
            for value, out, add in zip(program.outputs, outputs, accumulate, strict=True):
                array = run.arrays[value]
                if add:  # as floating-point numbers, signed and unsigned integers would be rounded
                    integers = out.dtype.kind in "iu" and array.dtype.kind in "iu"
                    dtype = out.dtype if integers else None
                    np.add(out, array, out=out, casting="unsafe", dtype=dtype)
                elif array is not out:
                    np.copyto(out, array, casting="unsafe")
        run.free(set(program.outputs))


def _places(
    program: Program, outputs: Sequence[Array], accumulate: Sequence[bool]
) -> dict[int, Array]:
    """Return the output that the last step may compute into: the only one, by a ufunc.

    Ufuncs give the right result for any overlap of inputs and outputs, if these are contiguous:
    NumPy 2.4 negates some columns of matrices wrongly into others.
    """
    if len(outputs) == 1 and not accumulate[0] and program.steps:
        last = program.steps[-1]
        direct = isinstance(last.operator.numpy, np.ufunc) and last.dtype == outputs[0].dtype
        fits = direct and outputs[0].shape == last.shape and outputs[0].flags.c_contiguous
        if fits and last.result == program.outputs[0]:
            return {last.result: outputs[0]}
    return {}


class _Piece:
    """Memory of 2^n bytes, the last array created in it, and the number of values in it."""

    __slots__ = ("array", "n", "raw", "values")

    def __init__(self, n: int) -> None:
        self.n = n
        self.raw = self.array = np.empty(1 << n, np.uint8)
        self.values = 0


class _Pool:
    """Free memory; there are few sizes, so that arrays of all shapes can share it."""

    def __init__(self) -> None:
        self._free: list[list[_Piece]] = [[] for _ in range(64)]

    def new(self, shape: Shape, dtype: Dtype) -> tuple[Array, _Piece]:
        n = (math.prod(shape) * dtype.itemsize).bit_length()
        free = self._free[n]
        piece = free.pop() if free else _Piece(n)
        piece.values = 1
        if piece.array.shape != shape or piece.array.dtype != dtype:
            piece.array = np.ndarray(shape, dtype, piece.raw)
        return piece.array, piece

    def leave(self, piece: _Piece) -> None:
        """Decrease the number of values in the piece."""
        piece.values -= 1
        if not piece.values:
            self._free[piece.n].append(piece)


#: An array, and the piece of memory that contains it; None: that of an input or output.
Value: TypeAlias = tuple[Array, _Piece | None]


class _Run:
    """The values of one run of a program.

    Args:
        inputs: The first values.
        places: Arrays to compute values into, by the number of the value.
        pool: Provides memory for the other values.

    Attributes:
        arrays: The values.
    """

    def __init__(self, inputs: Sequence[Array], places: dict[int, Array], pool: _Pool) -> None:
        self.arrays = list(inputs)
        self._pieces: list[_Piece | None] = [None] * len(inputs)
        self._places = places
        self._pool = pool

    def compute(self, step: Step) -> None:
        """Compute the value of the next step, and free values that are not used after it."""
        array, piece = self._view(step) or self._computed(step)
        self.arrays.append(array)
        self._pieces.append(piece)
        self.free(step.frees)

    def detach(self, values: Sequence[int]) -> None:
        """Copy those of the values that are views of an input."""
        for value in set(values):
            if self._pieces[value] is None:
                array = self.arrays[value]
                self.arrays[value], self._pieces[value] = self._converted(array, array.dtype)

    def free(self, values: Iterable[int]) -> None:
        """Release the memory of values, unless it contains others too."""
        for value in values:
            piece = self._pieces[value]
            if piece is not None:
                self._pool.leave(piece)

    def _converted(self, array: Array, dtype: Dtype) -> tuple[Array, _Piece]:
        result, piece = self._pool.new(array.shape, dtype)
        np.copyto(result, array, casting="unsafe")
        return result, piece

    def _view(self, step: Step) -> Value | None:
        """Return a view of the operand if the step only moves elements."""
        if step.operator.kind != "view":
            return None
        source: Any = step.operands[0]
        array, piece = self.arrays[source], self._pieces[source]
        if step.operator.name == "reshape" and not array.flags.c_contiguous:
            array, piece = self._converted(array, array.dtype)
        elif piece is not None:
            piece.values += 1
        return step.view(array), piece

    def _computed(self, step: Step) -> Value:
        operator = step.operator
        wanted, of_result = _types(step, self.arrays)
        operands: list[Any] = []
        copies: list[_Piece] = []
        for x, dtype in zip(step.operands, wanted, strict=True):
            if isinstance(x, Constant):
                operands.append(x.value)
                continue
            array = self.arrays[x]
            # NumPy would multiply arrays with repeated memory without BLAS.
            if array.dtype != dtype or (operator.kind == "product" and 0 in array.strides):
                array, copy = self._converted(array, dtype)
                copies.append(copy)
            operands.append(array)
        out, piece = self._place(step, of_result)
        function: Any = operator.numpy
        function(*operands, out=out, **step.params)
        for copy in copies:
            self._pool.leave(copy)
        return out, piece

    def _place(self, step: Step, dtype: Dtype) -> Value:
        """Return the destination: an output, an operand that is used last, or a new array."""
        if step.result in self._places:
            return self._places[step.result], None
        if step.operator.kind == "elementwise" and isinstance(step.operator.numpy, np.ufunc):
            for x in step.frees:
                array, piece = self.arrays[x], self._pieces[x]
                # Not a view, and without views: each element has the position of its result.
                if piece is None or piece.values > 1 or piece.array is not array:
                    continue
                if array.shape == step.shape and array.dtype == dtype:
                    piece.values = 2  # the operand is freed after the step
                    return array, piece
        return self._pool.new(step.shape, dtype)


def _types(step: Step, arrays: Sequence[Array]) -> tuple[Sequence[Dtype], Dtype]:
    """Return the types to which a step converts its operands, and the type of its result."""
    operator, result = step.operator, step.dtype
    if operator.name == "where":
        return (BOOLEAN, result, result), result
    given = result
    indices = operator.index_operands
    if operator.exact:
        values = [x for i, x in enumerate(step.operands) if i not in indices]
        found = [arrays[x].dtype for x in values if not isinstance(x, Constant)]
        given, result = exact_types(step, found)
    if indices:
        types = [given] * len(step.operands)
        for i in indices:  # the operator converts and checks them
            types[i] = arrays[step.operands[i]].dtype  # type: ignore[index]
        return types, result
    return (given,) * len(step.operands), result


def exact_types(step: Step, types: Sequence[Dtype]) -> tuple[Dtype, Dtype]:
    """Return types of operands and result with which integers are not rounded.

    Args:
        step: A step with an exact operator.
        types: Those of its operands, without indices and constants.
    """
    operator, dtype = step.operator, step.dtype
    integers = all(given.kind != "f" for given in types)
    if integers:
        dtype = np.result_type(*types)
    if operator.exact == "index":
        return dtype, INDEX
    wide = np.promote_types(dtype, ACCUMULATORS[dtype.kind])
    if operator.exact == "total":
        return dtype, wide
    if operator.kind == "product" and integers:
        return wide, wide
    return dtype, dtype


# -- values in new arrays ---------------------------------------------------------------------


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
    if not isinstance(bindings, Mapping) or not all(isinstance(v, Variable) for v in bindings):
        raise ValidationError(
            f"op-tree: expected a dictionary from variables to arrays, got {bindings!r:.100}."
        )
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
    real_type(array.dtype, variable)
    return array.astype(variable.dtype, copy=False)
