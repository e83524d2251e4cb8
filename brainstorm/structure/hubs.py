"""Hubs: which buffers share one array, and in which order.

A *source* is a buffer with memory of its own (an output, a parameter, an internal); a *sink* is a
buffer that consists of sources (an input; the flat ``parameters``). If the sources of a sink can
be adjacent, the sink is a view of them and nothing is copied. Sources that are tied together by
such sinks form a hub: one array, in which they follow each other on the last axis.

For example, layer D reads the outputs of A (3 values) and B (2) joined, and layer E those of A and
C (4). In the order B A C both inputs are views: D reads 0 to 5, E reads 2 to 9 of a hub of size 9.
A third layer that reads B and C would get a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from brainstorm.structure.buffer_structure import BATCH, CONSTANT, BufferStructure
from brainstorm.structure.pq_tree import PQTree
from brainstorm.utils import Array, product


@dataclass
class Hub:
    """Sources that live in one array, and the sinks that are views of them.

    Attributes:
        sources: Paths of the sources in the order of memory.
        sinks: Paths of the sinks.
        buffer_type: 0 constant, 1 batch sized, 2 time sized.
        is_backward_only: Whether only the backward pass uses it.
        context_size: The largest context of its members.
        size: Number of values per time step and sequence.
        slices: Path of each source and sink to its (start, stop) on the last axis.
        time: The time of its first axis, if it has one: 'T' or 'S'.
        columns: Which time the last feature of everything in it is, so that the last axis is
            `size` * T or `size` * S; empty: none.
        lifetime: The first and the last position in the passes between which it must keep what it
            holds (see `brainstorm.structure.lifetimes`); `None`: always.
    """

    sources: list[str]
    sinks: list[str]
    buffer_type: int
    is_backward_only: bool
    context_size: int = 0
    size: int = 0
    slices: dict[str, tuple[int, int]] = field(default_factory=dict)
    time: str = "T"
    columns: str = ""
    lifetime: tuple[int, int] | None = None

    def get_shape(self, time: int, batch: int, source: int = 1) -> tuple[int, ...]:
        """Return the shape of the hub's array for these T, B and S."""
        if self.buffer_type == CONSTANT:
            return (self.size,)
        if self.buffer_type == BATCH:
            return (batch, self.size)
        times = {"T": time, "S": source, "": 1}
        return (times[self.time] + self.context_size, batch, self.size * times[self.columns])

    def get_size(self, time: int, batch: int, source: int = 1) -> int:
        """Return the number of values in the hub's array."""
        return product(self.get_shape(time, batch, source))

    def context_rows(self, array: Array) -> Array:
        """Return the rows of the hub's array that hold the state before the first step."""
        return array[array.shape[0] - self.context_size : array.shape[0]]


def arrange_sources(
    sources: Sequence[str],
    sinks: Mapping[str, Sequence[str]],
    pinned: Sequence[Sequence[str]],
) -> tuple[list[str], list[str]]:
    """Find an order of all sources in which as many sinks as possible are consecutive.

    Args:
        sources: Paths of all sources, preferably in this order.
        sinks: Path of each sink to the paths of its sources, in the order in which they are
            joined; it may be any order among sources that are not pinned.
        pinned: Groups of sources that must follow each other in exactly this order.

    Returns:
        The order of all sources, and the sinks that are *not* consecutive in it: they need a
        copy. Polynomial time: each sink is tried once on a PQ-tree.
    """
    group_of = {path: number for number, group in enumerate(pinned) for path in group}
    free = [path for path in sources if path not in group_of]
    rank = {path: i for i, path in enumerate(free)}
    tree = PQTree(len(free))
    left_out: list[str] = []
    for sink, members in sinks.items():
        groups = {group_of.get(path) for path in members}
        if groups == {None}:
            fits = tree.make_consecutive(rank[path] for path in members)
        elif len(groups) == 1:
            group = list(pinned[group_of[members[0]]])
            start = group.index(members[0])
            fits = group[start : start + len(members)] == list(members)
        else:
            fits = len(members) == 1
        if not fits:
            left_out.append(sink)
    order = [free[i] for i in tree.order()] + [path for group in pinned for path in group]
    return order, left_out


def group_into_hubs(
    order: Sequence[str],
    sinks: Mapping[str, Sequence[str]],
    pinned: Sequence[Sequence[str]],
    structures: Mapping[str, BufferStructure],
) -> list[Hub]:
    """Group sources that are tied together by a sink or a pinned group, and slice the hubs.

    Args:
        order: All sources, in an order in which every sink is consecutive.
        sinks: Path of each sink to the paths of its sources.
        pinned: Groups of sources that must be in one hub.
        structures: Path of each source and sink to its structure.
    """
    leader = {path: path for path in order}

    def find(path: str) -> str:
        while leader[path] != path:
            leader[path] = leader[leader[path]]
            path = leader[path]
        return path

    for group in [*sinks.values(), *pinned]:
        for path in group[1:]:
            leader[find(path)] = find(group[0])

    hubs: dict[str, Hub] = {}
    for path in order:
        structure = structures[path]
        root = find(path)
        if root not in hubs:
            hubs[root] = Hub([], [], structure.buffer_type, structure.is_backward_only)
            hubs[root].time = structure.time
            hubs[root].columns = structure.shape[-1] if structure.is_square else ""
        hub = hubs[root]
        hub.sources.append(path)
        hub.slices[path] = (hub.size, hub.size + structure.feature_size)
        hub.size += structure.feature_size
        hub.context_size = max(hub.context_size, structure.context_size)
    for sink, members in sinks.items():
        if members:
            hub = hubs[find(members[0])]
            hub.sinks.append(sink)
            starts, stops = zip(*(hub.slices[path] for path in members), strict=True)
            hub.slices[sink] = (min(starts), max(stops))
    return list(hubs.values())


def last_axis_slice(array: Array, start: int, stop: int) -> Array:
    """Return the view of an array with its last axis cut to ``start:stop``."""
    return array[(*(slice(None),) * (len(array.shape) - 1), slice(start, stop))]


def grow_with_source(hubs: Iterable[Hub]) -> bool:
    """Return whether anything grows with S."""
    return any("S" in (hub.time, hub.columns) for hub in hubs)


def stateful_hubs(hubs: Iterable[Hub], times: str = "T") -> list[tuple[int, Hub]]:
    """Return the hubs that hold a state, and their numbers; only that over T is carried on."""
    return [
        (i, hub)
        for i, hub in enumerate(hubs)
        if hub.context_size and not hub.is_backward_only and hub.time in times
    ]
