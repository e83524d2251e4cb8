"""What a graph computes of constants alone, within limits that are known before it is computed.

Exporters leave such nodes in a graph: sizes that follow from the shape of the data, weights that
are cast or transposed. These operators are computed; others could run without end, or make
terabytes of a few bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.ext.onnx_exchange._body import BATCH, FLOATS, TIME, onnx
from brainstorm.ext.onnx_exchange._node import Node
from brainstorm.optional import require

__all__ = ["Folder"]

#: How many elements may be computed in a model that holds few, and how many for each that it holds.
LEAST, TIMES = 2**22, 4

#: The type of texts, as numbered by TensorProto.
STRING = 8

Arrays = Sequence[np.ndarray]


def _of_all(node: Node, arrays: Arrays) -> int:
    return sum(array.size for array in arrays)


def _broadcast(node: Node, arrays: Arrays) -> int:
    return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))


def _gathered(node: Node, arrays: Arrays) -> int:
    table, indices = arrays
    return indices.size * table.size // max(1, table.shape[node.options.get("axis", 0)])


def _counted(node: Node, arrays: Arrays) -> int:
    start, stop, step = (float(array) for array in arrays)
    return math.ceil(max(0.0, (stop - start) / step))


#: Operators that make no more elements than they are given, and those that work element by element.
_REARRANGING = [
    "Concat", "Flatten", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
]  # fmt: skip
_ELEMENTWISE = [
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Erf", "Exp", "Floor",
    "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min",
    "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign",
    "Sqrt", "Sub", "Sum", "Tanh", "Where",
]  # fmt: skip

#: Operator to the most elements that it makes of given arrays.
_BOUNDS: dict[str, Callable[[Node, Arrays], int]] = {
    **dict.fromkeys(_REARRANGING, _of_all),
    **dict.fromkeys(_ELEMENTWISE, _broadcast),
    "Gather": _gathered,
    "Range": _counted,
}


class Folder:
    """Computes nodes of a model whose inputs are constants.

    Args:
        opset: The version of the operators.
        held: How many elements the model holds.
    """

    def __init__(self, opset: int, held: int) -> None:
        self._opset = opset
        self._left = LEAST + TIMES * held

    def fold(self, node: Node, proto: Any) -> list[np.ndarray]:
        """Return the outputs of a node.

        Raises:
            NetworkValidationError: It is none of these operators, or too much.
        """
        known = [tensor for tensor in node.inputs if tensor is not None]
        if node.kind.startswith("Random") or node.kind in ("Bernoulli", "Multinomial"):
            raise node.fail("no layer draws such numbers, and drawn once they would be constants.")
        if node.kind == "Constant":
            return [_constant(node)]
        if node.kind == "ConstantOfShape":  # maybe of T and B: not to be allocated
            value = node.options.get("value")
            number = (
                np.zeros(1, np.float32) if value is None else onnx().numpy_helper.to_array(value)
            )
            return [np.broadcast_to(number, known[0])]
        if node.kind == "Expand":
            return [np.broadcast_to(known[0], np.broadcast_shapes(known[0].shape, known[1]))]
        if node.kind not in _BOUNDS:
            raise node.fail(
                f"no layer computes this operator, and of constants only these are computed: "
                f"{', '.join(sorted([*_BOUNDS, 'ConstantOfShape', 'Expand']))}."
            )
        self._left -= max(_BOUNDS[node.kind](node, known), sum(array.size for array in known))
        if self._left < 0:
            raise node.fail("its constants have more elements than can be computed with here.")
        _check_cast(node, known)
        evaluator = require("onnx.reference", "onnx").ReferenceEvaluator(proto, {"": self._opset})
        names = [name for name in proto.input if name]
        return evaluator.run(None, dict(zip(names, known, strict=True)))


def _constant(node: Node) -> np.ndarray:
    """Return what a node holds; its size is that of the file."""
    (name, value), *_ = node.options.items()
    if name == "value":
        return onnx().numpy_helper.to_array(value)
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise node.fail(f"expected numbers, got {name}.")
    return np.array(value, np.float32 if "float" in name else np.int64)


def _check_cast(node: Node, known: Arrays) -> None:
    if node.kind != "Cast":
        return
    if node.options["to"] == STRING:
        raise node.fail("no layer computes with texts.")
    has_lead = np.isin(known[0], (TIME, BATCH, TIME * BATCH)).any()
    if has_lead and node.options["to"] in FLOATS:
        raise node.fail("no layer computes with T or B as numbers.")
