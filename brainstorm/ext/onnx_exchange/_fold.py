"""Computing the constant parts of a graph, within limits that are checked before computing.

Exporters leave such nodes in a graph: sizes that follow from the shape of the data, masks, weights
that are cast, transposed or quantized. Only these operators are computed, in the versions of the
model; others might run forever, or create terabytes from a few bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange._body import onnx
from brainstorm.ext.onnx_exchange._folded import ELEMENTWISE, folds
from brainstorm.ext.onnx_exchange._node import Node

#: Maximum number of computed elements in a small model, and per element in the model.
LEAST, TIMES = 2**22, 4

Arrays = Sequence[np.ndarray]

#: Operators whose results are views of their inputs, or of nothing.
_VIEWS = ("ConstantOfShape", "Expand", "Identity", "Shape", "Size", "Slice", "Split", "Squeeze",
          "Transpose", "Unsqueeze")  # fmt: skip


def _of_all(node: Node, arrays: Arrays) -> int:
    return sum(array.size for array in arrays)


def _broadcast(node: Node, arrays: Arrays) -> int:
    if "axis" in node.options:  # before opset 7 the first one has the shape
        return arrays[0].size
    return math.prod(np.broadcast_shapes(*(array.shape for array in arrays)))


def _gathered(node: Node, arrays: Arrays) -> int:
    table, indices = arrays
    return indices.size * table.size // max(1, table.shape[node.options.get("axis", 0)])


def _counted(node: Node, arrays: Arrays) -> int:
    start, stop, step = (float(array) for array in arrays)
    return math.ceil(max(0.0, (stop - start) / step)) if step else 0


def _tiled(node: Node, arrays: Arrays) -> int:
    return arrays[0].size * math.prod(max(0, int(count)) for count in arrays[1])


def _multiplied(node: Node, arrays: Arrays) -> int:
    a, b = arrays[:2]
    return a.size * b.shape[-1] if a.ndim and b.ndim else 0


#: Operator to the maximum number of elements of its result; for others, those of the inputs.
_BOUNDS: dict[str, Callable[[Node, Arrays], int]] = {
    **dict.fromkeys((*ELEMENTWISE, "Where"), _broadcast),
    "Gather": _gathered,
    "MatMul": _multiplied,
    "Range": _counted,
    "Tile": _tiled,
}


class Folder:
    """Computes nodes whose inputs are constants, for a model with `held` elements."""

    def __init__(self, held: int) -> None:
        self._left = LEAST + TIMES * held

    def fold(self, node: Node) -> list[np.ndarray]:
        """Return the outputs of a node."""
        if node.kind.startswith("Random") or node.kind in ("Bernoulli", "Multinomial"):
            raise node.fail("no layer draws such numbers, and drawn once they would be constants.")
        if node.kind == "Constant":
            with node.guarded():
                return [_constant(node)]
        if node.kind not in folds:
            raise node.fail(
                f"no layer computes this operator, and of constants only these are computed: "
                f"{', '.join(sorted(folds))}."
            )
        with node.guarded(), np.errstate(all="ignore"):
            self._charge(node)
            result = folds[node.kind](node)
        return result if isinstance(result, list) else [result]

    def _charge(self, node: Node) -> None:
        """Count the elements that a node will compute; raise an error if there are too many."""
        known = [tensor for tensor in node.inputs if tensor is not None]
        if node.kind not in _VIEWS:
            bound = _BOUNDS.get(node.kind, _of_all)
            self._left -= max(bound(node, known), _of_all(node, known))
        if self._left < 0:
            raise node.fail("its constants have more elements than can be computed with here.")


def array_of(tensor: Any) -> np.ndarray:
    """Return the numbers of a tensor stored in a model."""
    try:
        array = onnx().numpy_helper.to_array(tensor)
    except (LookupError, TypeError, ValueError, onnx().checker.ValidationError) as error:
        raise NetworkValidationError(
            f"ONNX tensor {tensor.name!r}: expected as many numbers as its shape "
            f"{tuple(tensor.dims)} says, in the model itself, got others ({error}). Export the "
            f"model again; where the numbers lie in other files, read it by load_onnx."
        ) from error
    if array.dtype.kind == "c":
        raise NetworkValidationError(
            f"ONNX tensor {tensor.name!r}: expected real numbers, got {array.dtype}. Export real "
            f"and imaginary parts as tensors of their own."
        )
    return array


def _constant(node: Node) -> np.ndarray:
    """Return the value of a Constant; its size is limited by that of the file."""
    (name, value), *_ = node.options.items()
    if name == "value":
        return array_of(value)
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise node.fail(f"expected numbers, got {name}.")
    return np.array(value, np.float32 if "float" in name else np.int64)
