"""The source of the kernels, to compile them on a machine without a GPU."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.handlers.base_activations import activation_formula
from brainstorm.handlers.bound_program import Loops
from brainstorm.handlers.executor import Executor
from brainstorm.handlers.numpy_memory import address_of, aligned_zeros
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.elements import converting_walk, element_walk
from brainstorm.handlers.pycuda.fusing import Piece, fused
from brainstorm.handlers.pycuda.groups import Group, split, walks_of
from brainstorm.handlers.pycuda.modules import FILES, Kernel, file_source, loop_kernel, source_of
from brainstorm.handlers.pycuda.recurrence_parts import CLUSTERED, LoopsPart, ProductPart
from brainstorm.handlers.pycuda.recurrences import Recurrence
from brainstorm.handlers.pycuda.structures import structure_of
from brainstorm.optree import Formula, Program, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS
from brainstorm.optree.render_cuda import CUDA_HEAD

__all__ = ["kernel_sources"]

#: Of arrays whose threads do several elements at once.
_SHAPE = (5, 6, 16)

#: Functions that compute elements: types of the arrays, how many numbers, sizes and axes they take.
_ELEMENTS = {
    "image_to_columns": ("f", 1, 2, 18),
    "columns_to_image": ("f", 1, 2, 18),
    "average_pool": ("f", 0, 1, 18),
    "pool_deltas": ("ff", 0, 1, 18),
    "take_rows": ("ff", 6, 0, 0),
    "reverse_steps": ("fi", 3, 0, 0),
}


#: The source that only GPUs from `CLUSTERED` on take.
OF_CLUSTERS = "clusters"


def kernel_sources() -> dict[str, str]:
    """Return CUDA C that compiles by itself: what is written by hand, and rendered op-trees.

    Returns:
        A name for each file's content: those of the kernels that are written by hand, and one of
        op-trees that have every operator's text and every kind of loop, in both sizes of indices;
        and of recurrences, by one block and by `OF_CLUSTERS`.
    """
    written = {file: f"{CUDA_HEAD}\n{file_source(file)}" for file in FILES}
    structures = {structure_of(group) for group in _groups()}
    for index in ("int", "ptrdiff_t"):
        kernels = [loop_kernel(dataclasses.replace(one, index=index)) for one in structures]
        written[f"op_trees_{index}"] = source_of(kernels)
    written["recurrences"] = source_of(list(_recurrences(100)))
    written[OF_CLUSTERS] = source_of(list(_recurrences(256)))
    return written


def _formulas() -> Iterator[Formula]:
    for name in ACTIVATIONS:
        yield activation_formula(name)
    for reduce in (fn.sum, fn.mean, fn.max, fn.min, fn.argmax, fn.argmin):
        for axis in (0, 1, 2, None):
            yield formula(functools.partial(reduce, axis=axis))
    for function in (
        *(fn.exp, fn.exp2, fn.expm1, fn.log, fn.log2, fn.log1p, fn.sqrt, fn.square, fn.absolute),
        *(fn.sgn, fn.rint, fn.erf, fn.tanh, fn.reciprocal),
    ):
        yield formula(function)
    for binary in (
        *(fn.add, fn.subtract, fn.multiply, fn.divide, fn.power, fn.maximum, fn.minimum),
        *(fn.equal, fn.not_equal, fn.less, fn.less_equal, fn.greater, fn.greater_equal),
    ):
        yield formula(lambda x, binary=binary: binary(x, x[:, :1]))
    yield formula(lambda x: fn.where(x > 0.0, x, fn.concatenate([x[1:], x[:1]], axis=0)))
    yield formula(lambda x: fn.softmax(x, axis=2))
    yield formula(lambda x: fn.transpose(x)[::-1] * 2.0)
    yield formula(lambda x: x)


def _groups() -> Iterator[Group]:
    """Yield the loops of the formulas, one by one and in groups of several."""
    for dtype in (np.float32, np.float64):
        x = aligned_zeros(_SHAPE, dtype)
        for accumulate in (False, True):
            pieces: list[Piece] = []
            for its_formula in _formulas():
                program = its_formula.program(x)
                outputs: list[Any] = [
                    aligned_zeros(program.shape_of(v), dtype) for v in program.outputs
                ]
                found = list(_pieces(program, x, outputs, accumulate))
                yield from (piece.group for piece in fused(found))
                pieces += found
            yield from (piece.group for piece in (*pieces, *fused(pieces)))
    for kind in ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64"):
        x, copy = (
            aligned_zeros(_SHAPE, kind),
            formula(lambda x: x).program(aligned_zeros(_SHAPE, kind)),
        )
        for out in ("f4", kind):
            outputs = [aligned_zeros(_SHAPE, out)]
            yield from (piece.group for piece in _pieces(copy, x, outputs, False))
    for function, (kinds, numbers, sizes, axes) in _ELEMENTS.items():
        *sources, out = (_array(type_) for type_ in f"{kinds}f")
        known = (2,) * sizes, (2,) * axes
        walk = element_walk(function, sources, out, (0,) * numbers, *known, add=True)
        yield Group((walk,))
    yield Group((converting_walk(_array("f"), _array("u2")),))
    yield Group((converting_walk(_array("u2"), _array("f"), add=True),))


def _recurrences(size: int) -> Iterator[Kernel]:
    """Yield recurrences of an LSTM with so many units, whose matrix is kept or changes."""
    device: Any = types.SimpleNamespace(arch=f"sm_{CLUSTERED}", shared=192 << 10, stream=None)
    rows = 10
    for turned, move in itertools.product((False, True), (0, 4)):
        n, k = (4 * size, size) if turned else (size, 4 * size)
        a, b, out = (aligned_zeros(shape, "f") for shape in ((rows, k), (n, k), (rows, n)))
        addresses = [address_of(array) for array in (a, b, out)]
        ldb = k if turned else n
        product = Product(*addresses, False, turned, rows, n, k, k, ldb, n, True)
        (piece,) = _pieces(activation_formula("tanh").program(out), out, [out], False)
        parts = [ProductPart(device, product), LoopsPart([split(piece.walks[0], (rows, n))])]
        moves = [(0, move, 0), (0,) * len(parts[1].pointers)]
        yield Recurrence(device, rows, 9, parts, moves).launch().kernel


def _array(type_: str) -> Any:
    """Return what `element_walk` asks of an array."""
    array = aligned_zeros(_SHAPE, type_)
    names = {name: getattr(array, name) for name in ("dtype", "nbytes", "shape", "size", "strides")}
    return types.SimpleNamespace(kept=array, address=address_of(array), **names)


def _pieces(
    program: Program, x: np.ndarray, outputs: list[Any], accumulate: bool
) -> Iterator[Piece]:
    bound = Executor(program, 1).bound([x], outputs, (accumulate,) * len(outputs))
    for part, places in bound.placed((x, *outputs)):
        if isinstance(part, Loops):
            for walk in walks_of(part, places):
                yield Piece.of_loop(walk)
