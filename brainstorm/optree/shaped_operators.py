"""The operator table, second part: reductions, products, indexing and structure.

Derivatives are built from the same operators: every operator that moves elements is defined next
to its adjoint (slice and embed, take and put, gather and scatter, broadcast and sum).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from brainstorm.optree import functions as fn
from brainstorm.optree import numpy_functions as nf
from brainstorm.optree import shapes
from brainstorm.optree.nodes import build
from brainstorm.optree.registry import register_operator
from brainstorm.optree.shapes import kept_shape

Function: TypeAlias = Callable[..., Any]

REAL = ((-3.0, 3.0),)


def _kept(tree: Any, x: Any, axis: tuple[int, ...]) -> Any:
    """Restore the reduced axes of a reduction of x, with length 1."""
    shape = kept_shape(x.shape, axis)
    return tree if tree.shape == shape else fn.reshape(tree, shape)


# -- reductions ------------------------------------------------------------------------------


def _extreme(dz: Any, z: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return fn.where(fn.equal(x, _kept(z, x, axis)), _kept(dz, x, axis), 0)


def _of_others(dz: Any, z: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return dz times the product of the other factors, without dividing by zero."""
    is_zero = fn.equal(x, 0)
    others = fn.sum(is_zero, axis) - is_zero
    product = fn.prod(fn.where(is_zero, 1, x), axis) / fn.where(is_zero, 1, x)
    return _kept(dz, x, axis) * fn.where(others, 0, product)


register_operator(
    "sum",
    1,
    nf.sum_,
    (lambda dz, z, x, axis, keepdims: fn.broadcast_to(_kept(dz, x, axis), x.shape),),
    kind="reduction",
    shape=shapes.reduction,
    c="{acc} + {0}",
    initial="(T)0",
    cheap=False,
    domain=REAL,
)
register_operator(
    "prod",
    1,
    nf.prod,
    (_of_others,),
    kind="reduction",
    shape=shapes.reduction,
    c="{acc} * {0}",
    initial="(T)1",
    cheap=False,
    domain=REAL,
)
for _name, _numpy, _sign, _initial in (
    ("max", nf.max_, ">", "LOWEST"),
    ("min", nf.min_, "<", "HIGHEST"),
):
    register_operator(
        _name,
        1,
        _numpy,
        (_extreme,),
        kind="reduction",
        shape=shapes.nonempty_reduction,
        c=f"({{0}} {_sign} {{acc}} || {{0}} != {{0}}) ? {{0}} : {{acc}}",
        initial=_initial,
        cheap=False,
        domain=REAL,
    )
    register_operator(
        f"arg{_name}",
        1,
        nf.index_of(np.argmax if _name == "max" else np.argmin),
        (None,),
        kind="reduction",
        shape=shapes.nonempty_reduction,
        # the first NaN wins, as in NumPy
        c=f"{{0}} {_sign} {{acc}} || ({{0}} != {{0}} && {{acc}} == {{acc}})",
        initial=_initial,
        cheap=False,
        domain=REAL,
    )

# -- composites ------------------------------------------------------------------------------


def _peak(x: Any, axis: tuple[int, ...]) -> Any:
    largest = float(np.finfo(x.dtype if x.dtype.kind == "f" else np.float32).max)
    return fn.clip(fn.max(x, axis), -largest, largest)  # infinity - infinity would be NaN


def _lower_logsumexp(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    peak = _peak(x, axis)
    z = fn.log(fn.sum(fn.exp(x - peak), axis)) + peak
    return z if keepdims else fn.reshape(z, fn.sum(x, axis, False).shape)


def _lower_softmax(x: Any, axis: tuple[int, ...]) -> Any:
    e = fn.exp(x - _peak(x, axis))
    return e / fn.sum(e, axis)


def _lower_log_softmax(x: Any, axis: tuple[int, ...]) -> Any:
    shifted = x - _peak(x, axis)
    return shifted - fn.log(fn.sum(fn.exp(shifted), axis))


def _lower_cross_entropy(x: Any, t: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return -fn.sum(_lower_log_softmax(x, axis) * t, axis, keepdims)


register_operator(
    "logsumexp",
    1,
    None,
    (lambda dz, z, x, axis, keepdims: _kept(dz, x, axis) * fn.softmax(x, axis),),
    kind="composite",
    shape=shapes.nonempty_reduction,
    cheap=False,
    domain=REAL,
    lowering=_lower_logsumexp,
)
register_operator(
    "softmax",
    1,
    None,
    (lambda dz, z, x, axis: z * (dz - fn.sum(dz * z, axis)),),
    kind="composite",
    shape=shapes.along_axes,
    cheap=False,
    domain=REAL,
    lowering=_lower_softmax,
)
register_operator(
    "log_softmax",
    1,
    None,
    (lambda dz, z, x, axis: dz - fn.exp(z) * fn.sum(dz, axis),),
    kind="composite",
    shape=shapes.along_axes,
    cheap=False,
    domain=REAL,
    lowering=_lower_log_softmax,
)
register_operator(
    "cross_entropy_with_logits",
    2,
    None,
    (
        lambda dz, z, x, t, axis, keepdims: (
            _kept(dz, x, axis) * (fn.softmax(x, axis) * fn.sum(t, axis) - t)
        ),
        lambda dz, z, x, t, axis, keepdims: -_kept(dz, x, axis) * fn.log_softmax(x, axis),
    ),
    kind="composite",
    shape=shapes.cross_entropy,
    cheap=False,
    domain=((-3.0, 3.0), (0.0, 1.0)),
    lowering=_lower_cross_entropy,
)

# -- products --------------------------------------------------------------------------------


def _swapped(x: Any) -> Any:
    rank = x.ndim
    return fn.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _dot_right(dz: Any, z: Any, x: Any, y: Any) -> Any:
    if y.ndim == 2 and x.ndim > 2:  # one product over all rows, instead of a sum of many
        x, dz = fn.reshape(x, (-1, x.shape[-1])), fn.reshape(dz, (-1, dz.shape[-1]))
    return fn.dot(_swapped(x), dz)


register_operator(
    "dot",
    2,
    np.matmul,
    (lambda dz, z, x, y: fn.dot(dz, _swapped(y)), _dot_right),
    kind="product",
    shape=shapes.product,
    symbol="@",
    cheap=False,
    domain=REAL * 2,
)

# -- scans -----------------------------------------------------------------------------------


def _sum_of_following(dz: Any, z: Any, x: Any, axis: int) -> Any:
    backwards = (*(slice(None),) * axis, slice(None, None, -1), ...)
    return fn.cumsum(dz[backwards], axis)[backwards]


register_operator(
    "cumsum",
    1,
    nf.cumsum,
    (_sum_of_following,),
    kind="scan",
    shape=shapes.along_axis,
    cheap=False,
    domain=REAL,
)

# -- indexing --------------------------------------------------------------------------------


def _adjoint(name: str) -> Any:
    return lambda dz, z, x, indices, axis: build(
        name, (dz, indices), {"axis": axis, "size": x.shape[axis]}
    )


def _take_at(dz: Any, z: Any, values: Any, indices: Any, axis: int, size: int) -> Any:
    return fn.take(dz, indices, axis)


def _gather_at(dz: Any, z: Any, values: Any, indices: Any, axis: int, size: int) -> Any:
    return fn.gather(dz, indices, axis)


def _indexed(name: str, numpy: Function, rule: Function, shape: Function) -> None:
    register_operator(
        name,
        2,
        numpy,
        (rule, None),
        kind="indexing",
        shape=shape,
        index_operands=(1,),
        cheap=False,
        domain=REAL * 2,
    )


_indexed("take", nf.take, _adjoint("put"), shapes.take)
_indexed("put", nf.put, _take_at, shapes.put)
_indexed("gather", nf.gather, _adjoint("scatter"), shapes.gather)
_indexed("scatter", nf.scatter, _gather_at, shapes.scatter)
register_operator(
    "onehot",
    1,
    nf.onehot,
    (None,),
    kind="indexing",
    shape=shapes.onehot,
    index_operands=(0,),
    domain=REAL,
)

# -- structure -------------------------------------------------------------------------------


def _transpose_back(dz: Any, z: Any, x: Any, axes: tuple[int, ...]) -> Any:
    return fn.transpose(dz, tuple(axes.index(i) for i in range(len(axes))))


def _concatenate_rule(i: int, dz: Any, z: Any, *parts: Any, axis: int) -> Any:
    start = sum(part.shape[axis] for part in parts[:i])
    region = slice(start, start + parts[i].shape[axis])
    return dz[(slice(None),) * axis + (region, ...)]


def _embed_back(dz: Any, z: Any, x: Any, start: Any, step: Any, length: Any) -> Any:
    return build("embed", (dz,), {"start": start, "step": step, "size": x.shape})


def _slice_back(dz: Any, z: Any, x: Any, start: Any, step: Any, size: Any) -> Any:
    return build("slice", (dz,), {"start": start, "step": step, "length": x.shape})


def _view(name: str, numpy: Function, rule: Any, shape: Function) -> None:
    register_operator(name, 1, numpy, (rule,), kind="view", shape=shape, domain=REAL)


_view("transpose", lambda x, shape, axes: x.transpose(axes), _transpose_back, shapes.transpose)
_view("reshape", np.reshape, lambda dz, z, x: fn.reshape(dz, x.shape), shapes.reshape)
_view("broadcast", np.broadcast_to, lambda dz, z, x: dz, shapes.broadcast)
_view("slice", lambda x, shape, **at: x[(*shapes.region(**at), ...)], _embed_back, shapes.sliced)
register_operator(
    "embed", 1, nf.embed, (_slice_back,), kind="structural", shape=shapes.embed, domain=REAL
)
register_operator(
    "concatenate",
    None,
    nf.concatenate,
    _concatenate_rule,
    kind="structural",
    shape=shapes.concatenate,
)
register_operator("full", 0, nf.full, (), kind="structural", shape=shapes.full)
