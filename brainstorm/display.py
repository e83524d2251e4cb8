"""Display of objects: trees as text, as HTML for notebooks, and with rich.

Networks, buffers, data iterators and trainers make them; nothing here knows of these. All that is
shown in HTML is escaped, and there is no script in it.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, TypeVar

import numpy as np

from brainstorm.errors import escaped
from brainstorm.optional import require

__all__ = ["SHORT", "Node", "ShownAsTree", "Statistics", "Tree", "safe_repr", "without_middle"]

S = TypeVar("S")
T = TypeVar("T")

#: The columns of arrays; those of the statistics have headings.
COLUMNS = ("template", "array", "bytes", "min", "mean", "max", "NaN", "Inf", "note")
STATISTICS = COLUMNS[3:8]
TO_THE_RIGHT = COLUMNS[2:8]

#: A view with more arrays than this is shown with its groups folded.
MOST_ARRAYS = 100

#: A tree in HTML with at most this many arrays is unfolded.
UNFOLDED_ARRAYS = 24


def safe_repr(show: Callable[[S], str]) -> Callable[[S], str]:
    """Decorate a ``__repr__``: an object without its attributes prints as its class.

    Such objects are seen in debuggers and in tracebacks of failed constructors.
    """

    @functools.wraps(show)
    def shown(self: S) -> str:
        try:
            return show(self)
        except AttributeError:
            return f"<{type(self).__name__}, not fully constructed>"

    return shown


def without_middle(lines: Sequence[T], between: Callable[[int], T]) -> Sequence[T]:
    """Return the first and last lines if there are too many for a screen, else all.

    Args:
        lines: The lines.
        between: Returns the line that replaces a number of lines in the middle.
    """
    half = MOST_ARRAYS // 2
    if len(lines) <= 2 * half:
        return lines
    return [*lines[:half], between(len(lines) - 2 * half), *lines[-half:]]


class Statistics(NamedTuple):
    """Statistics of an array: of the finite values, and the number of others."""

    minimum: float
    mean: float
    maximum: float
    nans: int
    infinities: int

    @classmethod
    def of(cls, values: np.ndarray) -> Statistics:
        """Return the statistics of an array; without finite values the first three are NaN."""
        nans = infinities = 0
        with np.errstate(all="ignore"):  # memory that was never written may hold any value
            if not np.isfinite(values).all():
                nans = int(np.isnan(values).sum())
                infinities = int(np.isinf(values).sum())
                values = values[np.isfinite(values)]
            if not values.size:
                return cls(np.nan, np.nan, np.nan, nans, infinities)
            mean = values.mean(dtype=np.float64)
            return cls(float(values.min()), float(mean), float(values.max()), nans, infinities)

    def as_cells(self) -> dict[str, str]:
        """Return them as text, by column."""
        numbers = (f"{value:.4g}" for value in self[:3])
        return dict(zip(STATISTICS, (*numbers, str(self.nans), str(self.infinities)), strict=True))


class Node(NamedTuple):
    """A line of a tree: an array with its cells, or a group with a note and children."""

    name: str
    path: str
    cells: Mapping[str, str] = {}
    note: str = ""
    children: tuple[Node, ...] = ()

    @property
    def arrays(self) -> int:
        """Number of arrays in this node."""
        return sum(child.arrays for child in self.children) + bool(self.cells)


class Tree:
    """An object with named parts, which can be printed or shown in a notebook.

    Args:
        nodes: The nodes at the top.
        title: The line above them.
    """

    def __init__(self, nodes: Iterable[Node], title: str = "") -> None:
        self.nodes = tuple(nodes)
        self.title = title

    @property
    def is_short(self) -> bool:
        """Whether it is shown with all groups unfolded."""
        return self._count() <= MOST_ARRAYS

    def folded(self) -> Tree:
        """Return a tree short enough for a screen, for networks of any size."""
        nodes = self.nodes
        if not self.is_short:
            nodes = tuple(
                node._replace(note=f"{node.note}  {node.arrays} arrays".strip(), children=())
                if node.children and node.arrays
                else node
                for node in nodes
            )
        return Tree(without_middle(nodes, lambda n: Node(f"... {n} more ...", "")), self.title)

    def _count(self) -> int:
        return sum(node.arrays for node in self.nodes)

    # -- text -----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        rows = list(_walk(self.nodes, "  " if self.title else ""))
        arrays = [(len(indent) + len(n.name), n.cells) for indent, n in rows if n.cells]
        columns = _used_columns(cells for _, cells in arrays)
        widths = _widths(columns, [cells for _, cells in arrays])
        first = max((width for width, _ in arrays), default=0)
        lines = [self.title] if self.title else []
        if set(columns) & set(STATISTICS):
            heads = {column: column for column in columns if column in STATISTICS}
            lines.append(f"{'':{first}}{_join(columns, widths, heads)}".rstrip())
        for indent, node in rows:
            cells = _join(columns, widths, node.cells) if node.cells else f"  {node.note}"
            name = indent + node.name
            lines.append(f"{name:<{first if node.cells else 0}}{cells}".rstrip())
        return escaped("\n".join(lines))

    # -- HTML -----------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        """Return nested ``<details>``, with the path of each part as its tooltip."""
        title = f"<div>{escape(self.title)}</div>" if self.title else ""
        content = _html(self.nodes, self._count() <= UNFOLDED_ARRAYS)
        return f'<div style="font-family:monospace">{title}{content}</div>'

    # -- rich -----------------------------------------------------------------------------------

    def __rich__(self) -> Any:
        """Return a tree of rich; only called by rich."""
        text = require("rich.text", "rich").Text
        top = require("rich.tree", "rich").Tree(text(escaped(self.title)), hide_root=not self.title)
        _add_to(top, self.nodes, text)
        return top


def _walk(nodes: Iterable[Node], indent: str) -> Iterator[tuple[str, Node]]:
    for node in nodes:
        yield indent, node
        yield from _walk(node.children, indent + "  ")


def _used_columns(rows: Iterable[Mapping[str, str]]) -> list[str]:
    used = {column for cells in rows for column, text in cells.items() if text}
    return [column for column in COLUMNS if column in used]


def _widths(columns: Iterable[str], rows: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Return the width of each column."""
    whole = [cells for cells in rows if len(cells) > 1]
    widths = {c: max((len(cells.get(c, "")) for cells in whole), default=0) for c in columns}
    return {c: max(w, len(c) if c in STATISTICS else 0) for c, w in widths.items()}


def _join(columns: Iterable[str], widths: Mapping[str, int], cells: Mapping[str, str]) -> str:
    if len(cells) == 1:  # one cell spans all columns
        return f"  {next(iter(cells.values()))}"
    sides = {column: ">" if column in TO_THE_RIGHT else "<" for column in columns}
    texts = (f"  {cells.get(c, ''):{side}{widths[c]}}" for c, side in sides.items())
    return "".join(texts)


def _html(nodes: Sequence[Node], is_open: bool) -> str:
    arrays = [node for node in nodes if node.cells]
    parts = [_table(arrays)] if arrays else []
    for node in nodes:
        head = f"{escape(node.name)} <small>{escape(node.note)}</small>"
        where = f' title="{escape(node.path)}"'
        if node.children:
            opened = " open" if is_open else ""
            parts.append(
                f'<details{where}{opened} style="margin-left:1em"><summary>{head}</summary>'
                f"{_html(node.children, is_open)}</details>"
            )
        elif not node.cells:
            parts.append(f'<div{where} style="margin-left:1em">{head}</div>')
    return "".join(parts)


def _table(arrays: Sequence[Node]) -> str:
    columns = _used_columns(node.cells for node in arrays)
    sides = {c: "right" if c in TO_THE_RIGHT else "left" for c in ("name", *columns)}
    aligned = {c: f' style="text-align:{s};padding:0 .6em 0 0"' for c, s in sides.items()}
    heads = "".join(f"<th{aligned[c]}>{c if c in STATISTICS else ''}</th>" for c in aligned)
    rows = [f"<tr>{heads}</tr>"] if set(columns) & set(STATISTICS) else []
    for node in arrays:
        cells = {"name": node.name, **node.cells}
        texts = "".join(f"<td{aligned[c]}>{escape(cells.get(c, ''))}</td>" for c in aligned)
        rows.append(f'<tr title="{escape(node.path)}">{texts}</tr>')
    return f'<table style="margin-left:1em">{"".join(rows)}</table>'


def _add_to(branch: Any, nodes: Sequence[Node], text: Any) -> None:
    arrays = [node.cells for node in nodes if node.cells]
    columns = _used_columns(arrays)
    widths = _widths(columns, arrays)
    first = max((len(node.name) for node in nodes if node.cells), default=0)
    for node in nodes:
        if node.cells:
            line = text(escaped(f"{node.name:<{first}}"), style="bold", no_wrap=True)
            line.append(escaped(_join(columns, widths, node.cells).rstrip()), style="not bold")
            branch.add(line)
        else:
            line = text(escaped(node.name), style="bold cyan")
            line.append(escaped(f"  {node.note}".rstrip()), style="not bold dim")
            _add_to(branch.add(line), node.children, text)


class ShownAsTree:
    """Base of objects that are shown as a tree in terminals, notebooks and rich, folded if long.

    Notebooks also show statistics of the values if there are not too many arrays.
    """

    def tree(self, values: bool = False) -> Tree:
        """Return the tree, with statistics of the values if `values` is true."""
        raise NotImplementedError(f"{type(self).__name__} does not define tree")

    @safe_repr
    def __repr__(self) -> str:
        return repr(self.tree().folded())

    @safe_repr
    def _repr_html_(self) -> str:
        tree = self.tree()
        return (self.tree(values=True) if tree.is_short else tree.folded())._repr_html_()

    def __rich__(self) -> Any:
        return self.tree().folded().__rich__()


class _Short(reprlib.Repr):
    """Short values for messages: a few elements, and shapes of arrays."""

    def repr_ndarray(self, array: np.ndarray, level: int) -> str:
        return f"array of shape {array.shape}"

    def repr_dtype(self, dtype: np.dtype[Any], level: int) -> str:
        return dtype.name

    def repr_function(self, function: Any, level: int) -> str:
        return function.__name__

    repr_Float32DType = repr_Float64DType = repr_dtype  # noqa: N815 (names of NumPy's classes)


#: Makes short texts of values.
SHORT = _Short()
SHORT.maxstring = SHORT.maxother = 80
