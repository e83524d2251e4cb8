"""Operations of the handler that are op-trees: element-wise ones, copies, sums, rows.

Each is a row of `OPERATIONS`: how a call becomes a formula, its inputs and its outputs. They take
numbers as arrays of one element, so that none becomes part of a kernel's text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.handlers.numpy_handler import NumpyHandler
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.utils import Array

__all__ = ["OPERATIONS", "Computation", "ProgramOperations", "program_of"]


class Computation(NamedTuple):
    """A formula with its arrays."""

    formula: Formula
    inputs: list[Array]
    outputs: list[Array]
    accumulate: bool = False


_Build: TypeAlias = Callable[..., Computation]

#: How many numbers are kept as arrays.
MOST_NUMBERS = 1000

#: Operation to what a call of it computes; called with the handler and the arguments.
OPERATIONS: dict[str, _Build] = {}


def _row(name: str, compute: Callable[..., Any], accumulate: bool = False) -> None:
    """Add an operation whose last argument is written, as a function of all others."""
    its_formula = formula(compute)
    contract = Handler.operations()[name]
    kinds = {argument.name: argument.kind for argument in contract.arguments}
    is_number = [kinds[a] == "scalar" for a in contract.signature.parameters]

    def build(handler: ProgramOperations, *arguments: Any) -> Computation:
        *inputs, out = (
            handler._as_number(argument) if number else argument
            for argument, number in zip(arguments, is_number, strict=True)
        )
        return Computation(its_formula, inputs, [out], accumulate)

    OPERATIONS[name] = build


def _operation(build: _Build) -> _Build:
    OPERATIONS[build.__name__] = build
    return build


_row("abs_t", fn.absolute)
_row("add_st", lambda s, t: s + t)
_row("add_tt", fn.add)
_row("subtract_tt", fn.subtract)
_row("mult_st", lambda s, t: s * t)
_row("mult_tt", fn.multiply)
_row("mult_add_st", lambda s, t: s * t, accumulate=True)
_row("mult_add_tt", fn.multiply, accumulate=True)
_row("divide_tt", fn.divide)
_row("clip_t", fn.clip)
_row("log_t", fn.log)
_row("sqrt_t", fn.sqrt)
_row("power_t", fn.power)
_row("sign_t", fn.sgn)
_row("add_mv", fn.add)
_row("subtract_mv", fn.subtract)
_row("mult_mv", fn.multiply)
_row("mult_add_mv", fn.multiply, accumulate=True)
_row("divide_mv", fn.divide)
_row("softmax_m", lambda m: fn.softmax(m, axis=1))
_row("argmax_m", lambda m: fn.argmax(m, axis=1))
_row("softmax_deriv_m", lambda y, dy: y * (dy - fn.sum(y * dy, axis=1)))

_copied = formula(lambda source: source)
_filled = formula(lambda target, value: fn.broadcast_to(value, target.shape))
_repeated = formula(lambda target, source: fn.broadcast_to(source, target.shape))
_chosen = formula(lambda new, old, condition: fn.where(condition, new, old))
_added_if = formula(lambda old, new, condition: fn.where(condition, old + new, old))
_classes = formula(lambda row, column: fn.equal(row, column))
_picked = formula(lambda m, row, column: fn.sum(fn.where(fn.equal(row, column), m, 0.0), axis=1))
_joined = formula(lambda a, b: fn.concatenate([a, b], axis=-1))


@functools.cache
def _summed(axis: int | None, keepdims: bool) -> Formula:
    return formula(lambda a: fn.sum(a, axis, keepdims))


@functools.cache
def _parts(width: int) -> Formula:
    return formula(lambda x: (x[..., :width], x[..., width:]))


@_operation
def copy_to(handler: ProgramOperations, src: Array, dest: Array) -> Computation:
    return Computation(_copied, [src], [dest])


@_operation
def copy_to_if(handler: ProgramOperations, src: Array, dest: Array, cond: Array) -> Computation:
    return Computation(_chosen, [src, dest, cond], [dest])


@_operation
def fill(handler: ProgramOperations, mem: Array, val: Any) -> Computation:
    return Computation(_filled, [mem, handler._as_number(val)], [mem])


@_operation
def fill_if(handler: ProgramOperations, mem: Array, val: Any, cond: Array) -> Computation:
    return Computation(_chosen, [handler._as_number(val), mem, cond], [mem])


@_operation
def add_into_if(handler: ProgramOperations, a: Array, out: Array, cond: Array) -> Computation:
    return Computation(_added_if, [out, a, cond], [out])


@_operation
def broadcast_t(handler: ProgramOperations, a: Array, axis: int, out: Array) -> Computation:
    return Computation(_repeated, [out, a], [out])


@_operation
def sum_t(
    handler: ProgramOperations, a: Array, axis: int | None, out: Array, add: bool = False
) -> Computation:
    if axis is None:
        return Computation(_summed(None, False), [a], [out.reshape(())], add)
    return Computation(_summed(axis % a.ndim, out.ndim == a.ndim), [a], [out], add)


OPERATIONS["sum_add_t"] = functools.partial(sum_t, add=True)


@_operation
def binarize_v(handler: ProgramOperations, v: Array, out: Array) -> Computation:
    return Computation(_classes, [handler._counting(out.shape[1]), v], [out])


@_operation
def index_m_by_v(handler: ProgramOperations, m: Array, v: Array, out: Array) -> Computation:
    return Computation(_picked, [m, handler._counting(m.shape[1]), v], [out])


@_operation
def merge_tt(handler: ProgramOperations, a: Array, b: Array, out: Array) -> Computation:
    return Computation(_joined, [a, b], [out])


@_operation
def split_add_tt(handler: ProgramOperations, x: Array, out_a: Array, out_b: Array) -> Computation:
    return Computation(_parts(out_a.shape[-1]), [x], [out_a, out_b], accumulate=True)


@functools.cache
def _attention(causal: bool, lowest: float) -> Formula:
    """Return `SequenceOperations.attention_softmax`; `lowest` is the least finite number."""

    def weights(scores: Any, row: Any, column: Any, *mask: Any) -> Any:
        allowed = [fn.less_equal(column, row)] * causal + [fn.not_equal(m, 0.0) for m in mask]
        for condition in allowed:
            scores = fn.where(condition, scores, -np.inf)
        largest = fn.maximum(fn.max(scores, axis=2), lowest)  # where there is no key at all
        terms = fn.exp(scores - largest)
        return terms / fn.maximum(fn.sum(terms, axis=2), 1.0)  # one is exp(0), if there are any

    return formula(weights)


@_operation
def attention_softmax(
    handler: ProgramOperations, scores: Array, mask: Array | None, causal: bool, out: Array
) -> Computation:
    steps, _, keys = scores.shape
    masks = [] if mask is None or not mask.size else [mask.T]
    rows, columns = handler._counting(steps).reshape(-1, 1, 1), handler._counting(keys)
    lowest = float(np.finfo(handler.dtype).min)
    weights = _attention(bool(causal), lowest)
    return Computation(weights, [scores, rows, columns, *masks], [out])


class ProgramOperations(NumpyHandler):
    """Does the operations of `OPERATIONS` by their programs."""

    #: Numbers that operations were called with, as arrays without dimensions.
    _numbers: dict[float, np.ndarray]
    _countings: dict[int, np.ndarray]

    def __init__(self, dtype: Any, seed: int | None) -> None:
        super().__init__(dtype, seed)
        self._numbers, self._countings = {}, {}

    def _as_number(self, value: Any) -> Array:
        """Return a number, or an array of one element, as an array without dimensions."""
        if isinstance(value, np.ndarray):
            return value.reshape(())
        number = self._numbers.get(value)
        if number is None:
            if len(self._numbers) >= MOST_NUMBERS:
                self._numbers = {}  # calls keep what they use
            number = self._numbers[value] = np.array(value, self.dtype)
        return number

    def _counting(self, length: int) -> Array:
        """Return the row 0, 1, 2, ..."""
        row = self._countings.get(length)
        if row is None:
            row = self._countings[length] = np.arange(length, dtype=self.dtype).reshape(1, -1)
        return row

    def _program_arguments(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of `run_program` for an operation; None: it is no program.

        Args:
            name: The operation.
            arguments: By name.
        """
        build = OPERATIONS.get(name)
        if build is None:
            return None
        values = Handler.operations()[name].signature.bind(**arguments)
        return program_of(build(self, *values.args))


def program_of(computation: Computation) -> dict[str, Any]:
    """Return the arguments of `run_program` for it."""
    its_formula, inputs, outputs, add = computation
    return {
        "program": its_formula.program(*inputs),
        "inputs": inputs,
        "outputs": outputs,
        "accumulate": [add] * len(outputs),
    }


def _method(name: str, build: _Build) -> Callable[..., None]:
    declared = getattr(NumpyHandler, name)
    signature = Handler.operations()[name].signature

    @functools.wraps(declared)
    def run(self: ProgramOperations, *args: Any, **kwargs: Any) -> None:
        values = args if not kwargs else signature.bind(*args, **kwargs).args
        self.run_program(**program_of(build(self, *values)))

    run.executes = True  # type: ignore[attr-defined]
    return run


for _name, _build in OPERATIONS.items():
    setattr(ProgramOperations, _name, _method(_name, _build))
