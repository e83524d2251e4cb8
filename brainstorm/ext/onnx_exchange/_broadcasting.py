"""Formulas of several tensors and constants of a graph, which broadcast as in NumPy.

Comparisons, logic and choices are nothing else. Booleans are 0 and 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._body import BATCH, TIME
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._tables import QUESTIONS, formula_of
from brainstorm.ext.onnx_exchange._values import LEAD, Value

#: Sums and products of two tensors with equal shapes have layers of their own.
_LAYERS = {"x + y": "Add", "x * y": "Multiply"}


def combine(imp: Importer, text: str, **operands: Any) -> Value:
    """Add a formula of tensors and arrays, whose names are one letter, and return its value.

    Arrays of one number become part of the text, and others parameters. One tensor without any of
    these is left in the layout that it has in memory.
    """
    values = {x: v for x, v in operands.items() if isinstance(v, Value)}
    arrays = {x: v for x, v in operands.items() if not isinstance(v, Value)}
    if not values:
        raise imp.fail("expected an input that is computed by the graph, got constants.")
    text, arrays = _with_numbers(text, arrays)
    rank = max(operand.ndim for operand in operands.values())
    values = _with_time(imp, values, arrays, rank)
    values = dict(zip(values, aligned(imp.node, list(values.values()), rank), strict=True))
    largest = max(values.values(), key=lambda v: math.prod(v.shape))
    if len(values) == 1 and not arrays:
        return replace(imp.formula(text, **values), axes=largest.axes)
    order = largest.order()
    inputs = {x: imp.arrange(value, order, mixed=True) for x, value in values.items()}
    held = {x: arranged(imp.node, array, largest, order) for x, array in arrays.items()}
    shapes = [x.sizes[2:] for x in inputs.values()]
    try:
        np.broadcast_shapes(*shapes, *(array.shape for array in held.values()))
    except ValueError:
        first, *others = [v.shape for v in values.values()] + [v.shape for v in arrays.values()]
        fit = " and ".join(map(imp.shown, others))
        raise imp.fail(f"{fit} does not fit {imp.shown(first)}.") from None
    if text in _LAYERS and len(inputs) == 2 and shapes[0] == shapes[1]:
        made = imp.add(_LAYERS[text], {"inputs_1": inputs["x"], "inputs_2": inputs["y"]})
    else:
        made = imp.formula(text, **inputs, **held)
    return imp.like(largest, order, made)


def _with_numbers(text: str, arrays: Mapping[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
    """Return a formula with the single numbers among the arrays inserted, and the other arrays."""
    left = {}
    for letter, array in arrays.items():
        if array.size == 1 and math.isfinite(array.item()):
            number = float(array.item())
            operand = f"({number!r})" if number < 0 else repr(number)
            text = re.sub(rf"\b{letter}\b", operand, text)
        else:
            left[letter] = array
    return text, left


def _with_time(
    imp: Importer, values: dict[str, Value], arrays: Mapping[str, np.ndarray], rank: int
) -> dict[str, Value]:
    """Return the tensors, the first one repeated over time if an array has T and no tensor.

    (The layer that combines them repeats the others; the array is the same at every step.)
    """
    axes = [rank - array.ndim + array.shape.index(TIME)
            for array in arrays.values() if TIME in array.shape]  # fmt: skip
    if not axes or any(map(imp.has_time, values.values())):
        return values
    (letter, value), *_ = values.items()
    value = replace(value, axes=((),) * (rank - value.ndim) + value.axes)
    return {**values, letter: imp.repeat_over_time(value, axes[0])}


def aligned(
    node: Node, values: Sequence[Value], rank: int, common: int | None = None
) -> list[Value]:
    """Return tensors with `rank` axes each, and with T and B if one of them has these.

    The first `common` axes must correspond; `None`: all.
    """
    common = rank if common is None else common
    values = [replace(v, axes=((),) * (rank - v.ndim) + v.axes) for v in values]
    lead = [
        next((part for v in values if (part := _lead_of(v.axes[i]))), ()) for i in range(common)
    ] + [()] * (rank - common)
    values = [
        replace(v, axes=tuple(group if size > 1 else own or group
                              for group, size, own in zip(v.axes, v.shape, lead, strict=True)))
        for v in values
    ]  # fmt: skip
    for value in values:
        places = [i for i in value.flat if i in LEAD]
        if len(places) > len(set(places)) or any(
            group and _lead_of(value.axes[i]) != group for i, group in enumerate(lead)
        ):
            raise node.fail("T or B are another axis in one input than in another.")
    return values


def _lead_of(group: Sequence[int]) -> tuple[int, ...]:
    return tuple(i for i in group if i in LEAD)


def arranged(node: Node, array: np.ndarray, value: Value, order: Sequence[int]) -> np.ndarray:
    """Return an array with one axis for each feature of the output it is combined with.

    The axes of the array are those of the tensor, counted from the last; `order` are the axes of
    the tensor that are the features of the output.
    """
    array = array.reshape((1,) * (value.ndim - array.ndim) + array.shape)
    lead = [i for i in range(value.ndim) if value.is_mixed(i)]
    once = [slice(0, 1) if i in lead and stride == 0 else slice(None)
            for i, stride in enumerate(array.strides)]  # fmt: skip
    array = node.bounded(array[tuple(once)])  # equal for all of T and B
    if any(array.shape[i] != 1 for i in lead) or {TIME, BATCH} & {*array.shape}:
        raise node.fail("no layer has constants for each time step or sequence.")
    others = [i for i in range(array.ndim) if i not in order]
    shape = [array.shape[i] for i in order] or [1]
    return array.transpose([*order, *others]).reshape(shape)


#: Operator to a formula of its inputs.
_QUESTIONS = {kind: formula_of(name, "x", "y") for name, kind in QUESTIONS.items()}
_QUESTIONS["Xor"] = "x != y"


@reads(*_QUESTIONS)
def _question(imp: Importer, node: Node) -> Value:
    made = combine(imp, _QUESTIONS[node.kind], **dict(zip("xy", node.inputs, strict=False)))
    imp.whole.add(made.path)
    return made


@reads("Where")
def _where(imp: Importer, node: Node) -> Value:
    return combine(imp, "where(x, y, z)", **dict(zip("xyz", node.inputs, strict=True)))


@reads("PRelu")
def _prelu(imp: Importer, node: Node) -> Value:
    value, slope = node.value(), node.get(1)
    order = value.order()
    shape = (1,) * (value.ndim - np.ndim(slope)) + np.shape(slope)
    varies = [i for i, size in enumerate(shape) if size > 1]
    fits = len(shape) == value.ndim and shape[order[-1]] in (1, value.shape[order[-1]])
    if isinstance(slope, Value) or not fits or varies not in ([], order[-1:]):
        return combine(imp, "relu(x) + y * minimum(x, 0)", x=value, y=slope)
    options: dict[str, Any] = {} if varies else {"shared": True}
    made = imp.add("PReLU", imp.arrange(value, order), {"slope": slope.ravel()}, **options)
    return imp.like(value, order, made)
