"""Reverse-mode differentiation: from a tree to the trees of its gradients.

Gradients are ordinary trees, so they can be differentiated again. Each node of the graph is
visited once and adds a bounded number of nodes, however often it is shared. Gradient trees refer
to nodes of the forward tree; `saved_nodes` returns those whose values are worth storing for them,
and `substitute` replaces these by variables:

    dx, = gradients(loss, [x])
    saved = saved_nodes(loss, [dx])                 # compute together with the loss, and keep
    stored = [Variable(node.shape, node.dtype) for node in saved]
    backward = substitute([dx], zip(saved, stored))  # refers to variables only
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from brainstorm.errors import ValidationError
from brainstorm.optree import functions as fn
from brainstorm.optree import text
from brainstorm.optree.graph import expressions, listed, postorder
from brainstorm.optree.nodes import Expression, OpTreeNode, Variable, View
from brainstorm.optree.registry import get_operator
from brainstorm.optree.shapes import Shape

#: Start address of arrays that are only used to compare addresses.
PRETENDED_ADDRESS = 1 << 40
#: Work limit (see `numpy.shares_memory`) after which they count as overlapping. NumPy's stubs
#: before 2.5 do not expect an int.
_MOST_WORK: Any = 100_000


def gradients(
    root: Expression | Sequence[Expression],
    variables: Sequence[Expression],
    next_error: Expression | Sequence[Expression | None] | None = None,
) -> list[Any]:
    """Build the trees of the gradients of the sum of all elements of ``root * next_error``.

    Args:
        root: The tree to differentiate; or several, whose contributions add up.
        variables: The variables to differentiate with respect to; also nodes of the tree.
        next_error: Tree or variable of the root's shape, the gradient with respect to the root;
            None stands for ones. One per root, if several are given.

    Returns:
        One tree per variable, of its shape; zeros if the root does not depend on it.

    Raises:
        ValidationError: If shapes do not fit, an operator has no derivative, or a variable's
            memory overlaps that of another variable in the tree.
    """
    roots = expressions(root)
    errors = [None] * len(roots) if next_error is None else listed(next_error)
    if len(errors) != len(roots):
        raise ValidationError(
            f"op-tree: expected one next_error per root ({len(roots)}), got {len(errors)}."
        )
    order = postorder(roots)
    variables = expressions(variables)
    targets = {_identity(v) for v in variables}
    _refuse_overlaps(variables, order)
    active: set[Hashable] = set()
    for node in order:
        if _identity(node) in targets or any(_identity(x) in active for x in node.operands):
            active.add(_identity(node))

    gradient_of: dict[Hashable, Any] = {}
    for tree, error in zip(roots, errors, strict=True):
        _add(gradient_of, tree, _seed(tree, error))
    for node in reversed(order):
        dz = gradient_of.get(_identity(node))
        if dz is None or not isinstance(node, OpTreeNode) or _identity(node) not in active:
            continue
        operator = get_operator(node.op)
        for i, x in enumerate(node.operands):
            if _identity(x) in active and (rule := operator.rule(i)) is not None:
                contribution = rule(dz, node, *node.operands, **node.params)
                _add(gradient_of, x, _fitted(contribution, x, node.op))
    return [
        fn.full(v.shape, 0.0, _float_type(v)) if (g := gradient_of.get(_identity(v))) is None else g
        for v in variables
    ]


def _identity(x: Any) -> Hashable:
    return x.identity if isinstance(x, Variable) else id(x)


def _float_type(x: Expression) -> Any:
    return x.dtype if x.dtype.kind == "f" else np.float32


def _add(gradient_of: dict[Hashable, Any], x: Expression, contribution: Any) -> None:
    key = _identity(x)
    gradient_of[key] = gradient_of[key] + contribution if key in gradient_of else contribution


def _seed(tree: Expression, error: Expression | None) -> Any:
    if error is None:
        return fn.full(tree.shape, 1.0, _float_type(tree))
    if not isinstance(error, Expression) or error.shape != tree.shape:
        got = f"shape {error.shape}" if isinstance(error, Expression) else type(error).__name__
        raise ValidationError(
            f"op-tree: expected next_error to be an op-tree or variable of shape {tree.shape}, "
            f"which {text.as_formula(tree, text.SHORT)} has, got {got}."
        )
    return error


def _fitted(gradient: Any, x: Expression, op: str) -> Any:
    """Convert a gradient to the shape of its operand: undo broadcasting by summing."""
    if not isinstance(gradient, Expression):
        return fn.full(x.shape, gradient, _float_type(x))
    if gradient.shape == x.shape:
        return gradient
    lead = gradient.ndim - x.ndim
    aligned: Shape = (1,) * lead + x.shape
    # a rule may also return less than the operand's shape, to be broadcast
    pairs = list(zip(gradient.shape, aligned, strict=False))
    if lead < 0 or any(n not in (1, m) and m != 1 for n, m in pairs):
        raise ValidationError(
            f"op-tree: the derivative of {op!r} has shape {gradient.shape}, which does not "
            f"belong to its operand of shape {x.shape}. Correct the operator's rule."
        )
    expanded = tuple(i for i, (n, m) in enumerate(pairs) if m == 1 != n)
    if expanded:  # if axes only vanish, without a reshape, for which executors would copy
        gradient = fn.sum(gradient, expanded, keepdims=expanded != tuple(range(lead)))
    if gradient.ndim > x.ndim:
        gradient = fn.reshape(gradient, gradient.shape[lead:])
    return gradient if gradient.shape == x.shape else fn.broadcast_to(gradient, x.shape)


# -- overlapping memory ----------------------------------------------------------------------


def views_overlap(a: Variable, b: Variable) -> bool:
    """Return whether two variables are different views that share elements.

    Views whose elements interleave without touching, such as column slices of one buffer, do
    not overlap. In the rare case that this is too hard to decide, the result is true.
    """
    x, y = a.identity, b.identity
    if not (isinstance(x, View) and isinstance(y, View)):
        return False
    if x == y or x.allocation != y.allocation:
        return False
    try:
        return np.shares_memory(_pretended(a, x), _pretended(b, y), max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return True


def _pretended(variable: Variable, view: View) -> Any:
    """Return an array at a made-up address, whose elements must not be accessed."""
    described = {
        "version": 3,
        "data": (PRETENDED_ADDRESS + view.offset, True),
        "shape": view.shape,
        "strides": view.strides,
        "typestr": variable.dtype.str,
    }
    return np.asarray(SimpleNamespace(__array_interface__=described))


def _refuse_overlaps(variables: Sequence[Expression], order: Sequence[Expression]) -> None:
    targets, leaves = ([x for x in xs if isinstance(x, Variable)] for xs in (variables, order))
    for v, other in itertools.product(targets, leaves):
        if views_overlap(v, other):
            raise ValidationError(
                f"op-tree: the gradient with respect to {v!r} of shape {v.shape} would be "
                f"incomplete: the tree also contains {other!r} of shape {other.shape}, a "
                "different view that overlaps its memory. Use one variable, and slices or "
                "transposes of it as nodes (x[...], x.T), or copy one of the two."
            )


# -- values kept for the backward pass -------------------------------------------------------


def is_expensive(node: OpTreeNode) -> bool:
    """Return whether a value is stored for the backward pass rather than recomputed.

    True for transcendental functions, reductions, products and indexing.
    """
    return not get_operator(node.op).cheap


def saved_nodes(
    root: Expression | Sequence[Expression],
    gradient_trees: Sequence[Expression],
    store: Callable[[OpTreeNode], bool] = is_expensive,
) -> list[OpTreeNode]:
    """Find the forward nodes whose values the gradients use and that are worth storing.

    Args:
        root: The forward tree, or several.
        gradient_trees: The results of `gradients` for it.
        store: Decides per forward node; a node that is not stored is recomputed from its
            operands, down to stored nodes and variables.

    Returns:
        Forward nodes, operands before their users; the root itself may be among them.
    """
    forward = postorder(root)
    forward_ids = {id(node) for node in forward}
    saved: set[int] = set()
    seen: set[int] = set()
    stack = expressions(gradient_trees)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, OpTreeNode) and id(node) in forward_ids and store(node):
            saved.add(id(node))
        else:
            stack.extend(x for x in node.operands if isinstance(x, Expression))
    return [node for node in forward if isinstance(node, OpTreeNode) and id(node) in saved]
