"""Tensors: arrays of a handler that are leaves of op-trees, and compute when assigned."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from brainstorm.backend.shapeless import Shapeless
from brainstorm.errors import ValidationError
from brainstorm.optree import Expression, Formula, OpTreeNode, Program, Variable, View, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.shapes import Shape, normalize_index
from brainstorm.optree.syntax import arrays_in, parts_of, slice_of
from brainstorm.utils import Array

if TYPE_CHECKING:
    from brainstorm.backend.backend import Backend


def _inner(array: Array) -> Any:
    """Return the array inside a wrapper of a checking handler."""
    return getattr(array, "array", array)


def _described(array: Array) -> Any:
    """Return a NumPy array with the address, shape and strides of an array of any handler."""
    return array.shadow if hasattr(array, "shadow") else array


def _place_of(array: Any) -> View:
    """Identify the memory of an array by its owner's address, so that views can be compared."""
    owner = array = _described(array)
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    start, own = (x.__array_interface__["data"][0] for x in (owner, array))
    return View(start, own - start, array.shape, array.strides)


class Tensor(Variable):
    """An array of a handler, as a leaf of op-trees.

    Operators and functions build op-trees; ``t[...] = x`` computes. Comparisons build trees too:
    compare tensors with ``is``. Indices, `T`, `transpose` and `reshape` give views.

    Args:
        backend: The backend that computes.
        array: Array of the backend's handler.
        name: Used in text.
        base: The tensor that this is a view of.
        path: Rebuilds the view as nodes on `base`.
        draw: Returns random numbers of a shape: new ones whenever a tree with this leaf is
            assigned, the same at all its places in a tree. `Autodiff` does not draw: its gradients
            are those at the numbers of the last assignment, and none flows through this leaf.
    """

    def __init__(
        self,
        backend: Backend,
        array: Array,
        name: str | None = None,
        base: Tensor | None = None,
        path: Callable[[Any], Any] | None = None,
        draw: Callable[[Shape], np.ndarray] | None = None,
    ) -> None:
        inner = _inner(array)
        super().__init__(inner.shape, inner.dtype, name, _place_of(inner))
        self.backend = backend
        self.array = array
        self.base = base
        self._path = path
        self._draw = draw
        self.refresh()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles have memory of their own, and so another identity."""
        if self._draw is not None:
            options = self._draw, self.shape, self.dtype, self._name, None
            return type(self.backend)._random, (self.backend, *options)
        return type(self.backend).tensor, (self.backend, self.get(), self._name)

    @property
    def root(self) -> Tensor:
        """The tensor that holds the memory: itself, unless it is a view."""
        return self if self.base is None else self.base.root

    def on_root(self, root: Any) -> Any:
        """Return nodes that select this view from a tree of the root's shape."""
        if self.base is None or self._path is None:
            return root
        return self._path(self.base.on_root(root))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return bool(_inner(self.array).flags.c_contiguous)

    def _view(self, make: Callable[[Any], Any], path: Callable[[Any], Any]) -> Tensor:
        inner = _inner(self.array)
        array = make(inner) if inner is self.array else type(self.array)(make(inner))
        return self.backend.tensor_type(self.backend, array, self._name, self, path)

    # -- views -------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        parts = parts_of(index)
        if arrays_in(parts):
            return slice_of(self, parts)
        try:
            normalize_index(parts, self.shape)
        except ValidationError as error:
            raise ValidationError(f"tensor {self!r} of shape {self.shape}: {error}.") from None
        key = parts if any(part is Ellipsis for part in parts) else (*parts, ...)
        return self._view(lambda array: array[key], lambda x: slice_of(x, parts))

    def reshape(self, *shape: Any) -> Tensor:
        """Return a view of another shape; one length may be -1.

        Raises:
            ValidationError: If the sizes differ, or only a copy could have this shape.
        """
        wanted = fn.reshape(self, shape[0] if len(shape) == 1 else shape).shape
        inner = _inner(self.array)
        view = inner.reshape(wanted)
        if inner.size and not np.may_share_memory(_described(view), _described(inner)):
            raise ValidationError(
                f"tensor {self!r} of shape {self.shape}: reshaping to {wanted} would copy, because "
                "its elements do not lie in order. Copy it to a new tensor, or use be.reshape."
            )
        return self._view(lambda array: array.reshape(wanted), lambda x: fn.reshape(x, wanted))

    def transpose(self, *axes: Any, out: Tensor | None = None) -> Tensor:
        """Return a view with the axes in another order, or compute it; see `Expression`."""
        tree = super().transpose(*axes, out=out)
        if not isinstance(tree, OpTreeNode):
            return cast("Tensor", tree)
        order = tree.params["axes"]
        return self._view(lambda array: array.transpose(order), lambda x: fn.transpose(x, order))

    # -- content -----------------------------------------------------------------------------

    def get(self) -> np.ndarray:
        """Return a copy as a NumPy array."""
        return self.backend.handler.get_numpy_copy(self.array)

    asnumpyarray = get

    def set(self, values: Any) -> Tensor:
        """Copy numbers of this shape from anything NumPy accepts, and return the tensor."""
        source = np.asarray(values)
        if source.dtype.kind not in "biuf":
            raise ValidationError(
                f"tensor {self!r}: expected real numbers, got an array of {source.dtype}."
            )
        if source.shape != self.shape:
            raise ValidationError(
                f"tensor {self!r}: expected values of shape {self.shape}, got {source.shape}."
            )
        handler = self.backend.handler
        array = handler.create_from_numpy(np.asarray(source.astype(self.dtype)))
        handler.copy_to(array, self.array)
        return self

    def fill(self, value: float) -> Tensor:
        """Set every element to a number, and return the tensor."""
        return self.assign(value)

    def copy(self, source: Any) -> Tensor:
        """Copy `source` (as in ``t[:] = source``) into this tensor, and return it."""
        return self.assign(source)

    copy_from = copy

    def __setitem__(self, index: Any, value: Any) -> None:
        whole = index is Ellipsis or (isinstance(index, slice) and index == slice(None))
        target = self if whole else self[index]
        if not isinstance(target, Tensor):
            raise ValidationError(
                f"tensor {self!r}: expected int, slice, None or '...' as index of what is assigned "
                "to, got an array. Write x[:] = be.where(mask, value, x)."
            )
        target.assign(value)

    def refresh(self) -> None:
        """Draw new random numbers, if it is a tensor of them, before a tree is executed."""
        if self._draw is not None:
            self.set(self._draw(self.shape))

    def _program_of(self, tree: Expression) -> Program:
        """Return the program that broadcasts a tree to this shape.

        Trees are often executed many times, and keep their programs. The program of a variable fits
        all arrays like it.
        """
        try:
            if not isinstance(tree, OpTreeNode):
                return _copied_to(self.shape).program(tree)
            programs = tree.__dict__.setdefault("programs", {})
            if self.shape not in programs:
                programs[self.shape] = linearise(_broadcast(tree, self.shape))
            return programs[self.shape]
        except ValidationError:
            raise ValidationError(
                f"tensor {self!r}: expected an op-tree that broadcasts to {self.shape}, got "
                f"{tree!r} of shape {tree.shape}."
            ) from None

    def execute(self) -> Tensor:
        """Return the tensor; assignments to it have been executed already."""
        return self

    def assign(self, tree: Any) -> Tensor:
        """Compute and write an op-tree, tensor, number or array that broadcasts to this shape.

        Objects without shape (`be.rand()`, `be.onehot(indices, axis)`) get this one.

        Raises:
            ValidationError: If it does not broadcast, or contains variables without memory.
        """
        if isinstance(tree, Shapeless):
            tree = tree.of(self.shape)
        if isinstance(tree, Expression):
            program = self._program_of(tree)
            leaves: Any = program.inputs if isinstance(tree, OpTreeNode) else (tree,)
            for root in {id(v.root): v.root for v in leaves if isinstance(v, Tensor)}.values():
                root.refresh()
            self.backend.run(program, [self], inputs=leaves)
            return self
        if isinstance(tree, numbers.Real) and self.dtype == self.backend.handler.dtype:
            self.backend.handler.fill(self.array, tree)
            return self
        source = np.asarray(tree)
        try:
            source = np.broadcast_to(source, self.shape)
        except ValueError:
            raise ValidationError(
                f"tensor {self!r}: expected values that broadcast to {self.shape}, got shape "
                f"{source.shape}."
            ) from None
        return self.set(source)


def _broadcast(tree: Expression, shape: Shape) -> Any:
    return tree if tree.shape == shape else fn.broadcast_to(tree, shape)


@functools.lru_cache(maxsize=256)
def _copied_to(shape: Shape) -> Formula:
    return Formula(lambda x: _broadcast(x, shape))
