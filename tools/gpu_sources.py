"""The source of the kernels, for compiling them where there is a compiler and no GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.handlers.base_activations import activation_formula
from brainstorm.handlers.compiled_layout import Layout, Loops
from brainstorm.handlers.pycuda.modules import FILES, file_source, loop_kernel
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.optree.activations import ACTIVATIONS
from brainstorm.optree.loops import Loop
from brainstorm.optree.render_cuda import CUDA_HEAD
from brainstorm.optree.stages import schedule

__all__ = ["kernel_sources"]

_SHAPE = (5, 6, 7)


def kernel_sources() -> dict[str, str]:
    """Return CUDA C that compiles by itself: what is written by hand, and rendered op-trees.

    Returns:
        A name for each file's content: those of the kernels that are written by hand, and one of
        op-trees that have every operator's text and every kind of loop, in both sizes of indices.
    """
    written = {file: f"{CUDA_HEAD}\n{file_source(file)}" for file in FILES}
    for index in ("int", "ptrdiff_t"):
        kernels = {loop_kernel(loop, index).source for loop in _loops()}
        written[f"op_trees_{index}"] = "\n".join([CUDA_HEAD, *sorted(kernels)])
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


def _loops() -> Iterator[Loop]:
    for dtype in (np.float32, np.float64):
        x = np.zeros(_SHAPE, dtype)
        for its_formula in _formulas():
            program = its_formula.program(x)
            outputs: list[Any] = [np.zeros(program.shape_of(v), dtype) for v in program.outputs]
            for accumulate in (False, True):
                yield from _loops_of(Layout(schedule(program), [x], outputs, [accumulate], 1))
    for kind in ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint32", "uint64"):
        x = np.zeros(_SHAPE, kind)
        program = formula(lambda x: x).program(x)
        yield from _loops_of(Layout(schedule(program), [x], [np.zeros(_SHAPE, "f4")], [False], 1))


def _loops_of(layout: Layout) -> Iterator[Loop]:
    for part in layout.parts:
        yield from part.loops if isinstance(part, Loops) else ()
