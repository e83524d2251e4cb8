"""Computing the constant parts of a graph, within limits that are checked before.

Exporters leave such nodes in a graph: sizes that follow from the shape of the data, masks, weights
that are cast, transposed or quantized. Only these operators are computed, by the reference
implementation of ONNX; others might run forever, or create terabytes from a few bytes. Results
have the types that ONNX defines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange._body import BATCH, FLOATS, TIME, Table, onnx
from brainstorm.ext.onnx_exchange._node import Node
from brainstorm.ext.onnx_exchange._tables import ARITHMETIC, FUNCTIONS, QUESTIONS
from brainstorm.optional import require

#: Maximum number of computed elements in a small model, and per element in the model.
LEAST, TIMES = 2**22, 4


class Folder:
    """Computes nodes whose inputs are constants, for a model with `held` elements."""

    def __init__(self, held: int) -> None:
        self._left = LEAST + TIMES * held

    def fold(self, node: Node) -> list[np.ndarray]:
        """Return the outputs of a node."""
        if node.kind.startswith("Random") or node.kind in ("Bernoulli", "Multinomial"):
            raise node.fail("no layer draws such numbers, and drawn once they would be constants.")
        if node.kind not in _KINDS:
            raise node.fail(
                f"no layer computes this operator, and of constants only these are computed: "
                f"{', '.join(sorted(_KINDS))}."
            )
        if any(array.dtype.kind in "OSU" for array in _given(node)):
            raise node.fail("no layer computes with texts.")
        with node.guarded(), np.errstate(all="ignore"):
            self._charge(node)
            return folds.get(node.kind, _by_reference)(node)

    def _charge(self, node: Node) -> None:
        """Count the elements that a node will compute; raise an error if there are too many."""
        count = _read(node)
        if count <= self._left and node.kind in _BOUNDS:
            count = max(count, _BOUNDS[node.kind](node))
        self._left -= count
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


def _by_reference(node: Node) -> list[np.ndarray]:
    """Return what the reference implementation of ONNX computes."""
    known = onnx().defs.get_schema(node.kind).attributes
    options = {name: value for name, value in node.options.items() if name in known}
    names = ["" if x is None else f"x{i}" for i, x in enumerate(node.inputs)]
    proto = onnx().helper.make_node(node.kind, names, node.outputs, **options)
    evaluator = require("onnx.reference", "onnx").ReferenceEvaluator(proto)
    return evaluator.run(None, dict(zip(names, node.inputs, strict=True)))


# -- what the reference implementation does not compute, or not well ------------------------------

#: Operator to a function from a node, whose inputs are known, to its outputs.
folds = Table()


@folds("Constant")
def _constant(node: Node) -> list[np.ndarray]:
    (name, value), *_ = node.options.items()
    if name == "value":
        return [array_of(value)]
    if name not in ("value_float", "value_floats", "value_int", "value_ints"):
        raise node.fail(f"expected numbers, got {name}.")
    return [np.array(value, np.float32 if "float" in name else np.int64)]


@folds("Identity")
def _identity(node: Node) -> list[np.ndarray]:
    """Return the same array; a copy of one with T and B might not fit into memory."""
    return list(node.inputs)


@folds("CastLike")
def _cast_like(node: Node) -> list[np.ndarray]:
    """Return an array of the type of another, which the reference refuses from opset 24 on."""
    return [node.inputs[0].astype(node.inputs[1].dtype)]


@folds("Cast")
def _cast(node: Node) -> list[np.ndarray]:
    """Return an array of another type, which is not one that has T or B as numbers."""
    (array,), to = node.inputs, node.options["to"]
    code = onnx().TensorProto.DataType.Value(to.decode()) if isinstance(to, bytes) else to
    dtype = onnx().helper.tensor_dtype_to_np_dtype(code)
    if dtype.kind in "Oc":
        raise node.fail("no layer computes with texts or complex numbers.")
    if code in FLOATS and np.isin(array, (TIME, BATCH, TIME * BATCH)).any():
        raise node.fail("no layer computes with T or B as numbers.")
    return [array.astype(dtype)]


@folds("ConstantOfShape")
def _constant_of_shape(node: Node) -> list[np.ndarray]:
    """Return a constant array without allocating it, because its shape may contain T and B."""
    value = node.options.get("value")
    number = np.zeros(1, np.float32) if value is None else array_of(value)
    return [np.broadcast_to(number.reshape(()), tuple(node.inputs[0]))]


@folds("Expand")
def _expand(node: Node) -> list[np.ndarray]:
    """Return repetitions of an array without allocating them, for the same reason."""
    x, shape = node.inputs
    return [np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))]


@folds("ScatterND")
def _scatter(node: Node) -> list[np.ndarray]:
    """Return an array with other elements; the reference has a loop over their indices."""
    x, indices, updates = node.inputs
    if node.options.get("reduction", b"none") != b"none":
        raise node.fail("of constants only plain assignments are computed.")
    result = np.array(x)
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return [result]


@folds("Shape")
def shape_of(node: Node) -> list[np.ndarray]:
    """Return the shape of an array or tensor; the ends of a part of it may be too large."""
    shape = node.inputs[0].shape[node.options.get("start", 0) : node.options.get("end")]
    return [np.array(shape, np.int64)]


@folds("Softmax", "LogSoftmax")
def _softmaxes(node: Node) -> list[np.ndarray]:
    """Return a softmax over several axes, as older versions have it."""
    (x,), axes = node.inputs, tuple(node.options["axes"])
    x = x - x.max(axis=axes, keepdims=True)
    logarithms = x - np.log(np.exp(x).sum(axis=axes, keepdims=True))
    return [logarithms if node.kind == "LogSoftmax" else np.exp(logarithms)]


@folds("Split")
def _split(node: Node) -> list[np.ndarray]:
    """Return as many parts as the node has outputs, whatever number it says."""
    x, axis = node.inputs[0], node.options.get("axis", 0)
    return np.split(x, np.cumsum(split_sizes(node, x.shape[axis]))[:-1], axis)


def split_sizes(node: Node, size: int) -> list[int]:
    """Return the sizes of the parts into which a Split divides an axis."""
    sizes = node.axes()
    if sizes is None:
        count = len(node.used)
        part = -(-size // count)
        sizes = [max(0, min(part, size - i * part)) for i in range(count)]
    return sizes


#: The operators that are computed.
_KINDS = {
    *folds, *ARITHMETIC.values(), *FUNCTIONS.values(), *QUESTIONS.values(), "Ceil", "Clip",
    "Concat", "CumSum", "DequantizeLinear", "Flatten", "Gather", "MatMul", "Mod", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "Size", "Slice", "Squeeze", "Sum", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
}  # fmt: skip


# -- limits ---------------------------------------------------------------------------------------

#: Operators whose results are views of their first input.
_VIEWS = ("Expand", "Identity", "Shape", "Size", "Slice", "Split", "Squeeze", "Transpose",
          "Unsqueeze")  # fmt: skip


def _given(node: Node) -> list[np.ndarray]:
    return [array for array in node.inputs if array is not None]


def _elements(shape: Iterable[int]) -> int:
    """Return the size of an array; axes of size 0 count as 1, because results may lack them."""
    return math.prod(max(1, int(size)) for size in shape)


def _read(node: Node) -> int:
    """Return the number of elements of the inputs that are read."""
    return sum(_elements(array.shape) for array in _given(node)[node.kind in _VIEWS :])


def _broadcast(node: Node) -> int:
    return _elements(np.broadcast_shapes(*(array.shape for array in _given(node))))


def _dequantized(node: Node) -> int:
    x, scale, *_ = node.inputs
    if scale.size == 1:
        return 0
    axis = node.options.get("axis", 1)
    return scale.size * (node.options.get("block_size") or x.size // max(1, x.shape[axis]))


def _gathered(node: Node) -> int:
    table, indices = node.inputs
    return _elements(indices.shape) * table.size // max(1, table.shape[node.options["axis"]])


def _counted(node: Node) -> int:
    start, stop, step = (float(array) for array in node.inputs)
    return math.ceil(max(0.0, (stop - start) / step)) if step else 0


def _tiled(node: Node) -> int:
    x, counts = node.inputs
    return _elements(x.shape) * _elements(counts)


def _multiplied(node: Node) -> int:
    a, b = node.inputs
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return _elements(lead) * _elements(a.shape[-2:]) * b.shape[-1]


#: Operator to the maximum number of elements of its result; for others, those of the inputs.
_BOUNDS: dict[str, Callable[[Node], int]] = {
    **dict.fromkeys((*ARITHMETIC.values(), *QUESTIONS.values()), _broadcast),
    **dict.fromkeys(("Clip", "Mod", "Sum", "Where", "Xor"), _broadcast),
    "DequantizeLinear": _dequantized,
    "Gather": _gathered,
    "MatMul": _multiplied,
    "Range": _counted,
    "Tile": _tiled,
}
