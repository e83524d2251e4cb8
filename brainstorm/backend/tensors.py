"""Tensors, and the backend that makes them and computes op-trees on them."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.handlers import Handler
from brainstorm.optree import Expression, Formula, OpTreeNode, Program, Variable, View, linearise
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import compute_into, slice_of
from brainstorm.optree.shapes import Shape, normalize_index, normalize_shape
from brainstorm.randomness import RandomState
from brainstorm.utils import Array

__all__ = ["Backend", "RandomTensor", "Tensor"]


def _inner(array: Array) -> Any:
    """Return the array inside of one that a checking handler has wrapped."""
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
        base: The tensor of which this is a view.
        path: Rebuilds the view as nodes on `base`.
    """

    def __init__(
        self,
        backend: Backend,
        array: Array,
        name: str | None = None,
        base: Tensor | None = None,
        path: Callable[[Any], Any] | None = None,
    ) -> None:
        inner = _inner(array)
        super().__init__(inner.shape, inner.dtype, name, _place_of(inner))
        self.backend = backend
        self.array = array
        self.base = base
        self._path = path

    @property
    def root(self) -> Tensor:
        """The tensor that holds the memory: itself, unless it is a view."""
        return self if self.base is None else self.base.root

    def on_root(self, root: Any) -> Any:
        """Return the nodes that select from a tree of the root's shape what this view is."""
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
        return Tensor(self.backend, array, self._name, self, path)

    # -- views -------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Tensor:
        try:
            normalize_index(index, self.shape)
        except ValidationError as error:
            raise ValidationError(f"tensor {self!r} of shape {self.shape}: {error}.") from None
        parts = index if isinstance(index, tuple) else (index,)
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

    def transpose(self, *axes: Any) -> Tensor:
        """Return a view with the axes in another order; by default reversed."""
        given = axes[0] if len(axes) == 1 else axes or None
        order = fn.transpose(self, given).params["axes"]
        return self._view(lambda array: array.transpose(order), lambda x: fn.transpose(x, order))

    @property
    def T(self) -> Tensor:  # noqa: N802
        """The view with the axes reversed."""
        return self.transpose()

    # -- content -----------------------------------------------------------------------------

    def get(self) -> np.ndarray:
        """Return a copy as a NumPy array."""
        return self.backend.handler.get_numpy_copy(self.array)

    asnumpyarray = get

    def set(self, values: Any) -> Tensor:
        """Copy what NumPy takes for an array of numbers of this shape, and return the tensor."""
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
        (self if whole else self[index]).assign(value)

    def refresh(self) -> None:
        """Make the content new before a tree with this leaf is executed; see `RandomTensor`."""

    def _program_of(self, tree: Expression) -> Program:
        """Return the program that broadcasts a tree to this shape.

        Trees are often executed many times, and keep theirs. That of a variable takes any array
        like it.
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
        """Return the tensor; what was assigned to it has been executed already."""
        return self

    def assign(self, tree: Any) -> Tensor:
        """Compute and write an op-tree, tensor, number or array that broadcasts to this shape.

        Raises:
            ValidationError: If it does not, or the tree contains variables without memory.
        """
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


class RandomTensor(Tensor):
    """Random numbers, uniform in [0, 1): new ones whenever a tree with this leaf is assigned.

    Wherever it occurs in a tree it stands for the same numbers. `Autodiff` does not draw: its
    gradients are those at the numbers of the last assignment, and none goes through this leaf.
    """

    def refresh(self) -> None:
        """Draw from the random numbers of the backend."""
        uniform = self.backend.rnd.random_sample(self.size).reshape(self.shape)
        if self.dtype == np.float32:  # rounding could give 1
            uniform = np.floor(uniform * 2.0**24) * 2.0**-24
        self.set(uniform)


def _broadcast(tree: Expression, shape: Shape) -> Any:
    return tree if tree.shape == shape else fn.broadcast_to(tree, shape)


@functools.lru_cache(maxsize=256)
def _copied_to(shape: Shape) -> Formula:
    return Formula(lambda x: _broadcast(x, shape))


class Backend:
    """Makes tensors and op-trees, and computes them on a handler.

    Every function of `brainstorm.optree.functions` is a method, and takes a tensor `out` into which
    to compute at once.

    Args:
        handler: Where arrays live.
        dtype: Type of new tensors: float32 or float64.
        seed: Seeds `rand`.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Functions that build op-trees."""

    def __init__(self, handler: Handler, dtype: Any = np.float32, seed: int | None = None) -> None:
        self.handler = handler
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValidationError(
                f"gen_backend(datatype): expected float32 or float64, got {self.dtype.name}."
            )
        self.rnd = RandomState(seed)

    def _new(self, values: Any, dtype: Any, name: str | None) -> Tensor:
        values = np.asarray(values, self.dtype if dtype is None else dtype)
        return Tensor(self, self.handler.create_from_numpy(values), name)

    # -- tensors -----------------------------------------------------------------------------

    def array(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a new tensor with the values of a list, NumPy array or number.

        Without `dtype` it has the type of the backend, but an array of integers keeps its own.
        """
        if dtype is None and isinstance(ary, (np.ndarray, np.generic)) and ary.dtype.kind in "iu":
            dtype = ary.dtype
        return self._new(ary, dtype, name)

    def zeros(self, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a new tensor of zeros."""
        return self._new(np.zeros(normalize_shape(shape)), dtype, name)

    def ones(self, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a new tensor of ones."""
        return self._new(np.ones(normalize_shape(shape)), dtype, name)

    def empty(self, shape: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a new tensor; do not rely on its content."""
        return self.zeros(shape, dtype, name)

    def zeros_like(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return zeros of the shape of a tensor, tree or array, and of a tensor's type."""
        return self.zeros(ary.shape, _type_like(ary, dtype), name)

    def ones_like(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return ones of the shape of a tensor, tree or array, and of a tensor's type."""
        return self.ones(ary.shape, _type_like(ary, dtype), name)

    def empty_like(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a tensor of the shape of a tensor, tree or array, and of a tensor's type."""
        return self.empty(ary.shape, _type_like(ary, dtype), name)

    def rand(self, shape: Any, dtype: Any = None, name: str | None = None) -> RandomTensor:
        """Return a leaf of random numbers, uniform in [0, 1).

        They are drawn now, and again whenever a tree with this leaf is assigned:
        ``y[:] = x * (be.rand(x.shape) < 0.5)`` is another half of x each time.
        """
        array = self.empty(shape, dtype).array
        leaf = RandomTensor(self, array, name)
        leaf.refresh()
        return leaf

    # -- execution ---------------------------------------------------------------------------

    def run(
        self,
        program: Program,
        outputs: Sequence[Tensor],
        accumulate: Iterable[bool] = (),
        inputs: Sequence[Variable] | None = None,
    ) -> None:
        """Run a program on tensors.

        Args:
            program: From `brainstorm.optree.linearise`.
            outputs: One tensor per output, of its shape.
            accumulate: Per output whether to add to it; by default none.
            inputs: One tensor per input, of its shape and type; by default these themselves.

        Raises:
            ValidationError: If an input is no tensor, or one of another handler.
        """
        inputs = program.inputs if inputs is None else inputs
        for variable in inputs:
            if not isinstance(variable, Tensor):
                raise ValidationError(
                    f"op-tree: expected tensors as variables, got {variable!r} of shape "
                    f"{variable.shape}, which has no memory. Make it with be.array or be.empty."
                )
            if variable.backend.handler.array_type is not self.handler.array_type:
                raise ValidationError(
                    f"op-tree: expected tensors of {type(self.handler).__name__}, got {variable!r} "
                    f"of {type(variable.backend.handler).__name__}. Copy it: be.array(x.get())."
                )
        adding = tuple(accumulate) or (False,) * len(outputs)
        arrays = [v.array for v in inputs]  # type: ignore[attr-defined]
        self.handler.run_program(program, arrays, [t.array for t in outputs], adding)


def _type_like(ary: Any, dtype: Any) -> Any:
    return ary.dtype if dtype is None and isinstance(ary, Expression) else dtype


def _method(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def build(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
        tree = function(*args, **kwargs)
        return tree if out is None else compute_into(out, tree)

    return staticmethod(build)


for _name in fn.__all__:
    setattr(Backend, _name, _method(getattr(fn, _name)))
