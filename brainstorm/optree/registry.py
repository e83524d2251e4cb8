"""Operators, and the table of all of them.

The rows are in `operators` (element-wise) and `shaped_operators` (everything else). Users add rows
with `register_operator`; everything that uses the table (building, differentiation, executors,
contract tests) then supports the new operator too.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from brainstorm import errors
from brainstorm.errors import UnknownTypeError, ValidationError
from brainstorm.optree import shapes

#: ``rule(dz, z, *inputs, **options) -> tree``
Rule: TypeAlias = Callable[..., Any]

#: Kinds that executors distinguish. 'composite' operators have a lowering to operators of other
#: kinds; a 'view' selects elements of the operand's memory; a 'scan' accumulates along an axis; an
#: 'assembly' consists of its operands and zeros; a 'constant' is a number in some shape.
KINDS = (
    "elementwise",
    "comparison",
    "reduction",
    "product",
    "indexing",
    "scan",
    "view",
    "assembly",
    "constant",
    "composite",
)


@dataclass(frozen=True)
class Operator:
    """One row of the table.

    Attributes:
        name: The name, as in ``{'op': 'add'}``.
        arity: Number of operands; None: any number.
        kind: One of `KINDS`. Comparisons are element-wise with values 0 and 1.
        numpy: ``numpy(*inputs, out=array, **options)`` writes the value. Inputs have the working
            type (indices: any) or are numbers. For element-wise operators, `out` may be one of the
            inputs. For views: ``numpy(x, shape, **options)`` returns it. None if there is a
            lowering.
        shape: ``shape(*shapes, **options) -> (shape, options in normal form)``.
        derivative: One rule per operand: ``rule(dz, z, *inputs, **options)`` returns the tree of
            the gradient, given the trees of the output's gradient and value and of the inputs. It
            may have the shape of the output: the caller undoes broadcasting. None in place of a
            rule: zero everywhere. For operators of any arity, a single rule with the operand's
            number as its first argument. None instead of all: not differentiable.
        c: Expression in C, CUDA C and C++ for one element of type ``T`` (float or double), with
            ``<tgmath.h>`` in C. ``{0}``, ``{1}``, ... are names of variables. Reductions: the new
            value of ``{acc}``; argmax and argmin: whether ``{0}`` replaces ``{acc}``.
            Empty: the operator only moves elements to other places, or is lowered, or has no C
            form.
        initial: C expression of a reduction's initial value; LOWEST and HIGHEST are T's limits.
        joins: OpenMP's name of the reduction that combines results of parts; '' if there is none.
        exact: '': integers are converted to the working type. 'kept': they are not, here and below.
            'total': results such as sums have a wider type. 'index': results are indices.
        symbol: Infix sign for printing trees.
        cheap: Whether a gradient recomputes the value rather than storing it.
        index_operands: Operands that are indices, and do not influence the working type.
        domain: For each operand an interval on which tests compare value and derivative.
        lowering: ``lowering(*inputs, **options) -> tree`` with the same value, of operators
            without a lowering, which replace it in programs.
    """

    name: str
    arity: int | None
    kind: str
    numpy: Callable[..., Any] | None
    shape: Callable[..., shapes.ShapeAndParams]
    derivative: tuple[Rule | None, ...] | Rule | None = None
    c: str = ""
    initial: str = ""
    joins: str = ""
    exact: str = ""
    symbol: str = ""
    cheap: bool = True
    index_operands: tuple[int, ...] = ()
    domain: tuple[tuple[float, float], ...] = ()
    lowering: Callable[..., Any] | None = None

    @property
    def is_elementwise(self) -> bool:
        """Whether each element of the result depends on one element of each operand."""
        return self.kind in ("elementwise", "comparison")

    def lower(
        self, shape: shapes.Shape, operands: tuple[Any, ...], options: Mapping[str, Any]
    ) -> Any:
        """Return the lowering of the operator on operands: a tree, or a number for numbers.

        Raises:
            ValidationError: It returns something else, or a tree of another shape.
        """
        assert self.lowering is not None
        tree = self.lowering(*operands, **options)
        wants_tree = not operands or any(hasattr(x, "operands") for x in operands)
        is_kind = hasattr(tree, "operands") if wants_tree else isinstance(tree, numbers.Real)
        if not is_kind or (wants_tree and tree.shape != shape):
            expected = f"an op-tree of shape {shape}" if wants_tree else "a number"
            got = f"one of shape {tree.shape}" if is_kind else f"a {type(tree).__name__}"
            raise ValidationError(
                f"op-tree: operator {self.name!r}: expected its lowering to return {expected}, got "
                f"{got}. Correct the function that was given to register_operator."
            )
        return tree

    def rule(self, operand: int) -> Rule | None:
        """Return the derivative with respect to an operand; None if it is zero.

        Raises:
            ValidationError: If the operator is not differentiable.
        """
        if self.derivative is None:
            raise ValidationError(
                f"op-tree: operator {self.name!r} has no derivative. Register it with a rule per "
                "operand (None for those whose gradient is zero), or take gradients only with "
                "respect to variables that do not pass through it."
            )
        if isinstance(self.derivative, tuple):
            return self.derivative[operand]
        whole = self.derivative
        return lambda *inputs, **options: whole(operand, *inputs, **options)


_table: dict[str, Operator] = {}

#: Operator name -> `Operator`; `register_operator` adds to it.
OPERATORS: Mapping[str, Operator] = MappingProxyType(_table)


def register_operator(
    name: str,
    arity: int | None,
    numpy: Callable[..., Any] | None,
    derivative: tuple[Rule | None, ...] | Rule | None = None,
    *,
    kind: str = "elementwise",
    shape: Callable[..., shapes.ShapeAndParams] = shapes.elementwise,
    **attributes: Any,
) -> Operator:
    """Add an operator to the table; trees are then built with ``OpTreeNode.build(name, ...)``.

    Args:
        name: A name that is not taken.
        arity: Number of operands; None: any number.
        numpy: Function with an argument ``out``, e.g. a ufunc. None for one with a lowering.
        derivative: One rule per operand; see `Operator`, as for the following arguments.
        kind: One of `KINDS`.
        shape: Shape rule; by default all operands broadcast together.
        **attributes: ``c``, ``domain``, ``cheap`` and the other attributes of `Operator`.

    Raises:
        ValidationError: If the name is taken, the kind unknown, or rules or values are missing.

    Example:
        >>> register_operator("cube", 1, lambda x, out: np.power(x, 3, out=out),
        ...                   (lambda dz, z, x: dz * 3 * x * x,), c="{0} * {0} * {0}")
    """
    if not isinstance(name, str) or not name:
        raise ValidationError(f"register_operator: expected a name, got {name!r}.")
    if name in _table:
        raise ValidationError(f"op-tree: operator {name!r} exists already. Choose another name.")
    if kind not in KINDS:
        raise ValidationError(errors.unknown("kind of operator", kind, KINDS))
    where = f"op-tree: operator {name!r}"
    names = [field.name for field in dataclasses.fields(Operator)]
    if wrong := [key for key in attributes if key not in names]:
        raise ValidationError(f"{where}: {errors.unknown('attribute', wrong[0], names)}")
    rules = derivative if isinstance(derivative, tuple) else (derivative,)
    functions = (numpy, shape, attributes.get("lowering"), *rules)
    if wrong := [x for x in functions if x is not None and not callable(x)]:
        raise ValidationError(
            f"{where}: expected functions, and a tuple of them as rules, got {wrong[0]!r}."
        )
    if isinstance(derivative, tuple) and len(derivative) != arity:
        raise ValidationError(
            f"{where}: expected one derivative rule per operand ({arity}), got "
            f"{len(derivative)}. Write None for an operand whose gradient is zero."
        )
    if (numpy is None) == (attributes.get("lowering") is None):
        raise ValidationError(
            f"{where}: expected either a NumPy function or a lowering. Programs have the operators "
            "of the lowering in its place."
        )
    row = Operator(name, arity, kind, numpy, shape, derivative, **attributes)
    _table[name] = row
    return row


def get_operator(name: str) -> Operator:
    """Return the operator called `name`.

    Raises:
        UnknownTypeError: If there is none; the message lists the names.
    """
    try:
        return _table[name]
    except KeyError:
        raise UnknownTypeError(errors.unknown("operator", name, sorted(_table))) from None
