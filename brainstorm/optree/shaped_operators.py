"""The operator table, second part: reductions, products, indexing and structure.

Derivatives are built from the same operators: every operator that moves elements is defined next
to its adjoint (slice and embed, take and put, gather and scatter, broadcast and sum).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from brainstorm.optree import functions as fn
from brainstorm.optree import numpy_functions as nf
from brainstorm.optree import shapes
from brainstorm.optree.nodes import build
from brainstorm.optree.registry import register_operator
from brainstorm.optree.shapes import kept_shape

REAL = (-3.0, 3.0)


def _row(
    name: str,
    kind: str,
    numpy: Callable[..., Any] | None,
    shape: Callable[..., Any],
    *rules: Any,
    **more: Any,
) -> None:
    """Add an operator with a rule per operand; only moving elements is cheap."""
    more = {
        "domain": (REAL,) * len(rules),
        "cheap": kind in ("view", "assembly", "constant"),
        **more,
    }
    register_operator(name, len(rules), numpy, rules, kind=kind, shape=shape, **more)


def _kept(tree: Any, x: Any, axis: tuple[int, ...]) -> Any:
    """Restore the reduced axes of a reduction of x, with length 1."""
    shape = kept_shape(x.shape, axis)
    return tree if tree.shape == shape else fn.reshape(tree, shape)


# -- reductions ------------------------------------------------------------------------------


def _sum_back(dz: Any, z: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return fn.broadcast_to(_kept(dz, x, axis), x.shape)


def _extreme(dz: Any, z: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return fn.where(fn.equal(x, _kept(z, x, axis)), _kept(dz, x, axis), 0)


def _of_others(dz: Any, z: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return dz times the product of the other factors, without dividing by zero."""
    is_zero = fn.equal(x, 0)
    others = fn.sum(is_zero, axis) - is_zero
    product = fn.prod(fn.where(is_zero, 1, x), axis) / fn.where(is_zero, 1, x)
    return _kept(dz, x, axis) * fn.where(others, 0, product)


_row("sum", "reduction", np.add.reduce, shapes.reduction, _sum_back,
     c="{acc} + {0}", initial="(T)0", joins="+", exact="total")  # fmt: skip
_row("prod", "reduction", np.multiply.reduce, shapes.reduction, _of_others,
     c="{acc} * {0}", initial="(T)1", joins="*", exact="total")  # fmt: skip
for _name, _numpy, _index, _sign, _initial in (
    ("max", np.maximum, np.argmax, ">", "LOWEST"),
    ("min", np.minimum, np.argmin, "<", "HIGHEST"),
):
    _row(_name, "reduction", _numpy.reduce, shapes.nonempty_reduction, _extreme,
         c=f"({{0}} {_sign} {{acc}} || {{0}} != {{0}}) ? {{0}} : {{acc}}",
         initial=_initial, joins=f"bs_{_name}", exact="kept")  # fmt: skip
    # the first NaN wins, as in NumPy
    _row(f"arg{_name}", "reduction", nf.index_of(_index), shapes.nonempty_reduction, None,
         c=f"{{0}} {_sign} {{acc}} || ({{0}} != {{0}} && {{acc}} == {{acc}})",
         initial=_initial, exact="index")  # fmt: skip

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


_row("logsumexp", "composite", None, shapes.nonempty_reduction,
     lambda dz, z, x, axis, keepdims: _kept(dz, x, axis) * fn.softmax(x, axis),
     lowering=_lower_logsumexp)  # fmt: skip
_row("softmax", "composite", None, shapes.along_axes,
     lambda dz, z, x, axis: z * (dz - fn.sum(dz * z, axis)),
     lowering=_lower_softmax)  # fmt: skip
_row("log_softmax", "composite", None, shapes.along_axes,
     lambda dz, z, x, axis: dz - fn.exp(z) * fn.sum(dz, axis),
     lowering=_lower_log_softmax)  # fmt: skip
_row("cross_entropy_with_logits", "composite", None, shapes.cross_entropy,
     lambda dz, z, x, t, axis, keepdims: (
         _kept(dz, x, axis) * (fn.softmax(x, axis) * fn.sum(t, axis) - t)
     ),
     lambda dz, z, x, t, axis, keepdims: -_kept(dz, x, axis) * fn.log_softmax(x, axis),
     domain=(REAL, (0.0, 1.0)), lowering=_lower_cross_entropy)  # fmt: skip

# -- products --------------------------------------------------------------------------------


def _swapped(x: Any) -> Any:
    rank = x.ndim
    return fn.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _dot_right(dz: Any, z: Any, x: Any, y: Any) -> Any:
    if y.ndim == 2 and x.ndim > 2:  # one product over all rows, instead of a sum of many
        rows = math.prod(x.shape[:-1])  # not -1: an axis may have no elements
        x, dz = fn.reshape(x, (rows, x.shape[-1])), fn.reshape(dz, (rows, dz.shape[-1]))
    return fn.dot(_swapped(x), dz)


_row("dot", "product", np.matmul, shapes.product,
     lambda dz, z, x, y: fn.dot(dz, _swapped(y)), _dot_right, symbol="@",
     exact="kept")  # fmt: skip

# -- scans -----------------------------------------------------------------------------------


def _sum_of_following(dz: Any, z: Any, x: Any, axis: int) -> Any:
    backwards = (*(slice(None),) * axis, slice(None, None, -1), ...)
    return fn.cumsum(dz[backwards], axis)[backwards]


_row("cumsum", "scan", nf.cumsum, shapes.along_axis, _sum_of_following, exact="total")

# -- indexing --------------------------------------------------------------------------------


def _added_at(name: str) -> Any:
    return lambda dz, z, x, indices, axis: build(
        name, (dz, indices), {"axis": axis, "size": x.shape[axis]}
    )


def _found_at(name: str) -> Any:
    return lambda dz, z, values, indices, axis, size: build(name, (dz, indices), {"axis": axis})


for _name, _rule in {
    "take": _added_at("put"),
    "put": _found_at("take"),
    "gather": _added_at("scatter"),
    "scatter": _found_at("gather"),
}.items():
    _row(_name, "indexing", getattr(nf, _name), getattr(shapes, _name), _rule, None,
         index_operands=(1,), exact="kept" if _name in ("take", "gather") else "")  # fmt: skip
_row("onehot", "indexing", nf.onehot, shapes.onehot, None, index_operands=(0,), cheap=True)

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


_row("transpose", "view", lambda x, shape, axes: x.transpose(axes), shapes.transpose,
     _transpose_back)  # fmt: skip
_row("reshape", "view", np.reshape, shapes.reshape, lambda dz, z, x: fn.reshape(dz, x.shape))
_row("broadcast", "view", np.broadcast_to, shapes.broadcast, lambda dz, z, x: dz, c="{0}")
_row("slice", "view", lambda x, shape, **at: x[(*shapes.region(**at), ...)], shapes.sliced,
     _embed_back)  # fmt: skip
_row("embed", "assembly", nf.embed, shapes.embed, _slice_back, exact="kept")
_row("full", "constant", nf.full, shapes.full, c="{0}")
register_operator(
    "concatenate",
    None,
    nf.concatenate,
    _concatenate_rule,
    kind="assembly",
    shape=shapes.concatenate,
    exact="kept",
)
