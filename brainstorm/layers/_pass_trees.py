"""The trees of both passes of a layer that is a formula, derived for given sizes.

A formula describes one time step of one sequence, on arrays (T, B, features...). From its trees
follow the outputs, the values that are worth storing for the backward pass, and the deltas and
gradients, which depend on variables only: inputs, parameters, stored values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brainstorm.errors import ValidationError
from brainstorm.optree import (
    Expression,
    OpTreeNode,
    Variable,
    gradients,
    is_expensive,
    postorder,
    saved_nodes,
    substitute,
)
from brainstorm.optree.graph import rewrite
from brainstorm.optree.text import SHORT, as_formula

#: Path below a layer, such as ``'inputs.default'``, to a variable or a tree.
Leaves = dict[str, Variable]
Trees = dict[str, Expression]


@dataclass(frozen=True)
class PassTrees:
    """The trees of both passes for one T and B.

    Attributes:
        operands: The inputs and the parameters.
        values: The outputs and the internals, i.e. values that the backward pass does not
            recompute, as trees over `operands`.
        stored: The stored values as variables, which the deltas and gradients refer to.
        gradients: The input deltas and the gradients.
    """

    operands: Leaves
    values: Trees
    stored: Leaves
    gradients: Trees


def derive_pass_trees(
    formula: Callable[..., Any], operands: Leaves, undifferentiated: Collection[str] = ()
) -> PassTrees:
    """Return the trees of both passes.

    The formula returns the tree of output ``default``, or those of all outputs, by name. Inputs are
    of shapes (T, B, features...). The paths `undifferentiated` are those of inputs and parameters
    without derivatives, and of outputs whose deltas are ignored.

    Raises:
        ValidationError: Shapes do not fit, there is no derivative, or the formula mixes time steps
            or sequences.
    """
    outputs, per_step = _outputs_of(formula, operands)
    used = {p.replace("outputs", "output_deltas"): p for p in outputs if p not in undifferentiated}
    roots = [outputs[path] for path in used.values()]
    errors = {path: _like(tree, path) for path, tree in zip(used, roots, strict=True)}
    wanted = {path: v for path, v in operands.items() if path not in undifferentiated}
    trees = gradients(roots, list(wanted.values()), list(errors.values()))
    known = {id(tree) for tree in outputs.values()}

    def is_stored(node: OpTreeNode) -> bool:
        is_worth_it = is_expensive(node) and id(node) in per_step and node.ndim > 2
        return is_worth_it or id(node) in known

    saved = saved_nodes(list(outputs.values()), trees, is_stored)
    saved = [node for node in saved if id(node) not in known]
    internals: Trees = {f"internals.{node.op}_{i}": node for i, node in enumerate(saved, 1)}
    values = outputs | internals
    nodes = {path: node for path, node in values.items() if isinstance(node, OpTreeNode)}
    variables = {path: _like(node, path) for path, node in nodes.items()}
    trees = substitute(trees, [(nodes[path], variables[path]) for path in nodes])
    occurring = {id(leaf) for leaf in postorder(trees)}
    stored = {**operands, **variables, **errors}
    return PassTrees(
        operands,
        values,
        {path: variable for path, variable in stored.items() if id(variable) in occurring},
        {_gradient_path(path): tree for path, tree in zip(wanted, trees, strict=True)},
    )


def _outputs_of(formula: Callable[..., Any], operands: Leaves) -> tuple[Trees, set[int]]:
    """Return the trees of the outputs, and the ids of all nodes with a value per time step."""
    found = formula(*operands.values())
    found = found if isinstance(found, Mapping) else {"default": found}
    for name, tree in found.items():
        if not isinstance(tree, Expression):
            raise ValidationError(f"output {name!r}: expected an op-tree, got {tree!r}.")
    trees = _with_equal_nodes_merged(list(found.values()))
    size = next(v.shape[:2] for path, v in operands.items() if path.startswith("inputs."))
    per_step = _nodes_per_step(operands, trees, size)
    for name, tree in zip(found, trees, strict=True):
        if id(tree) not in per_step or tree.ndim < 3:
            raise ValidationError(
                f"output {name!r}: expected a value for every time step and sequence, of shape "
                f"(T, B, features...), got {as_formula(tree, SHORT)} of shape {tree.shape}."
            )
    return {f"outputs.{name}": tree for name, tree in zip(found, trees, strict=True)}, per_step


def _like(tree: Expression, name: str) -> Variable:
    return Variable(tree.shape, tree.dtype, name)


def _gradient_path(path: str) -> str:
    category, _, name = path.partition(".")
    return f"{'input_deltas' if category == 'inputs' else 'gradients'}.{name}"


def _with_equal_nodes_merged(trees: Sequence[Expression]) -> list[Any]:
    """Return the trees with equal computations merged into one node, to be stored once."""
    known: dict[Hashable, OpTreeNode] = {}

    def replace(node: Expression, operands: tuple[Any, ...]) -> Any:
        if not isinstance(node, OpTreeNode):
            return None
        key = tuple(x if isinstance(x, (int, float)) else (id(x),) for x in operands)
        return known.setdefault((node.own_key(), key), node.with_operands(operands))

    return rewrite(trees, replace)


def _nodes_per_step(
    operands: Leaves, trees: Sequence[Expression], size: tuple[int, ...]
) -> set[int]:
    """Return the ids of all nodes that depend on inputs; these must begin with T and B."""
    found = {id(v) for path, v in operands.items() if path.startswith("inputs.")}
    for node in postorder(trees):
        if not any(id(x) in found for x in node.operands):
            continue
        if node.shape[:2] != size or (id(node.operands[0]) in found and _touches_steps(node)):
            raise ValidationError(
                f"expected every time step of every sequence to be treated alone, but "
                f"{as_formula(node, SHORT)} mixes or drops axis 0 (time) or 1 (sequence). Use "
                f"feature axes, such as axis=-1, and keep reduced ones; or write a Layer that "
                f"computes the formula with handler.compute."
            )
        found.add(id(node))
    return found


def _touches_steps(node: OpTreeNode) -> bool:
    """Return whether a node that keeps its shape moves or reduces along time or sequences."""
    axis = node.params.get("axis", ())
    axes = (axis,) if isinstance(axis, int) else axis
    return bool({0, 1} & set(axes)) or node.params.get("step", (1, 1))[:2] != (1, 1)
