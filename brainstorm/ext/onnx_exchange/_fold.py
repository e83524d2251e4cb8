"""Computing the constant parts of a graph by NumPy, within limits that are checked before.

Exporters leave such nodes in a graph: sizes that follow from the shape of the data, masks, weights
that are cast, transposed or quantized. Only these operators are computed, in the versions of the
model; others might run forever, or create terabytes from a few bytes. Results have the types that
ONNX defines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError
from brainstorm.ext.onnx_exchange._body import BATCH, FLOATS, STRING, TIME, Table, onnx
from brainstorm.ext.onnx_exchange._node import Node
from brainstorm.ext.onnx_exchange._tables import ARITHMETIC, FUNCTIONS, QUESTIONS
from brainstorm.optree import OPERATORS

#: Maximum number of computed elements in a small model, and per element in the model.
LEAST, TIMES = 2**22, 4

#: A function from a node, whose inputs are known, to its output(s).
Function = Callable[[Node], Any]


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
        if node.kind not in _VIEWS:
            bound = _BOUNDS.get(node.kind, _of_all)
            self._left -= max(bound(node), _of_all(node))
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


# -- functions of elements and axes ---------------------------------------------------------------


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide; quotients of integers are truncated."""
    if a.dtype.kind not in "iu":
        return a / b
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    powers = np.exp(x - x.max(axis=axes, keepdims=True))
    return powers / powers.sum(axis=axes, keepdims=True)


def _mean(x: np.ndarray, **options: Any) -> np.ndarray:
    total = x.sum(dtype=x.dtype, **options)
    return _divide(total, np.asarray(x.size // max(1, total.size), x.dtype))


#: Element-wise operators whose results have the type of their first input.
_OF_NUMBERS: dict[str, Any] = {
    **{kind: OPERATORS[name].numpy for name, kind in {**FUNCTIONS, **ARITHMETIC}.items()},
    "Ceil": np.ceil,
    "Div": _divide,
    "Erf": np.vectorize(math.erf, [float]),
    "Identity": lambda x: x,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.logaddexp(x, 0),
}

#: The same for any number of inputs.
_OF_MANY: dict[str, Callable[..., Any]] = {"Max": np.maximum, "Min": np.minimum, "Sum": np.add}

#: Element-wise operators whose results are booleans.
_QUESTIONS: dict[str, Any] = {
    **{kind: OPERATORS[name].numpy for name, kind in QUESTIONS.items()},
    "Xor": np.logical_xor,
}

_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "ReduceMax": np.max, "ReduceMean": _mean, "ReduceMin": np.min, "ReduceProd": np.prod,
    "ReduceSum": np.sum,
}  # fmt: skip


def trailing_axes(node: Node, rank: int, other: int) -> int:
    """Return how many axes of size 1 to append to a second operand of so many axes as `other`.

    Before opset 7 an attribute is the axis of the first operand, of rank `rank`, where it begins.
    """
    if node.opset >= 7 or "axis" not in node.options:
        return 0
    return max(0, rank - node.options["axis"] % rank - other)


def _elementwise(function: Callable[..., Any], gives_booleans: bool) -> Function:
    def compute(node: Node) -> np.ndarray:
        first, *others = node.inputs
        if others:
            behind = (1,) * trailing_axes(node, first.ndim, others[0].ndim)
            others = [x.reshape(x.shape + behind) for x in others]
        result = function(first, *others)
        return np.asarray(result, bool if gives_booleans else first.dtype)

    return compute


def _of_many(function: Callable[..., Any]) -> Function:
    return lambda node: np.asarray(functools.reduce(function, node.inputs))


def _reduction(function: Callable[..., Any]) -> Function:
    def compute(node: Node) -> np.ndarray:
        (x, *_), axes = node.inputs, node.axes()
        if not axes and node.options.get("noop_with_empty_axes"):
            return x
        options = {"axis": tuple(axes) if axes else None,
                   "keepdims": bool(node.options.get("keepdims", 1))}  # fmt: skip
        sums = {"dtype": x.dtype} if function in (np.sum, np.prod) else {}
        return np.asarray(function(x, **options, **sums), x.dtype)

    return compute


#: Operator to function.
folds = Table(
    {
        "Concat": lambda node: np.concatenate(node.inputs, node.options.get("axis", 1)),
        "Gather": lambda node: np.take(node.inputs[0], node.inputs[1], node.options.get("axis", 0)),
        "MatMul": lambda node: node.inputs[0] @ node.inputs[1],
        "Mod": lambda node: (np.fmod if node.options.get("fmod") else np.mod)(*node.inputs),
        "Size": lambda node: np.array(node.inputs[0].size),
        "Tile": lambda node: np.tile(*node.inputs),
        "Transpose": lambda node: node.inputs[0].transpose(node.options.get("perm")),
        "Unsqueeze": lambda node: np.expand_dims(node.inputs[0], tuple(node.axes() or ())),
        "Where": lambda node: np.where(*node.inputs),
        **{kind: _elementwise(function, False) for kind, function in _OF_NUMBERS.items()},
        **{kind: _elementwise(function, True) for kind, function in _QUESTIONS.items()},
        **{kind: _of_many(function) for kind, function in _OF_MANY.items()},
        **{kind: _reduction(function) for kind, function in _REDUCTIONS.items()},
    }
)


# -- numbers --------------------------------------------------------------------------------------


@folds("Cast", "CastLike")
def _cast(node: Node) -> np.ndarray:
    if node.kind == "CastLike":
        return node.inputs[0].astype(node.inputs[1].dtype)
    to = node.options["to"]
    if to == STRING:
        raise node.fail("no layer computes with texts.")
    if to in FLOATS and np.isin(node.inputs[0], (TIME, BATCH, TIME * BATCH)).any():
        raise node.fail("no layer computes with T or B as numbers.")
    code = onnx().TensorProto.DataType.Value(to.decode()) if isinstance(to, bytes) else to
    return node.inputs[0].astype(onnx().helper.tensor_dtype_to_np_dtype(code))


@folds("Clip")
def _clip(node: Node) -> np.ndarray:
    x, low, high = node.inputs[0], node.constant(1, node.options.get("min")), node.constant(
        2, node.options.get("max"))  # fmt: skip
    return x if low is None and high is None else np.clip(x, low, high).astype(x.dtype)


@folds("Softmax", "LogSoftmax")
def _softmaxes(node: Node) -> np.ndarray:
    x = node.inputs[0]
    axis = node.options.get("axis", -1 if node.opset >= 13 else 1)
    axes = (axis,) if node.opset >= 13 else tuple(range(axis % x.ndim, x.ndim))
    shares = _softmax(x, axes)
    return shares if node.kind == "Softmax" else np.log(shares)


@folds("CumSum")
def _cumsum(node: Node) -> np.ndarray:
    x, axis = node.inputs[0], int(node.inputs[1])
    if node.options.get("exclusive") or node.options.get("reverse"):
        raise node.fail("of constants only plain sums are computed.")
    return np.cumsum(x, axis, x.dtype)


@folds("DequantizeLinear")
def _dequantize(node: Node) -> np.ndarray:
    x, scale = node.inputs[0], np.asarray(node.inputs[1])
    zero = node.constant(2, np.zeros_like(scale, x.dtype))
    if scale.size > 1:
        if scale.ndim != 1:
            raise node.fail("of constants only scales of whole axes are computed.")
        axis = node.options.get("axis", 1) % x.ndim
        scale, zero = (a.reshape((-1,) + (1,) * (x.ndim - 1 - axis)) for a in (scale, zero))
    return ((x.astype(np.int64) - zero.astype(np.int64)) * scale).astype(scale.dtype)


# -- rearranging ----------------------------------------------------------------------------------


@folds("ConstantOfShape")
def _constant_of_shape(node: Node) -> np.ndarray:
    """Return a constant array without allocating it, because its shape may contain T and B."""
    value = node.options.get("value")
    number = np.zeros(1, np.float32) if value is None else onnx().numpy_helper.to_array(value)
    return np.broadcast_to(number, node.inputs[0])


@folds("Expand")
def _expand(node: Node) -> np.ndarray:
    x, shape = node.inputs
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape)))


@folds("Flatten")
def _flatten(node: Node) -> np.ndarray:
    x, axis = node.inputs[0], node.options.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), -1)


@folds("Range")
def _range(node: Node) -> np.ndarray:
    start, stop, step = (array.item() for array in node.inputs)
    return np.arange(start, stop, step, dtype=node.inputs[0].dtype)


@folds("Reshape")
def _reshape(node: Node) -> np.ndarray:
    x, shape = node.inputs[0], node.axes(1, "shape") or []
    if not node.options.get("allowzero"):
        shape = [size or x.shape[i] for i, size in enumerate(shape)]
    return x.reshape(shape)


@folds("ScatterND")
def _scatter(node: Node) -> np.ndarray:
    x, indices, updates = node.inputs
    if node.options.get("reduction", b"none") != b"none":
        raise node.fail("of constants only plain assignments are computed.")
    result = np.array(x)
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result


@folds("Shape")
def _shape(node: Node) -> np.ndarray:
    shape = node.inputs[0].shape
    return np.array(shape[node.options.get("start", 0) : node.options.get("end")], np.int64)


@folds("Slice")
def _slice(node: Node) -> np.ndarray:
    x = node.inputs[0]
    parts = [slice(None)] * x.ndim
    starts, ends, axes, steps = slice_numbers(node)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        is_all = step < 0 and end < -x.shape[axis]
        parts[axis] = slice(start, None if is_all else end, step)
    return x[tuple(parts)]


def slice_numbers(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return starts, ends, axes and steps of a Slice."""
    starts, ends = (node.axes(place, name) or [] for place, name in ((1, "starts"), (2, "ends")))
    axes = node.axes(3) or list(range(len(starts)))
    return starts, ends, axes, node.axes(4, "steps") or [1] * len(starts)


@folds("Split")
def _split(node: Node) -> list[np.ndarray]:
    x, axis = node.inputs[0], node.options.get("axis", 0)
    sizes = split_sizes(node, x.shape[axis])
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def split_sizes(node: Node, size: int) -> list[int]:
    """Return the sizes of the parts into which a Split divides an axis."""
    sizes = node.axes(1, "split")
    if sizes is None:
        count = len(node.used)
        part = -(-size // count)
        sizes = [max(0, min(part, size - i * part)) for i in range(count)]
    return sizes


@folds("Squeeze")
def _squeeze(node: Node) -> np.ndarray:
    axes = node.axes()
    return np.squeeze(node.inputs[0], None if axes is None else tuple(axes))


@folds("Trilu")
def _trilu(node: Node) -> np.ndarray:
    keeps = np.triu if node.options.get("upper", 1) else np.tril
    return keeps(node.inputs[0], int(node.constant(1, 0)))


# -- limits ---------------------------------------------------------------------------------------

#: Operators whose results are views of their inputs, or of nothing.
_VIEWS = ("ConstantOfShape", "Expand", "Identity", "Shape", "Size", "Slice", "Split", "Squeeze",
          "Transpose", "Unsqueeze")  # fmt: skip


def _of_all(node: Node) -> int:
    return sum(array.size for array in node.inputs if array is not None)


def _broadcast(node: Node) -> int:
    if "axis" in node.options:  # before opset 7 the first one has the shape
        return node.inputs[0].size
    return math.prod(np.broadcast_shapes(*(array.shape for array in node.inputs)))


def _gathered(node: Node) -> int:
    table, indices = node.inputs
    return indices.size * table.size // max(1, table.shape[node.options.get("axis", 0)])


def _counted(node: Node) -> int:
    start, stop, step = (float(array) for array in node.inputs)
    return math.ceil(max(0.0, (stop - start) / step)) if step else 0


def _tiled(node: Node) -> int:
    x, counts = node.inputs
    return x.size * math.prod(max(0, int(count)) for count in counts)


def _multiplied(node: Node) -> int:
    a, b = node.inputs
    return a.size * b.shape[-1] if a.ndim and b.ndim else 0


#: Operator to the maximum number of elements of its result; for others, those of the inputs.
_BOUNDS: dict[str, Callable[[Node], int]] = {
    **dict.fromkeys((*_OF_NUMBERS, *_OF_MANY, *_QUESTIONS, "Mod", "Where"), _broadcast),
    "Gather": _gathered,
    "MatMul": _multiplied,
    "Range": _counted,
    "Tile": _tiled,
}
