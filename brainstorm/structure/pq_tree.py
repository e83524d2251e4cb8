"""Orders in which given sets are consecutive: a PQ-tree over small integers.

Booth and Lueker, "Testing for the consecutive ones property, interval graphs, and graph
planarity using PQ-tree algorithms", 1976. A tree stands for all orders of its leaves that have
not been excluded yet: the children of a P node may be permuted, those of a Q node reversed. This
variant takes linear time per set (not per element of it), which is enough here, and never modifies
a tree: if a set does not fit, the caller still has the previous tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class _Node:
    kind: str  # 'leaf', 'P' or 'Q'
    children: tuple[_Node, ...] = ()
    mask: int = field(default=0)  # the leaves below, as bits

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
    """All orders of ``0 .. size - 1`` in which the sets added so far are consecutive.

    Args:
        size: Number of elements.
    """

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
            replaced = self._restrict(node, wanted)
            if replaced is None:
                return False
            for parent, index in reversed(path):
                children = (*parent.children[:index], replaced, *parent.children[index + 1 :])
                replaced = _node(parent.kind, children)
            self._root = replaced
        return True

    def _restrict(self, node: _Node, wanted: int) -> _Node | None:
        if node.kind == "P":
            empty, partial, full = self._sorted_children(node, wanted)
            if len(partial) > 2:
                return None
            left = _linearize(partial[0], wanted) if partial else []
            right = _linearize(partial[1], wanted) if len(partial) == 2 else []
            if left is None or right is None:
                return None
            middle = _node("Q", [*left, *_group(full), *reversed(right)])
            return _node("P", [*empty, middle])
        # Q: empty* partial? full* partial? empty*
        touched = [i for i, child in enumerate(node.children) if child.mask & wanted]
        first, last = touched[0], touched[-1]
        if any(node.children[i].mask & ~wanted for i in range(first + 1, last)):
            return None
        left = _linearize(node.children[first], wanted)
        right = _linearize(node.children[last], wanted)
        if left is None or right is None:
            return None
        inner = node.children[first + 1 : last]
        return _node(
            "Q",
            [*node.children[:first], *left, *inner, *reversed(right), *node.children[last + 1 :]],
        )

    @staticmethod
    def _sorted_children(node: _Node, wanted: int) -> tuple[list[_Node], list[_Node], list[_Node]]:
        empty = [c for c in node.children if not c.mask & wanted]
        full = [c for c in node.children if not c.mask & ~wanted]
        partial = [c for c in node.children if c.mask & wanted and c.mask & ~wanted]
        return empty, partial, full

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


def _linearize(node: _Node, wanted: int) -> list[_Node] | None:
    """Return nodes in order, first those without wanted leaves, last those with only such."""
    head: list[_Node] = []
    tail: list[_Node] = []
    while node.mask & wanted and node.mask & ~wanted:
        empty, partial, full = PQTree._sorted_children(node, wanted)
        if len(partial) > 1:
            return None
        if node.kind == "Q":
            row = list(node.children)
            if not row[0].mask & ~wanted or not row[-1].mask & wanted:
                row.reverse()
            if row != [*(c for c in row if c in empty), *partial, *(c for c in row if c in full)]:
                return None
            head += [c for c in row if c in empty]
            tail = [c for c in row if c in full] + tail
        else:
            head += _group(empty)
            tail = _group(full) + tail
        if not partial:
            return head + tail
        node = partial[0]
    return [*head, node, *tail]
