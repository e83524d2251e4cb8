"""Orders in which given sets are consecutive: a PQ-tree over small integers.

Booth and Lueker, "Testing for the consecutive ones property, interval graphs, and graph
planarity using PQ-tree algorithms", 1976. A tree stands for all orders of its leaves that have
not been excluded yet: the children of a P node may be permuted, those of a Q node reversed. This
variant takes linear time per set (not per element of it), which is enough here, and never modifies
a tree: if a set does not fit, the caller still has the previous tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class _Node:
    kind: str  # 'leaf', 'P' or 'Q'
    children: tuple[_Node, ...] = ()
    mask: int = 0  # the leaves below, as bits

    @property
    def first_leaf(self) -> int:
        return (self.mask & -self.mask).bit_length() - 1


def _node(kind: str, children: Iterable[_Node]) -> _Node:
    children = tuple(children)
    if len(children) == 1:
        return children[0]
    mask = 0
    for child in children:
        mask |= child.mask
    # Two children allow the same two orders in both kinds.
    return _Node("P" if len(children) == 2 else kind, children, mask)


def _group(nodes: list[_Node]) -> list[_Node]:
    return [_node("P", nodes)] if nodes else []


class PQTree:
    """All orders of ``0 .. size - 1`` in which the sets added so far are consecutive."""

    def __init__(self, size: int) -> None:
        self._root = _node("P", [_Node("leaf", (), 1 << i) for i in range(size)])

    def make_consecutive(self, elements: Iterable[int]) -> bool:
        """Restrict the orders to those in which `elements` are consecutive.

        Returns:
            Whether that is possible together with the earlier sets; if not, nothing changes.
        """
        wanted = 0
        for element in elements:
            wanted |= 1 << element
        if wanted & (wanted - 1) == 0:  # at most one
            return True
        # Descend to the deepest node that contains all of them.
        path: list[tuple[_Node, int]] = []
        node = self._root
        while True:
            inside = [i for i, child in enumerate(node.children) if child.mask & wanted]
            if len(inside) != 1:
                break
            path.append((node, inside[0]))
            node = node.children[inside[0]]
        if node.mask & ~wanted:
            replaced = _restrict(node, wanted)
            if replaced is None:
                return False
            for parent, index in reversed(path):
                children = (*parent.children[:index], replaced, *parent.children[index + 1 :])
                replaced = _node(parent.kind, children)
            self._root = replaced
        return True

    def order(self) -> list[int]:
        """Return one of the orders, preferring small numbers first."""
        order: list[int] = []
        todo = [self._root]
        while todo:
            node = todo.pop()
            if node.kind == "leaf":
                order.append(node.first_leaf)
                continue
            children = list(node.children)
            if node.kind == "P":
                children.sort(key=lambda child: child.first_leaf)
            elif children[0].first_leaf > children[-1].first_leaf:
                children.reverse()
            todo.extend(reversed(children))
        return order


def _restrict(node: _Node, wanted: int) -> _Node | None:
    """Return the orders of a node in which the wanted leaves are consecutive; `None`: no such."""
    if node.kind == "P":
        empty, partial, full = _sort(node.children, wanted)
        row = [*partial[:1], *_group(full), *partial[1:]]
    else:
        touched = [i for i, child in enumerate(node.children) if child.mask & wanted]
        first, end = touched[0], touched[-1] + 1
        row = list(node.children[first:end])
    if any(child.mask & ~wanted for child in row[1:-1]):
        return None
    left = _linearize(row[0], wanted)
    right = _linearize(row[-1], wanted) if len(row) > 1 else []
    if left is None or right is None:
        return None
    middle = [*left, *row[1:-1], *reversed(right)]
    if node.kind == "P":
        return _node("P", [*empty, _node("Q", middle)])
    return _node("Q", [*node.children[:first], *middle, *node.children[end:]])


def _linearize(node: _Node, wanted: int) -> list[_Node] | None:
    """Return nodes in order, first those without wanted leaves, last those with only such."""
    head: list[_Node] = []
    tail: list[_Node] = []
    while node.mask & wanted and node.mask & ~wanted:
        children, is_fixed = node.children, node.kind == "Q"
        if is_fixed and (not children[0].mask & ~wanted or not children[-1].mask & wanted):
            children = children[::-1]
        empty, partial, full = _sort(children, wanted)
        if len(partial) > 1 or (is_fixed and (*empty, *partial, *full) != children):
            return None
        head += empty if is_fixed else _group(empty)
        tail = (full if is_fixed else _group(full)) + tail
        if not partial:
            return head + tail
        node = partial[0]
    return [*head, node, *tail]


def _sort(children: tuple[_Node, ...], wanted: int) -> tuple[list[_Node], list[_Node], list[_Node]]:
    """Return the children with none, some and only wanted leaves."""
    empty = [c for c in children if not c.mask & wanted]
    partial = [c for c in children if c.mask & wanted and c.mask & ~wanted]
    full = [c for c in children if not c.mask & ~wanted]
    return empty, partial, full
