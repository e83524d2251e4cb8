"""A data iterator as a tree of its data, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.display import Node, ShownAsTree, Statistics, Tree


def data_tree(iterator: Any, values: bool) -> Tree:
    """Return the data with their shapes, and below them the iterator that is wrapped, if one is.

    Args:
        iterator: The iterator.
        values: Whether to look at the values of arrays in memory, too.
    """
    held, wrapped = (vars(iterator).get(name) for name in ("data", "iter"))
    arrays = held if isinstance(held, Mapping) else {}
    nodes = []
    for name, shape in iterator.data_shapes.items():
        axes = ("B",) if name in iterator.per_sequence else ("T", "B")
        cells = {"template": f"({', '.join(map(str, (*axes, *shape)))})"}
        array = arrays.get(name)
        if isinstance(array, np.ndarray):
            cells["array"] = f"{array.dtype}{list(array.shape)}"
            if values and not _is_mapped(array):
                cells.update(Statistics.of(array).as_cells())
        nodes.append(Node(name, name, cells))
    if isinstance(wrapped, ShownAsTree):
        below = wrapped.tree(values)
        nodes.append(Node("iter", "iter", note=below.title, children=below.nodes))
    return Tree(nodes, repr(iterator).partition(" of ")[0])


def _is_mapped(array: Any) -> bool:
    """Return whether an array, or what it is a view of, lies in a file."""
    return isinstance(array, np.memmap) or (
        isinstance(array, np.ndarray) and _is_mapped(array.base)
    )
