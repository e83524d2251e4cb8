"""neon's rules where they differ from NumPy's, for ``gen_backend(compat='neon')``.

    x = be.array(np.arange(6).reshape(2, 3))   # float32: integers become the working type
    x[:, 0].shape, x[1, 2].shape               # (2, 1), (1, 1)
    be.array([1, 2, 3]).shape                  # (3, 1)
    be.argmax(x).shape                         # (2, 1): axis=1

New code does not need them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from brainstorm.backend.backend import Backend, real_type
from brainstorm.backend.shapeless import Shapeless
from brainstorm.backend.tensors import Tensor
from brainstorm.optree import Expression
from brainstorm.optree import functions as fn
from brainstorm.optree.syntax import parts_of


class NeonTensor(Tensor):
    """A tensor of at least two axes, whose integers are rounded and clipped to their type."""

    def __getitem__(self, index: Any) -> Any:
        """Return a view; integers remove an axis only if more than two are left."""
        found = super().__getitem__(index)
        if not isinstance(found, Tensor) or self.ndim < 2:
            return found
        spare, parts = self.ndim - 2, list(parts_of(index))
        for i, part in enumerate(parts):
            if hasattr(part, "__index__"):
                if spare <= 0:
                    parts[i] = slice(part, part + 1 or None)
                spare -= 1
        return super().__getitem__(tuple(parts))

    def transpose(self, *axes: Any, out: Tensor | None = None) -> Tensor:
        """Return a view; without `axes` the first of three axes stays in place."""
        if self.ndim == 3 and all(isinstance(axis, Tensor) for axis in axes):  # at most `out`
            axes = (0, 2, 1, *axes)
        return super().transpose(*axes, out=out)

    def assign(self, tree: Any) -> Tensor:
        """Compute and write; lists and arrays of one axis are columns."""
        if isinstance(tree, Shapeless):
            tree = tree.of(self.shape)
        if not isinstance(tree, Expression):
            values = np.asarray(tree)
            is_column = values.ndim == 1 and self.shape == (values.size, 1)
            return super().assign(values.reshape(self.shape) if is_column else tree)
        limits = _limits(self.dtype)
        if limits is not None and tree.dtype != self.dtype:
            tree = fn.clip(fn.rint(tree), *limits)
        return super().assign(tree)

    def set(self, values: Any) -> Tensor:
        return super().set(_limited(np.asarray(values), self.dtype))


def _limits(dtype: np.dtype) -> tuple[int, int] | None:
    """Return the limits of a type of integers as far as the working type has them."""
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return None
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _limited(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers rounded and clipped to be stored in a small type of integers."""
    limits = _limits(dtype)
    if limits is None or values.dtype.kind not in "biuf":
        return values
    return np.clip(np.rint(values), *limits)


class NeonBackend(Backend):
    """A backend whose tensors are `NeonTensor`.

    Integers become the working type unless another is given. Reductions keep their axes regardless
    of `keepdims`, and accept `out` as in neon; `argmax` and `argmin` reduce axis 1.
    """

    tensor_type = NeonTensor
    keeps_integers = False

    def _new(self, values: Any, dtype: Any, name: str | None) -> Tensor:
        values = np.asarray(values)
        if dtype is not None:
            values = _limited(values, real_type(dtype))
        shape = values.shape if values.ndim >= 2 else (*values.shape, 1, 1)[:2]  # a column
        return super()._new(values.reshape(shape), dtype, name)


def _creating(name: str) -> Callable[..., Tensor]:
    method = getattr(Backend, name)

    @functools.wraps(method)
    def create(self: NeonBackend, *args: Any, **options: Any) -> Tensor:
        for ignored in ("persist_values", "parallel"):
            options.pop(ignored, None)
        return cast("Tensor", method(self, *args[:3], **options))

    return create


def _reducing(name: str, axis: int | None, has_partial: bool) -> Any:
    function = getattr(Backend, name)

    def reduce(a: Any, axis: Any = axis, *rest: Any, out: Any = None, partial: Any = None,
               keepdims: bool = True) -> Any:  # fmt: skip
        return function(a, axis, out=rest[has_partial] if len(rest) > has_partial else out)

    reduce.__name__, reduce.__doc__ = name, function.__doc__
    return staticmethod(reduce)


for _name in ("array", "empty", "ones", "zeros", "empty_like", "ones_like", "zeros_like"):
    setattr(NeonBackend, _name, _creating(_name))
for _name in ("sum", "max", "min", "mean", "var", "std", "argmax", "argmin"):
    _axis = 1 if _name.startswith("arg") else None
    setattr(NeonBackend, _name, _reducing(_name, _axis, _name in ("mean", "var", "std")))
