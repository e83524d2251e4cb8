"""The nodes of an op-tree: variables, numbers, and operators on them.

    x, y = Variable((3, 1), name="x"), Variable((1, 4), name="y")
    tree = x * y + 1          # nothing is computed; tree.shape == (3, 4)

Nodes are immutable and may be shared, so a "tree" is in general a graph without cycles. Nothing
here recurses: the depth of a tree is limited by memory only. Every value of a tree has its
*working type*: the widest floating type among its variables, float32 if there is none; integer
variables and Python numbers take part in it without widening it.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from brainstorm.display import safe_repr
from brainstorm.errors import UnknownTypeError, ValidationError
from brainstorm.optree import text
from brainstorm.optree.graph import key_of, postfix, postorder
from brainstorm.optree.registry import Operator, get_operator
from brainstorm.optree.shapes import Params, Shape, normalize_shape, real_type
from brainstorm.optree.syntax import Syntax, backend_of, slice_of

FLOAT32: np.dtype[Any] = np.dtype(np.float32)


class Expression(Syntax):
    """A `Variable` or an `OpTreeNode`: an operand with a shape.

    Operators build nodes, including comparisons: ``x == y`` is a tree with values 0 and 1. Use
    ``is`` to test whether two expressions are the same object; they hash by identity.
    """

    dtype: np.dtype[Any]
    operands: tuple[Any, ...]

    @staticmethod
    def _build(op: str, operands: tuple[Any, ...], options: Params | None = None) -> Any:
        return build(op, operands, options)

    @safe_repr
    def __repr__(self) -> str:
        return f"<{self.dtype} {self.shape}>"

    def transpose(self, *axes: Any, out: Any = None) -> Any:
        """Return the tree with its axes in another order, by default reversed.

        Args:
            *axes: The order, as integers or one tuple.
            out: Tensor to compute into immediately; it may also be the last of `axes`.
        """
        if axes and isinstance(axes[-1], Variable):
            *axes, out = axes  # type: ignore[assignment]
        order = axes[0] if len(axes) == 1 else axes or None
        tree = build("transpose", (self,), {"axes": order})
        return tree if out is None else compute_into(out, tree)

    @property
    def T(self) -> Any:  # noqa: N802
        """The tree with its axes reversed."""
        return self.transpose()

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def traverse(self, stack: list[Any] | None = None) -> list[Any]:
        """Return every node below and this one, each once, operands before their users.

        Args:
            stack: As in neon: a list, to which operands and op dicts are appended in postfix
                order, and which is returned.
        """
        return postorder([self]) if stack is None else postfix(self, stack)

    def key(self) -> tuple[Hashable, ...]:
        """Return the key of the computation: equal for trees of equal structure and leaves."""
        return key_of(self)

    def pp(self) -> str:
        """Return the tree as a formula, e.g. ``(x0 * x0) + exp(x1)``."""
        return text.as_formula(self)


Operand: TypeAlias = Expression | float


class View(NamedTuple):
    """The memory that a variable stands for: its identity.

    Attributes:
        allocation: Identifies the allocated memory.
        offset: Bytes from its start to the first element.
        shape: Lengths of the axes.
        strides: Bytes from one element to the next, per axis.
    """

    allocation: Hashable
    offset: int
    shape: Shape
    strides: tuple[int, ...]


class Variable(Expression):
    """A leaf: an array that is given when the tree is executed.

    Args:
        shape: Its shape.
        dtype: Element type; floating, or integer for indices and the like.
        name: Used in text.
        identity: Hashable; variables of equal identity are the same variable for `gradients` and
            `linearise`. With a `View`, overlapping memory is recognized. Without it the variable
            stands for memory of its own.
    """

    operands: tuple[Any, ...] = ()

    def __init__(
        self,
        shape: int | Iterable[int],
        dtype: Any = np.float32,
        name: str | None = None,
        identity: Hashable | None = None,
    ) -> None:
        self._shape: Shape = normalize_shape(shape)
        self._dtype = real_type(dtype, name)
        self._name = name
        self._identity = identity
        if identity is None:
            itemsize, rank = self._dtype.itemsize, len(self._shape)
            strides = tuple(itemsize * math.prod(self._shape[i + 1 :]) for i in range(rank))
            self._identity = View(object(), 0, self._shape, strides)

    @property
    def shape(self) -> Shape:
        """Lengths of the axes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """Element type."""
        return self._dtype

    @property
    def name(self) -> str | None:
        """The name in text, if any."""
        return self._name

    @property
    def identity(self) -> Hashable:
        """The identity of the variable; see the class."""
        return self._identity

    def own_key(self) -> tuple[Hashable, ...]:
        """Return the variable's part of a key."""
        return self._identity, self._dtype

    def assign(self, tree: Operand) -> Any:
        """Execute `tree` into the variable's memory; only subclasses have memory."""
        raise ValidationError(
            f"op-tree: expected a tensor to assign to, got the plain variable {self!r}, which has "
            "no memory. Use a backend's tensor, or evaluate the tree."
        )

    @safe_repr
    def __repr__(self) -> str:
        return self._name or super().__repr__()


def _shape_of(x: Operand) -> Shape:
    """Return the shape of an operand; that of a number is ()."""
    return x.shape if isinstance(x, Expression) else ()


class OpTreeNode(Expression, tuple):
    """A tuple ``(op dict, left, right)``: an operator, its options and its operands.

    ``node[0]`` is the op dict (``'shape'``, ``'op'`` and the options; changes have no effect),
    ``node[1]`` and ``node[2]`` are the operands; an absent one is None, further ones follow. Any
    other index than a plain integer builds a slice: ``node[0, :]``, ``node[..., 1:]``.

    The constructor checks nothing; `build` does.

    Args:
        op_dict: The operator's name, the shape of the result, and options.
        *operands: Expressions, numbers, or None for an absent operand.
    """

    #: On nodes; ``OpTreeNode.shape(x)`` is that of any operand x.
    shape: Any = staticmethod(_shape_of)
    op: str
    params: Mapping[str, Any]

    def __new__(cls, op_dict: Mapping[str, Any], *operands: Any) -> OpTreeNode:
        """Create a node of exactly these parts."""
        present = tuple(x for x in operands if x is not None)
        params = {k: v for k, v in op_dict.items() if k not in ("op", "shape")}
        return _new_node(op_dict["op"], op_dict["shape"], params, present, _working_type(present))

    @staticmethod
    def build(op: str, *operands: Any, out: Any = None, **options: Any) -> Any:
        """Build a node; check its operands and determine its shape.

        Args:
            op: Name of an operator. ``'assign'`` executes the right operand into the left one.
            *operands: Expressions and numbers; None is skipped.
            out: Variable with memory into which the node is executed immediately.
            **options: Options, such as `axis` and `keepdims`.

        Returns:
            The node; a number if all operands are numbers; `out` if it was given.

        Raises:
            ValidationError: If operands do not fit; the message shows them and the tree.
            UnknownTypeError: If there is no such operator.
        """
        present = tuple(x for x in operands if x is not None)
        if op == "assign" and len(present) == 2:
            return compute_into(present[0], present[1])
        tree = build(op, present, options)
        return tree if out is None else compute_into(out, tree)

    def astensor(self) -> Any:
        """Compute the tree into a new tensor of the backend of its tensors."""
        backend = backend_of(self)
        if backend is None:
            raise ValidationError(f"op-tree: expected tensors in {self!r}. Evaluate the tree.")
        return backend.tensor(np.zeros(self.shape, self.dtype)).assign(self)

    def asnumpyarray(self) -> np.ndarray:
        """Compute the tree and return the value as a NumPy array."""
        return self.astensor().get()

    def __getitem__(self, index: Any) -> Any:
        return tuple.__getitem__(self, index) if type(index) is int else slice_of(self, index)

    def __iter__(self) -> Iterator[Any]:
        return tuple.__iter__(self)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"op-trees are immutable: cannot set {name!r}")

    def __copy__(self) -> OpTreeNode:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle all nodes as one list, to support any depth."""
        nodes = postorder([self])
        place = {id(node): (number,) for number, node in enumerate(nodes)}
        parts = [
            (x.op, x.shape, dict(x.params), tuple(place.get(id(y), y) for y in x.operands), x.dtype)
            if isinstance(x, OpTreeNode)
            else x
            for x in nodes
        ]
        return _assemble, (parts,)

    def __str__(self) -> str:
        return text.as_tuples(self)

    @safe_repr
    def __repr__(self) -> str:
        return text.as_tuples(self, text.SHORT)

    def execute(self) -> Any:
        """Execute an assignment, and return its target."""
        if self.op != "assign":
            raise ValidationError(
                f"op-tree: expected an assignment to execute, got {self!r}. Write out[:] = tree."
            )
        return compute_into(*self.operands)

    def own_key(self) -> tuple[Hashable, ...]:
        """Return the node's part of a key, without the operands."""
        return self.op, self.shape, self.dtype, tuple(self.params.items())

    def with_operands(self, operands: tuple[Any, ...]) -> OpTreeNode:
        """Return the same node with other operands, of the same shapes."""
        return _new_node(self.op, self.shape, self.params, operands, self.dtype)


def _new_node(
    op: str, shape: Shape, params: Params, operands: tuple[Any, ...], dtype: Any
) -> OpTreeNode:
    padded = operands if len(operands) > 1 else (*operands, None, None)[:2]
    node = tuple.__new__(OpTreeNode, ({"shape": shape, "op": op, **params}, *padded))
    node.__dict__.update(op=op, shape=shape, params=params, operands=operands, dtype=dtype)
    return node


def _assemble(parts: Sequence[Any]) -> Any:
    """Return the last of the nodes listed by `OpTreeNode.__reduce__`."""
    made: list[Any] = []
    for part in parts:
        if isinstance(part, tuple):
            op, shape, params, operands, dtype = part
            operands = tuple(made[x[0]] if isinstance(x, tuple) else x for x in operands)
            part = _new_node(op, shape, params, operands, dtype)
        made.append(part)
    return made[-1]


def _working_type(operands: Sequence[Any], skipped: tuple[int, ...] = ()) -> np.dtype[Any]:
    result = None
    for i, x in enumerate(operands):
        if isinstance(x, Expression) and x.dtype.kind == "f" and i not in skipped:
            if result is None:
                result = x.dtype
            elif result is not x.dtype:
                result = np.promote_types(result, x.dtype)
    return FLOAT32 if result is None else result


def _as_number(x: Any, operator: Operator) -> float:
    if isinstance(x, numbers.Integral):
        return int(x)
    if isinstance(x, (numbers.Number, np.bool_)) and not isinstance(x, complex):
        return float(x)  # type: ignore[arg-type]
    is_array = isinstance(x, (np.ndarray, list, tuple))
    remedy = " Put the values into a variable." if is_array else ""
    raise UnknownTypeError(
        f"op-tree {operator.name!r}: expected op-trees, variables and real numbers as operands, "
        f"got {type(x).__name__}.{remedy}"
    )


def build(op: str, operands: tuple[Any, ...], options: Mapping[str, Any] | None = None) -> Any:
    """Build a node from its operator's name, operands and options; see `OpTreeNode.build`."""
    operator = get_operator(op)
    # Most operands are exact Python numbers and nodes.
    operands = tuple(
        x if isinstance(x, Expression) or type(x) in (int, float) else _as_number(x, operator)
        for x in operands
    )
    if operator.arity is not None and len(operands) != operator.arity:
        raise ValidationError(
            f"op-tree {op!r}: expected {operator.arity} operands, got {len(operands)}."
        )
    given_numbers = [x for x in operands if not isinstance(x, Expression)]
    if given_numbers and not operator.is_elementwise:
        raise ValidationError(f"op-tree {op!r}: expected an op-tree or variable, got a number.")
    if operands and len(given_numbers) == len(operands):
        return fold(operator, operands)
    try:
        shapes = [x.shape if isinstance(x, Expression) else () for x in operands]
        shape, params = operator.shape(*shapes, **(options or {}))
    except (ValidationError, TypeError) as error:  # TypeError: of options that it does not have
        tree = _new_node(op, (), dict(options or {}), operands, FLOAT32)
        of = f" of {' and '.join(map(text.described, operands))}" if operands else ""
        raise ValidationError(
            f"op-tree {op!r}{of}: {error}. The tree: {text.as_formula(tree, text.SHORT)}"
        ) from (None if isinstance(error, ValidationError) else error)
    if operands:
        dtype = _working_type(operands, operator.index_operands)
    else:
        dtype = np.dtype(params["dtype"])
    return _new_node(op, shape, params, operands, dtype)


def fold(operator: Operator, operands: tuple[float, ...]) -> float:
    """Return the value of an element-wise operator on numbers."""
    if operator.lowering is not None:
        return float(operator.lower((), operands, {}))
    assert operator.numpy is not None
    out = np.empty((), np.float64)
    with np.errstate(all="ignore"):
        operator.numpy(*map(float, operands), out=out)
    return float(out)


def compute_into(target: Any, tree: Operand) -> Any:
    """Execute `tree` into the memory of a tensor, and return the tensor."""
    return checked_target(target).assign(tree)


def checked_target(target: Any) -> Any:
    """Return what a tree is to be computed into, or raise an error if it is no tensor."""
    if not isinstance(target, Variable):
        got = type(target).__name__
        raise ValidationError(f"op-tree: expected a tensor to assign to, got {got}. Use be.empty.")
    return target
