"""What Python's operators and indices build: ``x + y``, ``x < y``, ``x[0, :]``, ``x[indices]``."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.optree.graph import postorder
from brainstorm.optree.registry import get_operator
from brainstorm.optree.shapes import normalize_index
from brainstorm.optree.text import SHORT, as_formula, described


def _operator_method(name: str, reflected: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Operators, other: Any) -> Any:
        # Python and NumPy would append sequences and arrays to the node, which is a tuple.
        if not isinstance(other, (Syntax, type(self), numbers.Number, tuple, list, np.ndarray)):
            return NotImplemented
        return self._build(name, (other, self) if reflected else (self, other))

    method.__doc__ = f"Build the node {name!r}."
    return method


class Operators:
    """Operators and comparisons: each builds a node."""

    __array_ufunc__ = None  # NumPy scalars and arrays leave operators to this class
    __hash__ = object.__hash__
    __iter__: Any = None
    __contains__: Any = None

    #: Returns the node of an operator's name, operands and options.
    _build: Any

    __add__, __radd__ = _operator_method("add"), _operator_method("add", True)
    __sub__, __rsub__ = _operator_method("sub"), _operator_method("sub", True)
    __mul__, __rmul__ = _operator_method("mul"), _operator_method("mul", True)
    __truediv__, __rtruediv__ = _operator_method("div"), _operator_method("div", True)
    __pow__, __rpow__ = _operator_method("pow"), _operator_method("pow", True)
    __mod__, __rmod__ = _operator_method("mod"), _operator_method("mod", True)
    __floordiv__, __rfloordiv__ = _operator_method("floordiv"), _operator_method("floordiv", True)
    __and__, __rand__ = _operator_method("and"), _operator_method("and", True)
    __or__, __ror__ = _operator_method("or"), _operator_method("or", True)
    __matmul__, __rmatmul__ = _operator_method("dot"), _operator_method("dot", True)
    __eq__, __ne__ = _operator_method("eq"), _operator_method("ne")
    __lt__, __le__ = _operator_method("lt"), _operator_method("le")
    __gt__, __ge__ = _operator_method("gt"), _operator_method("ge")

    def __neg__(self) -> Any:
        return self._build("neg", (self,))

    def __invert__(self) -> Any:
        return self._build("not", (self,))

    def __abs__(self) -> Any:
        return self._build("abs", (self,))

    def __bool__(self) -> NoReturn:
        raise ValidationError(
            f"op-tree: expected a question about values to be asked after execution, but "
            f"{as_formula(self, SHORT)} was used as a truth value. Compare trees with "
            "'is' (also instead of 'in'); execute the tree to get numbers."
        )

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("an op-tree holds no values: evaluate it to get an array")


class Syntax(Operators):
    """Operators and indices of expressions."""

    shape: Any

    def __getitem__(self, index: Any) -> Any:
        return slice_of(self, index)


def slice_of(x: Any, index: Any) -> Any:
    """Build ``x[index]`` from a slice and, if axes are removed or added, a reshape.

    One index may be an array of integers, or a tree or variable of them; then it is a `take`.
    """
    parts = parts_of(index)
    if arrays := arrays_in(parts):
        return _picked(x, parts, arrays[0])
    try:
        options, shape = normalize_index(parts, x.shape)
    except ValidationError as error:
        raise ValidationError(f"op-tree: index into {described(x)}: {error}.") from None
    part = x
    if options["length"] != x.shape or any(step != 1 for step in options["step"]):
        part = x._build("slice", (x,), options)
    return part if part.shape == shape else x._build("reshape", (part,), {"shape": shape})


def parts_of(index: Any) -> tuple[Any, ...]:
    """Return the parts between ``[ ]``; a node is a tuple, but counts as one part."""
    is_one = isinstance(index, Syntax) or not isinstance(index, tuple)
    return (index,) if is_one else index


def arrays_in(parts: tuple[Any, ...]) -> list[int]:
    """Return the numbers of the parts that are arrays, lists, trees or variables."""
    return [
        i
        for i, part in enumerate(parts)
        if isinstance(part, (Syntax, list)) or (isinstance(part, np.ndarray) and part.ndim)
    ]


def _picked(x: Any, parts: tuple[Any, ...], at: int) -> Any:
    others = (*parts[:at], *parts[at + 1 :])
    if not all(part is None or part is Ellipsis or isinstance(part, slice) for part in others):
        raise ValidationError(
            f"op-tree: index into {described(x)}: expected slices, None and '...' beside an array "
            "of indices. Index twice, x[0][indices]; for one element per row use gather."
        )
    indices = _indices(x, parts[at])
    axis = at - len(parts) if Ellipsis in parts[:at] else at
    return x._build("take", (slice_of(x, (*parts[:at], slice(None), *parts[at + 1 :])), indices),
                 {"axis": axis})  # fmt: skip


def _indices(x: Any, given: Any) -> Any:
    """Return an index as an expression; an array becomes a tensor if the tree has tensors."""
    found: Any = given if isinstance(given, Syntax) else np.asarray(given)
    is_mask = found.dtype.kind == "b" or (
        hasattr(found, "op") and get_operator(found.op).kind == "comparison"
    )
    if is_mask or (isinstance(found, np.ndarray) and found.dtype.kind not in "iu"):
        got = "a mask" if is_mask else f"an array of {found.dtype}"
        raise ValidationError(
            f"op-tree: index into {described(x)}: expected integers, got {got}. The shape of a "
            "tree cannot depend on values: choose by where(mask, x, 0)."
        )
    if isinstance(found, Syntax):
        return found
    backend = backend_of(x)
    if backend is None:
        raise ValidationError(
            f"op-tree: index into {described(x)}: expected indices as a variable or tree, got an "
            "array, and there are no tensors in the tree. Put the indices into a variable."
        )
    return backend.tensor(found)


def backend_of(tree: Any) -> Any:
    """Return the backend of the tensors of a tree; None if there are no tensors."""
    return next((x.backend for x in postorder([tree]) if hasattr(x, "backend")), None)
