"""Op-trees as text: as tuples, and as formulas.

A tree with shared nodes can be exponentially long when written out; text is cut at a limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from brainstorm.optree.registry import OPERATORS

#: Number of characters at which a tree is cut; in error messages, `SHORT`.
LONG, SHORT = 100_000, 300


def as_tuples(tree: Any, limit: int = LONG) -> str:
    """Write ``({'shape': (2, 2), 'op': 'add'}, x0, x1)``."""
    return _write([tree], _tuple_parts, limit)


def as_formula(tree: Any, limit: int = LONG) -> str:
    """Write ``(x0 * x0) + sum(x1, axis=(0,))``."""
    return _write([_Bare(tree)], _formula_parts, limit)


def described(x: Any) -> str:
    """Write an operand with its shape, for messages."""
    if hasattr(x, "shape"):
        return f"{as_formula(x, SHORT // 3)} of shape {x.shape}"
    return f"the number {x!r}"


class _Bare(NamedTuple):
    """A tree that needs no parentheses in its place."""

    tree: Any


def _write(parts: list[Any], split: Callable[[Any], list[Any]], limit: int) -> str:
    text: list[str] = []
    length = 0
    stack = parts[::-1]
    while stack:
        part = stack.pop()
        if not isinstance(part, str):
            stack.extend(reversed(split(part)))
            continue
        text.append(part)
        length += len(part)
        if length > limit:
            return "".join(text) + " ..."
    return "".join(text)


def _tuple_parts(tree: Any) -> list[Any]:
    if not hasattr(tree, "op"):
        return [repr(tree)]
    items = list(tree)
    parts = [f"({dict(items[0])}"]
    for item in items[1:]:
        parts += [", ", item]
    return [*parts, ")"]


def _formula_parts(tree: Any) -> list[Any]:
    if isinstance(tree, _Bare):
        parts = _formula_parts(tree.tree)
        return parts[1:-1] if parts[0] == "(" else parts
    if not hasattr(tree, "op"):
        return [repr(tree)]
    symbol = OPERATORS[tree.op].symbol if tree.op in OPERATORS else ""
    if symbol and len(tree.operands) == 2:
        return ["(", tree.operands[0], f" {symbol} ", tree.operands[1], ")"]
    if symbol:
        return ["(", symbol, *tree.operands, ")"]
    options = [f"{k}={v}" for k, v in tree.params.items()]
    if tree.op in ("full", "reshape", "broadcast") and "shape" not in tree.params:
        options.append(f"shape={tree.shape}")
    arguments = [part for x in (*map(_Bare, tree.operands), *options) for part in (", ", x)]
    return [tree.op, "(", *arguments[1:], ")"]
