"""ONNX operators that combine several tensors element by element: comparisons, logic and choices.

Booleans are 0 and 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._broadcasting import combine
from brainstorm.ext.onnx_exchange._import import Importer
from brainstorm.ext.onnx_exchange._node import Node, reads
from brainstorm.ext.onnx_exchange._values import Value

#: Operator to a formula of its inputs.
_QUESTIONS = {
    "And": "x & y",
    "Equal": "x == y",
    "Greater": "x > y",
    "GreaterOrEqual": "x >= y",
    "IsNaN": "isnan(x)",
    "Less": "x < y",
    "LessOrEqual": "x <= y",
    "Not": "~x",
    "Or": "x | y",
    "Xor": "x != y",
}


@reads(*_QUESTIONS)
def _question(imp: Importer, node: Node) -> Value:
    made = combine(imp, node, _QUESTIONS[node.kind], **dict(zip("xy", node.inputs, strict=False)))
    imp.whole.add(made.path)
    return made


@reads("Where")
def _where(imp: Importer, node: Node) -> Value:
    return combine(imp, node, "where(x, y, z)", **dict(zip("xyz", node.inputs, strict=True)))


@reads("PRelu")
def _prelu(imp: Importer, node: Node) -> Value:
    value, slope = node.value(), node.get(1)
    order = value.order()
    shape = (1,) * (len(value.axes) - np.ndim(slope)) + np.shape(slope)
    varies = [i for i, size in enumerate(shape) if size > 1]
    fits = len(shape) == len(value.axes) and shape[order[-1]] in (1, value.shape[order[-1]])
    if isinstance(slope, Value) or not fits or varies not in ([], order[-1:]):
        return combine(imp, node, "relu(x) + y * minimum(x, 0)", x=value, y=slope)
    path, sizes = imp.arrange(node, value, order)
    options: dict[str, Any] = {} if varies else {"shared": True}
    made = imp.add(node, "PReLU", path, sizes, {"slope": slope.ravel()}, **options)
    return imp.like(value, order, made)
