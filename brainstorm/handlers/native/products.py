"""Matrix products by oneDNN, with following operations done in the same pass over the result.

A product is the execution of a primitive: code for the strides of its arrays (with AVX-512, for
some sizes only, see `_takes_any_size`), which is created once. Some factors are copied first,
because they would be read slowly as they lie:

* a second factor that many rows are multiplied by, into the layout that the library prefers;
* one that is used repeatedly, such as recurrent weights, once before all products (`build_pack`,
  `build_packed`);
* a first factor by columns whose distance is a multiple of 2 kB, with gaps between them.

For example, the gradients of weights W (512, 784) are deltas.T @ x, with deltas (100, 512). Their
columns are 512 numbers apart, so without AVX-512 there are two calls: a copy of the deltas, 528
numbers apart, and the product. Small products are compiled loops, see `small_products`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping

import numpy as np

from brainstorm.handlers.native.calls import Call
from brainstorm.handlers.native.library import Handle, Library, UnsupportedError
from brainstorm.handlers.native.primitives import (
    ANY,
    BIAS,
    DST,
    GIVEN,
    SRC,
    WEIGHTS,
    WEIGHTS_LAYOUT,
    Primitive,
    Primitives,
    check_arrays,
)
from brainstorm.handlers.native.small_products import build_small, is_small
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.utils import Array

_RELU, _TANH, _ELU, _SIGMOID = 0x20, 0x21, 0x22, 0x29
_SWISH, _GELU = 0x2C, 0x31

#: Activation functions that the library can apply to a product, by their first names: number, and
#: two parameters. Its rel and hard_sigmoid are not used, because they turn NaN into 0, nor its
#: softplus, which is wrong for x < -10, and even negative.
ACTIVATIONS: dict[str, tuple[int, float, float] | None] = {
    "linear": None,
    "leaky_rel": (_RELU, 0.01, 0.0),
    "el": (_ELU, 1.0, 0.0),
    "silu": (_SWISH, 1.0, 0.0),
    "tanh": (_TANH, 0.0, 0.0),
    "sigmoid": (_SIGMOID, 0.0, 0.0),
    "gelu": (_GELU, 0.0, 0.0),
}

#: Minimum number of rows of the result for which it is faster to rearrange the second factor first,
#: for factors stored by rows, and others (measured).
MANY_ROWS, VERY_MANY_ROWS = 256, 1024

#: Columns whose distance is a multiple of `CROWDED` elements share a few places of the cache: a
#: first factor by columns is then read at half the speed. From `MANY_COLUMNS` of the result on, a
#: copy with `SPREAD` elements between columns costs less (measured without AVX-512).
CROWDED, SPREAD, MANY_COLUMNS = 512, 16, 32

#: With AVX-512: number of rows up to which products, and stacks of products, are faster with code
#: for all sizes than with code for one size. Those of more rows take 1.05 to 1.15 times as long;
#: with a first factor by columns only if their distance is a multiple of `CROWDED_IF_WIDE`
#: elements (measured).
FEW_ROWS, FEW_ROWS_OF_STACKS, CROWDED_IF_WIDE = 8, 128, 1024
#: Number of significant bits of numbers of rows above that, such as T * B = 50 * 32, that have code
#: of their own.
BITS = 5

Strides = tuple[int, ...]


def has_half_products(library: Library) -> bool:
    """Return whether the library has a separate implementation for factors in bfloat16."""
    return _code_for_products(library, False) != _code_for_products(library, True)


@functools.cache
def takes_all_sizes(library: Library) -> bool:
    """Return whether the library has the same implementation for products of all sizes.

    Then one primitive is enough. With AVX-512 it has faster code generated for each size.
    """
    return _code_for_products(library, False).startswith("gemm")


@functools.cache
def has_code_for_all_sizes(library: Library) -> bool:
    """Return whether the library has fast code for products of arrays of any size."""
    try:
        return bool(_code_for_products(library, False, GIVEN))
    except UnsupportedError:
        return False


def _code_for_products(library: Library, is_half: bool, size: int = 64) -> str:
    """Return the name of the implementation for square matrices by rows."""
    lane = Primitives(library, 1, is_half)
    layout = lane.layout((size, size), (size, 1))
    return matmul(lane, dict.fromkeys((SRC, WEIGHTS, DST), layout)).implementation


def build_affine(
    primitives: Primitives, a: Array, b: Array, bias: Array, out: Array, activation: str
) -> list[Call]:
    """Return the calls for ``out = activation(a @ b.T + bias)``, for one of `ACTIVATIONS`."""
    return build_product(primitives, a, b.T, out, False, bias, ACTIVATIONS[activation])


def build_batched(
    primitives: Primitives, a: Array, b: Array, out: Array, transa: bool, transb: bool
) -> list[Call]:
    """Return the calls for ``out[:, g] = a[:, g] @ b[:, g]``."""
    a = a.transpose(1, 2, 0) if transa else a.transpose(1, 0, 2)
    b = b.transpose(1, 2, 0) if transb else b.transpose(1, 0, 2)
    return build_product(primitives, a, b, out.transpose(1, 0, 2))


def build_product(
    primitives: Primitives,
    a: Array,
    b: Array,
    out: Array,
    add: bool = False,
    bias: Array | None = None,
    activation: tuple[int, float, float] | None = None,
) -> list[Call]:
    """Return the calls for ``out (+)= activation(a @ b + bias)`` of matrices, or of stacks.

    Raises:
        UnsupportedError: They do not fit, are stacks of stacks or broadcast, or the library has no
            fast code for them.
    """
    check_arrays((np.float32,), [out], [a, b] if bias is None else [a, b, bias])
    fits = 1 < a.ndim < 4 and b.shape[:-1] == (*a.shape[:-2], a.shape[-1])
    if not fits or out.shape != (*a.shape[:-1], b.shape[-1]):
        raise UnsupportedError("the shapes do not fit")  # NumPy raises the error, or broadcasts
    if bias is not None and not (bias.shape == (out.shape[-1],) and bias.flags.c_contiguous):
        raise UnsupportedError("the bias does not fit")  # the library ignores its stride
    plain = bias is None and activation is None and a.ndim == 2
    if plain and is_small(len(out), a.shape[1], out.shape[1], out.itemsize):
        with contextlib.suppress(UnsupportedError):
            return build_small(a, b, out, add)
    primitives.choose_threads(2 * out.size * a.shape[-1], a.size + b.size + out.size)
    arrays = {SRC: a, WEIGHTS: b, DST: out}
    if bias is not None:
        arrays[BIAS] = bias.reshape((1, -1))
    strides = {what: strides_of(array) for what, array in arrays.items()}
    layouts = {what: primitives.layout(arrays[what].shape, strides[what]) for what in arrays}
    placed = {what: (layouts[what], address_of(array)) for what, array in arrays.items()}
    calls: list[Call] = []
    most = MANY_ROWS if strides[WEIGHTS][-1] == 1 else VERY_MANY_ROWS
    is_any = _takes_any_size(primitives, a, strides[SRC])
    is_crowded = takes_all_sizes(primitives.library) and strides[SRC][-1] % CROWDED == 0
    if is_crowded and out.shape[-1] >= MANY_COLUMNS:
        distance = -(-a.shape[-2] // CROWDED) * CROWDED + SPREAD
        apart = primitives.layout(a.shape, (*(a.shape[-1] * distance,) * (a.ndim - 2), 1, distance))
        placed[SRC] = primitives.copied(calls, "apart", placed[SRC], apart)
    rearranges = a.ndim == 2 and a.shape[0] >= most and not is_any
    if rearranges:
        layouts[WEIGHTS] = primitives.layout(b.shape, ANY)
    elif is_any:
        layouts = {what: _of_any_size(primitives, what, given) for what, given in strides.items()}
    product = matmul(primitives, layouts, add, activation)
    if rearranges:
        arranged = product.layout(WEIGHTS_LAYOUT)
        placed[WEIGHTS] = primitives.copied(calls, "arranged", placed[WEIGHTS], arranged)
    return [*calls, primitives.call(product, placed)]


def _takes_any_size(primitives: Primitives, a: Array, strides: Strides) -> bool:
    """Return whether a product has the primitive for arrays of any size.

    Code for one size has 150 kB and takes 0.3 ms to generate (AVX-512). If T and B change, there
    are thousands of sizes, so only common ones that gain by it have it.
    """
    if takes_all_sizes(primitives.library):
        return True
    if primitives.is_half or not has_code_for_all_sizes(primitives.library):
        return False
    by_rows = strides[-1] == 1
    if not by_rows and strides[-1] % CROWDED_IF_WIDE:
        return True
    rows = a.shape[-2] if by_rows else a.shape[-1]
    is_common = rows % 2 ** max(rows.bit_length() - BITS, 0) == 0
    return rows <= (FEW_ROWS if a.ndim == 2 else FEW_ROWS_OF_STACKS) or not is_common


def _of_any_size(primitives: Primitives, what: int, strides: Strides) -> Handle:
    """Return the layout of all arrays that are by rows, or by columns, like those for an argument.

    Args:
        primitives: Where it is kept.
        what: The number of the argument.
        strides: Of such an array.
    """
    batch, rows = (GIVEN,) * (len(strides) - 2), 1 if what == BIAS else GIVEN
    way = (GIVEN, 1) if strides[-1] == 1 else (1, GIVEN)
    return primitives.layout((*batch, rows, GIVEN), (*batch, *way))


def matmul(
    primitives: Primitives,
    layouts: Mapping[int, Handle],
    add: bool = False,
    activation: tuple[int, float, float] | None = None,
) -> Primitive:
    """Return the product of arrays with these layouts, by the numbers of the arguments."""
    return primitives.primitive(
        "matmul", primitives.library.engine, layouts[SRC], layouts[WEIGHTS], layouts.get(BIAS),
        layouts[DST], add=add, activation=activation, is_half=primitives.is_half,
    )  # fmt: skip


def strides_of(array: Array) -> Strides:
    """Return the strides in elements; on axes of size 1, those of contiguous memory.

    Raises:
        UnsupportedError: Neither rows nor columns are contiguous, or a stride is negative.
    """
    size = array.itemsize
    if min(array.strides) < 0:
        raise UnsupportedError("a stride is negative")
    *batch, row, column = (stride // size for stride in array.strides)
    rows, columns = array.shape[-2:]
    if columns == 1:
        column = 1
    if rows == 1:
        row = columns if column == 1 else 1
    by_rows, by_columns = column == 1 and row >= columns, row == 1 and column >= rows
    if not (by_rows or by_columns) or 0 in batch:
        raise UnsupportedError("neither rows nor columns are contiguous")
    return (*batch, row, column)
