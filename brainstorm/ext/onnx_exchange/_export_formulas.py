"""Op-trees as ONNX nodes: one entry per operator with a counterpart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange._body import BATCH, BOOL, FLOAT, INT64, TIME, Body
from brainstorm.ext.onnx_exchange._tables import (
    ACTIVATIONS,
    ARITHMETIC,
    FUNCTIONS,
    QUESTIONS,
    REDUCTIONS,
)
from brainstorm.optree import OpTreeNode, linearise, postorder
from brainstorm.optree.activations import activation
from brainstorm.optree.nodes import Variable
from brainstorm.optree.program import Step

#: Operators with another name in ONNX.
_NAMES = {**FUNCTIONS, **ARITHMETIC, "dot": "MatMul"}

_INDEXED = {"take": "Gather", "gather": "GatherElements"}

_ONE_AXIS = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}

#: Operators on booleans, which are numbers in op-trees.
_LOGIC = ("and", "not", "or")


def _floor_of_quotient(body: Body, x: str, y: str) -> str:
    return body.op("Floor", body.op("Div", x, y))


#: Operators that are expressed by others.
_COMPOSED: dict[str, Callable[..., str]] = {
    "sqr": lambda body, x: body.op("Mul", x, x),
    "expm1": lambda body, x: body.op("Sub", body.op("Exp", x), body.constant(1.0)),
    "log1p": lambda body, x: body.op("Log", body.op("Add", x, body.constant(1.0))),
    "exp2": lambda body, x: body.op("Pow", body.constant(2.0), x),
    "ne": lambda body, x, y: body.op("Cast", body.op("Not", body.op("Equal", x, y)), to=FLOAT),
    "floordiv": _floor_of_quotient,
    "fmod": lambda body, x, y: body.op("Mod", x, y, fmod=1),
    "log2": lambda body, x: body.op("Div", body.op("Log", x), body.constant(math.log(2))),
    "mod": lambda body, x, y: body.op("Sub", x, body.op("Mul", _floor_of_quotient(body, x, y), y)),
    "erfc": lambda body, x: body.op("Sub", body.constant(1.0), body.op("Erf", x)),
}


def compute(
    body: Body,
    formula: Callable[..., Any],
    operands: Sequence[Variable],
    names: Sequence[str],
    wanted: Sequence[int] = (0,),
) -> list[str]:
    """Add the nodes of a formula of tensors to a body, and return the names of its wanted values.

    The shapes of operands with T and B begin with `TIME` and `BATCH`. The names of operands that
    the values do not depend on may be ``''``.
    """
    found: Any = formula(*operands)
    if isinstance(found, OpTreeNode | Variable):
        trees = [found]
    else:
        trees = list(found.values() if isinstance(found, dict) else found)
    trees = [trees[i] for i in wanted]
    used = postorder(trees)
    for operand, name in zip(operands, names, strict=True):
        if not name and any(x is operand for x in used):
            raise NetworkValidationError(
                f"{body.where}: expected predictions that do not depend on {operand!r}."
            )
    program = linearise(trees, list(operands), lower=False)
    by_identity = {x.identity: name for x, name in zip(operands, names, strict=True)}
    values = [by_identity[x.identity] for x in program.inputs]
    for step in program.steps:
        arguments = [
            values[x] if isinstance(x, int) else body.constant(float(x.value))
            for x in step.operands
        ]
        values.append(_apply(body, step, arguments))
    return [values[number] for number in program.outputs]


def _apply(body: Body, step: Step, arguments: list[str]) -> str:
    name, params = step.operator.name, step.params
    if name in _NAMES:
        return body.op(_NAMES[name], *arguments)
    if name in _COMPOSED:
        return _COMPOSED[name](body, *arguments)
    if name in QUESTIONS:
        if name in _LOGIC:
            arguments = [body.op("Cast", x, to=BOOL) for x in arguments]
        return body.op("Cast", body.op(QUESTIONS[name], *arguments), to=FLOAT)
    if name == "cumsum":
        return body.op("CumSum", arguments[0], body.constant(params["axis"]))
    if name == "concatenate":
        return body.op("Concat", *arguments, axis=params["axis"])
    if name == "where":
        condition = body.op("Cast", arguments[0], to=BOOL)
        return body.op("Where", condition, *arguments[1:])
    axes = list(params.get("axis", ())) if isinstance(params.get("axis"), tuple) else []
    if name in REDUCTIONS:
        return body.op(
            REDUCTIONS[name], arguments[0], body.constant(axes), keepdims=int(params["keepdims"])
        )
    if name in _ONE_AXIS and len(axes) == 1:
        return body.op(_ONE_AXIS[name], arguments[0], axis=axes[0])
    if name in _INDEXED:
        indices = body.op("Cast", arguments[1], to=INT64)
        return body.op(_INDEXED[name], arguments[0], indices, axis=params["axis"])
    if name == "transpose":
        return body.op("Transpose", arguments[0], perm=list(params["axes"]))
    if name == "reshape" and step.shape[:2] == (TIME, BATCH):
        return body.reshape(arguments[0], [0, 0, *step.shape[2:]])
    if name == "slice" and (*step.shape[:2], *params["step"][:2]) == (TIME, BATCH, 1, 1):
        starts, steps, lengths = ([*params[key][2:]] for key in ("start", "step", "length"))
        ends = [a + n * s for a, n, s in zip(starts, lengths, steps, strict=True)]
        ends = [np.iinfo(np.int64).min if end < 0 else end for end in ends]  # -1 would be the last
        numbers = map(body.constant, (starts, ends, [*range(2, len(step.shape))], steps))
        return body.op("Slice", arguments[0], *numbers)
    raise NetworkValidationError(f"{body.where}: ONNX has no counterpart of {name} in its formula.")


def activate(body: Body, name: str, tensor: str) -> str:
    """Add the nodes of an activation function and return the name of its value."""
    function = activation(name)
    if function.name == "linear":
        return tensor
    if function.name in ACTIVATIONS:
        operator, attributes = ACTIVATIONS[function.name]
        return body.op(operator, tensor, **attributes)
    x = Variable((TIME, BATCH), np.float32, "x")
    return compute(body, function, [x], [tensor])[0]
