"""Op-trees as graphs: traversals that visit shared nodes once, without recursion."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from brainstorm.errors import ValidationError


def listed(given: Any) -> list[Any]:
    """Return one tree, or several, as a list; a node is a tuple, but counts as one."""
    is_one = hasattr(given, "shape") or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def expressions(given: Any) -> list[Any]:
    """Return one tree, or several, as a list.

    Raises:
        ValidationError: If something is neither a variable nor a node.
    """
    found = listed(given)
    for x in found:
        if not hasattr(x, "operands"):
            raise ValidationError(
                f"op-tree: expected op-trees or variables, got {type(x).__name__}."
            )
    return found


def postorder(roots: Any) -> list[Any]:
    """Return every variable and node of the graph once, operands before their users.

    Raises:
        ValidationError: If a root is neither.
    """
    order: list[Any] = []
    seen: set[int] = set()
    stack = expressions(roots)[::-1]
    while stack:
        node = stack[-1]
        if id(node) in seen:
            stack.pop()
            continue
        pending = [x for x in node.operands if id(x) not in seen and not _is_number(x)]
        if pending:
            stack.extend(reversed(pending))
        else:
            seen.add(id(node))
            order.append(node)
            stack.pop()
    return order


def postfix(root: Any, found: list[Any]) -> list[Any]:
    """Append a tree to a list as in neon: operands, repeated if shared, and then the op dict."""
    pending = [root]
    while pending:
        x = pending.pop()
        if hasattr(x, "op"):
            pending += [x[0], *reversed(x.operands)]
        else:
            found.append(x)
    return found


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float))


def key_of(root: Any) -> tuple[Hashable, ...]:
    """Return the key of the computation; see `OpTreeNode.key`."""
    numbering: dict[Hashable, int] = {}
    number_of: dict[int, int] = {}
    for node in postorder([root]):
        operands = tuple(x if _is_number(x) else (number_of[id(x)],) for x in node.operands)
        entry = (*node.own_key(), operands)
        number_of[id(node)] = numbering.setdefault(entry, len(numbering))
    return tuple(numbering)


def substitute(trees: Sequence[Any], replacements: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Return `trees` with nodes replaced by others of the same shape; shared nodes stay shared.

    Args:
        trees: Root nodes.
        replacements: Pairs (node of the trees, its replacement).

    Raises:
        ValidationError: If a replacement has another shape.
    """
    pairs = list(replacements)
    new = {id(old): by for old, by in pairs}
    for old, by in pairs:
        shape = getattr(by, "shape", "none")
        if old.shape != shape:
            raise ValidationError(
                f"op-tree: expected a replacement of shape {old.shape} for {old!r}, got {by!r} of "
                f"shape {shape}."
            )
    return rewrite(trees, lambda node, operands: new.get(id(node)))


def rewrite(trees: Sequence[Any], replace: Callable[[Any, tuple[Any, ...]], Any]) -> list[Any]:
    """Return `trees` with every node replaced by ``replace(node, rewritten operands)``.

    None stands for the same node on the rewritten operands. Shared nodes stay shared.
    """
    new: dict[int, Any] = {}
    trees = listed(trees)
    for node in postorder(trees):
        operands = tuple(new.get(id(x), x) for x in node.operands)
        result = replace(node, operands)
        if result is None:
            same = all(x is y for x, y in zip(operands, node.operands, strict=True))
            result = node if same else node.with_operands(operands)
        new[id(node)] = result
    return [new[id(tree)] for tree in trees]
