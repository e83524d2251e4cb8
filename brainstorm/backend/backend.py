"""The backend: creates tensors, and computes op-trees on them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from brainstorm.backend.routines import Routines
from brainstorm.backend.shapeless import Shapeless, combined
from brainstorm.backend.tensors import Tensor
from brainstorm.display import safe_repr
from brainstorm.errors import ValidationError, shown
from brainstorm.handlers import Handler
from brainstorm.optree import Expression, Program, Variable
from brainstorm.optree import functions as fn
from brainstorm.optree.nodes import compute_into
from brainstorm.optree.shapes import Shape, kept_shape, normalize_axis, normalize_shape
from brainstorm.randomness import RandomState


class Backend(Routines):
    """Creates tensors and op-trees, and computes them on a handler.

    Every function of `brainstorm.optree.functions` is a method, and accepts a tensor `out`, by name
    or after the operands, to compute into immediately.

    Args:
        handler: The handler of the arrays.
        dtype: Type of new tensors: float32 or float64; by default that of the handler.
        seed: Seeds `rand`.
        batch_size: See `iobuf`.

    Attributes:
        default_dtype: The type of new tensors.
        bsz: The batch size; it may be changed.
        rng: The random numbers; `reset()` restarts them.
    """

    tensor_type = Tensor
    keeps_integers = True

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Functions that build op-trees."""

    @safe_repr
    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.handler!r})"

    def __init__(
        self,
        handler: Handler,
        dtype: Any = None,
        seed: int | None = None,
        batch_size: int = 0,
    ) -> None:
        self.handler = handler
        self.dtype = self.default_dtype = real_type(handler.dtype if dtype is None else dtype)
        self.bsz = batch_size
        if self.dtype not in (np.float32, np.float64):
            raise ValidationError(
                f"gen_backend(datatype): expected float32 or float64, got {self.dtype.name}."
            )
        self.rnd = self.rng = RandomState(seed)

    # -- tensors -----------------------------------------------------------------------------

    def tensor(self, values: np.ndarray, name: str | None = None) -> Tensor:
        """Return a new tensor of exactly the shape, type and values of an array."""
        return self.tensor_type(self, self.handler.create_from_numpy(values), name)

    def _new(self, values: Any, dtype: Any, name: str | None) -> Tensor:
        wanted = self.dtype if dtype is None else real_type(dtype)
        return self.tensor(np.asarray(values, wanted), name)

    def array(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a new tensor with the values of a list, NumPy array or number.

        Without `dtype` it has the type of the backend, but an array of integers keeps its own.
        """
        is_typed = self.keeps_integers and isinstance(ary, (np.ndarray, np.generic))
        ary = _numbers_of(ary)
        if dtype is None and is_typed and ary.dtype.kind in "iu":
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
        return self.zeros(*_like(ary, dtype), name)

    def ones_like(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return ones of the shape of a tensor, tree or array, and of a tensor's type."""
        return self.ones(*_like(ary, dtype), name)

    def empty_like(self, ary: Any, dtype: Any = None, name: str | None = None) -> Tensor:
        """Return a tensor of the shape of a tensor, tree or array, and of a tensor's type."""
        return self.empty(*_like(ary, dtype), name)

    def rand(
        self, shape: Any = None, dtype: Any = None, name: str | None = None, out: Any = None
    ) -> Any:
        """Return a leaf of random numbers, uniform in [0, 1).

        They are drawn now, and again whenever a tree with this leaf is assigned, so
        ``y[:] = x * (be.rand() < 0.5)`` selects another half of x each time.

        Args:
            shape: Their shape; None: that of the other operands or of the assignment.
            dtype: Their type.
            name: Used in text.
            out: Tensor to fill instead; may be given in place of the shape.
        """
        return self._random(self._uniform, shape, dtype, name, out)

    def randn(
        self, shape: Any = None, dtype: Any = None, name: str | None = None, out: Any = None
    ) -> Any:
        """Return a leaf of random numbers with mean 0 and deviation 1; otherwise as `rand`."""
        return self._random(self.rnd.standard_normal, shape, dtype, name, out)

    def _uniform(self, shape: Shape) -> np.ndarray:
        numbers = self.rnd.random_sample(shape)
        if self.dtype == np.float32:  # rounding could give 1
            numbers = np.floor(numbers * 2.0**24) * 2.0**-24
        return numbers

    def _random(self, draw: Any, shape: Any, dtype: Any, name: str | None, out: Any) -> Any:
        def make(shape: Shape) -> Tensor:
            array = Backend.empty(self, shape, dtype).array
            return self.tensor_type(self, array, name, draw=draw)

        if isinstance(shape, Tensor):
            shape, out = None, shape
        if out is not None:
            return out.assign(draw(out.shape))
        return Shapeless(make, "random numbers") if shape is None else make(shape)

    def onehot(self, indices: Expression, axis: int, size: Any = None, out: Any = None) -> Any:
        """Return 1 at the index and 0 elsewhere.

        Args:
            indices: Class numbers.
            axis: The axis of the classes.
            size: Number of classes; `axis` has length 1 and gets that length. None: the length of
                the axis in the other operands or in the assignment; the indices then lie along the
                other axes, whatever their shape.
            out: Tensor to compute into; may be given in place of the size.
        """

        def make(shape: Shape) -> Any:
            try:
                at = normalize_axis(axis, len(shape))
            except ValidationError as error:
                raise ValidationError(f"{what} as {shape}: {error}.") from None
            kept = kept_shape(shape, (at,))
            if indices.size != math.prod(kept):
                raise ValidationError(
                    f"{what} as {shape}: expected {math.prod(kept)} indices, one for each place "
                    f"along the other axes, got {indices.size}."
                )
            return fn.onehot(fn.reshape(indices, kept), at, shape[at])

        what = f"onehot({indices!r}, axis={axis})"
        if isinstance(size, Tensor):
            size, out = None, size
        if size is None:
            tree: Any = Shapeless(make, what)
        else:
            tree = fn.onehot(indices, axis, size)
        return tree if out is None else compute_into(out, tree)

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
            accumulate: Whether to add to each output; by default to none.
            inputs: One tensor per input, of its shape and type; by default the inputs themselves.

        Raises:
            ValidationError: If an input is not a tensor, or one of another handler.
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


def real_type(dtype: Any) -> np.dtype:
    """Return a type as a NumPy dtype, which must be one of real numbers."""
    with contextlib.suppress(TypeError, ValueError):
        found: np.dtype = np.dtype(dtype)
        if found.kind in "biuf":
            return found
    raise ValidationError(f"expected a type of real numbers such as 'float32', got {dtype!r}.")


def _numbers_of(values: Any) -> np.ndarray:
    """Return numbers as an array; for a tensor, its content."""
    with contextlib.suppress(TypeError, ValueError):
        found = np.asarray(values.get() if isinstance(values, Tensor) else values)
        if found.dtype.kind in "biuf":
            return found
    raise ValidationError(
        f"array: expected real numbers, in lists of equal lengths or an array, got "
        f"{shown(values)}. Trees are evaluated by assigning them to a tensor."
    )


def _like(ary: Any, dtype: Any) -> tuple[Shape, Any]:
    """Return the shape of a tensor, tree or array, and the type of a tensor unless one is given."""
    if not hasattr(ary, "shape"):
        raise ValidationError(f"expected a tensor, tree or array to be like, got {shown(ary)}.")
    return ary.shape, ary.dtype if dtype is None and isinstance(ary, Expression) else dtype


def _method(function: Callable[..., Any]) -> Any:
    parameters = inspect.signature(function).parameters.values()
    operands = sum("Operand" in p.annotation or "Expression" in p.annotation for p in parameters)

    @functools.wraps(function)
    def build(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
        for i, argument in enumerate(args[operands:], operands):
            if isinstance(argument, Tensor):  # options are never tensors
                args, out = (*args[:i], *args[i + 1 :]), argument
                break
        if any(isinstance(argument, Shapeless) for argument in args):
            tree = combined(function, *args, **kwargs)
        else:
            tree = function(*args, **kwargs)
        return tree if out is None else compute_into(out, tree)

    return staticmethod(build)


for _name in fn.__all__:
    if _name not in Backend.__dict__:
        setattr(Backend, _name, _method(getattr(fn, _name)))
