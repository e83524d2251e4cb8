"""BufferManager: allocates the memory that a layout plans, and hands out the named views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.errors import NetworkValidationError, OutOfMemoryError
from brainstorm.handlers import get_default_handler
from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.buffer_structure import CONSTANT, TIME, BufferStructure
from brainstorm.structure.buffer_views import BufferView, NullBuffer
from brainstorm.structure.hubs import Hub
from brainstorm.structure.layout import Node, gather_array_nodes
from brainstorm.utils import Array, format_bytes, sort_by_index_key

__all__ = ["BufferManager", "create_buffer_views_from_layout", "get_total_size_slices_and_shapes"]

#: Hubs start at multiples of this many bytes (a cache line, the width of a vector register).
ALIGNMENT = 64


def get_total_size_slices_and_shapes(
    hubs: Sequence[Hub], time: int, batch: int, item_size: int = 4
) -> tuple[list[int], list[tuple[int, int]], list[tuple[int, ...]]]:
    """Return how the hubs are placed in the three buffers.

    Args:
        hubs: The hubs of a layout.
        time: Sequence length T.
        batch: Batch size B.
        item_size: Bytes per value.

    Returns:
        The size of the constant, batch sized and time sized buffer; and for every hub its
        (start, stop) in the buffer of its type and the shape of its array. All in values.
    """
    step = ALIGNMENT // item_size
    totals = [0, 0, 0]
    slices, shapes = [], []
    for hub in hubs:
        start = totals[hub.buffer_type]
        size = hub.get_size(time, batch)
        slices.append((start, start + size))
        shapes.append(hub.get_shape(time, batch))
        totals[hub.buffer_type] = start + -(-size // step) * step
    return totals, slices, shapes


def measure_bytes(hubs: Sequence[Hub], time: int, batch: int, item_size: int) -> int:
    """Return the exact number of bytes that all buffers take for T and B."""
    totals, _, _ = get_total_size_slices_and_shapes(hubs, time, batch, item_size)
    return sum(totals) * item_size


class BufferManager:
    """The memory of a network: one allocation for each type of buffer, and the tree of views.

    Args:
        layout: The layout tree, from `create_layout`.
        hubs: Its hubs.
        handler: Allocates the memory; the default handler if `None`.

    Attributes:
        buffers: One array per hub.
        time_size: Present T (0 before the first resize).
        batch_size: Present B (0 before the first resize).
    """

    def __init__(self, layout: Node, hubs: Sequence[Hub], handler: Handler | None = None) -> None:
        self.layout = layout
        self.hubs = list(hubs)
        self.handler = get_default_handler() if handler is None else handler
        self.time_size = 0
        self.batch_size = 0
        self.full_buffers: list[Array] = [None, None, None]
        self.capacities = [0, 0, 0]
        self.buffers: list[Array] = []
        self._views: BufferView | None = None
        self._carried: list[Array | None] | None = None
        self._place(0, 0)
        self._fill_persistent()

    # -- size -----------------------------------------------------------------------------------

    @property
    def views(self) -> BufferView:
        """The tree of named views; the same objects for the manager's whole life.

        Raises:
            NetworkValidationError: The memory was released by `close`.
        """
        if self._views is None:
            raise NetworkValidationError("the network is closed, its memory was released.")
        return self._views

    @property
    def item_size(self) -> int:
        """Bytes per value."""
        return int(np.dtype(self.handler.dtype).itemsize)

    @property
    def size(self) -> int:
        """Number of values allocated, over all three buffers."""
        return sum(self.capacities)

    def resize(self, time_size: int, batch_size: int) -> BufferView:
        """Make room for sequences of `time_size` steps in batches of `batch_size`.

        Memory only ever grows, and constant buffers (parameters) stay where they are; the content
        of the others is undefined afterwards. The views are the same objects as before.

        Raises:
            OutOfMemoryError: The memory cannot be had. The previous size stays in force.
        """
        if (time_size, batch_size) != (self.time_size, self.batch_size):
            self._place(time_size, batch_size)
        return self.views

    def _place(self, time: int, batch: int) -> None:
        totals, slices, shapes = get_total_size_slices_and_shapes(
            self.hubs, time, batch, self.item_size
        )
        self._grow(totals, time, batch)
        self.buffers = [
            self.full_buffers[hub.buffer_type][start:stop].reshape(shape)
            for hub, (start, stop), shape in zip(self.hubs, slices, shapes, strict=True)
        ]
        self.time_size, self.batch_size = time, batch
        self._views = create_buffer_views_from_layout(
            self.layout, self.buffers, self.hubs, self.handler, self._views
        )

    def _grow(self, totals: list[int], time: int, batch: int) -> None:
        for buffer_type, needed in enumerate(totals):
            if (
                needed <= self.capacities[buffer_type]
                and self.full_buffers[buffer_type] is not None
            ):
                continue
            try:
                grown = self.handler.allocate((needed,))
            except MemoryError as error:
                raise OutOfMemoryError(self._out_of_memory_text(time, batch)) from error
            self.full_buffers[buffer_type] = grown
            self.capacities[buffer_type] = needed

    def _out_of_memory_text(self, time: int, batch: int) -> str:
        largest = sorted(self.hubs, key=lambda hub: -hub.get_size(time, batch))[:8]
        rows = [
            f"  {format_bytes(hub.get_size(time, batch) * self.item_size):>12}  "
            f"{', '.join(hub.sources[:3])}{', ...' if len(hub.sources) > 3 else ''}"
            for hub in largest
        ]
        total = measure_bytes(self.hubs, time, batch, self.item_size)
        return (
            f"cannot allocate {format_bytes(total)} for T={time}, B={batch}. "
            f"The largest buffers:\n" + "\n".join(rows) + "\nUse a smaller batch (see "
            "net.largest_batch) or shorter sequences."
        )

    # -- content --------------------------------------------------------------------------------

    def _persistent_nodes(self) -> list[tuple[str, Node]]:
        return [(p, n) for p, n in gather_array_nodes(self.layout) if n.get("@persistent")]

    @property
    def persistent_paths(self) -> list[str]:
        """Paths of the buffers that are saved with the network beside the parameters."""
        return [path for path, _ in self._persistent_nodes()]

    def _fill_persistent(self) -> None:
        for path, node in self._persistent_nodes():
            self.handler.fill(self.views[path], node["@initial_value"])

    def set_handler(self, handler: Handler) -> None:
        """Move to another handler; parameters and persistent buffers keep their values."""
        self._rebuild(handler, self.layout, self.hubs)

    def set_layout(self, layout: Node, hubs: Sequence[Hub]) -> None:
        """Take another layout of the same layers; what `set_handler` keeps is kept."""
        self._rebuild(self.handler, layout, hubs)

    def _rebuild(self, handler: Handler, layout: Node, hubs: Sequence[Hub]) -> None:
        kept = {
            path: self.handler.get_numpy_copy(self.views[path])
            for path in ["parameters", *self.persistent_paths]
        }
        time, batch = self.time_size, self.batch_size
        self.handler, self.layout, self.hubs = handler, layout, list(hubs)
        self.release()
        self._place(time, batch)
        for path, values in kept.items():
            handler.set_from_numpy(self.views[path], values)

    def release(self) -> None:
        """Forget all memory; the next `resize` allocates again."""
        self.full_buffers = [None, None, None]
        self.capacities = [0, 0, 0]
        self.time_size = self.batch_size = 0

    def close(self) -> None:
        """Release everything for good."""
        self.release()
        self.buffers = []
        self._views = None

    def clear_backward_buffers(self) -> None:
        """Fill everything that only the backward pass uses with zeros."""
        for hub, buffer in zip(self.hubs, self.buffers, strict=True):
            if hub.is_backward_only and hub.size:
                self.handler.fill(buffer, 0.0)

    def part(self, hub_number: int, start: int, stop: int) -> Array:
        """Return the features ``start`` to ``stop`` of a hub, context rows included."""
        buffer = self.buffers[hub_number]
        if (start, stop) == (0, self.hubs[hub_number].size):
            return buffer
        return last_axis_slice(buffer, start, stop)

    # -- context --------------------------------------------------------------------------------

    def _context_hubs(self) -> list[tuple[int, Hub]]:
        return [
            (i, hub)
            for i, hub in enumerate(self.hubs)
            if hub.context_size and not hub.is_backward_only
        ]

    def get_context(self, out: Sequence[Array | None] | None = None) -> list[Array | None]:
        """Return copies of the last rows of all buffers with a context: the state after step T.

        Args:
            out: A context of this network that is no longer needed: its memory is used again
                where it fits. It may be empty.

        Returns:
            For each hub an array (context, B, size), or `None` where there is no context.
        """
        context: list[Array | None] = [None] * len(self.hubs)
        for i, hub in self._context_hubs():
            rows, shape = self.buffers[i], (hub.context_size, self.batch_size, hub.size)
            state = out[i] if out else None
            if state is None or tuple(state.shape) != shape:
                state = self.handler.allocate(shape)
            # Row -k is k steps back, whether it lies in this sequence or in its own context.
            for k in range(hub.context_size):
                step = self.time_size - hub.context_size + k
                source = step if step >= 0 else self.time_size + hub.context_size + step
                self.handler.copy_to(rows[source], state[k])
            context[i] = state
        return context

    def apply_context(self, context: Sequence[Array | None]) -> None:
        """Start the next forward pass from a state that `get_context` returned.

        Raises:
            NetworkValidationError: It belongs to another network or batch size.
        """
        for i, hub in self._context_hubs():
            expected = (hub.context_size, self.batch_size, hub.size)
            given = context[i] if len(context) == len(self.hubs) else None
            if given is None or tuple(given.shape) != expected:
                got = "none" if given is None else tuple(given.shape)
                raise NetworkValidationError(
                    f"context for {hub.sources[0]!r}: expected an array of shape {expected}, got "
                    f"{got}. A context fits the network and the batch size that it came from."
                )
            self.handler.copy_to(given, self._context_rows(i, hub))

    def carry_context(self, state: list[Array | None], continues: bool) -> None:
        """Make the present batch a part of longer sequences; see `Network.carry_context`.

        Raises:
            NetworkValidationError: `state` belongs to another network or batch size.
        """
        self._carried = None
        if continues:
            self.apply_context(state)
        else:
            self.clear_context()
        self._carried = state

    @property
    def carries_context(self) -> bool:
        """Whether forward passes start from a state that was carried on, and not from zeros."""
        return self._carried is not None

    def leave_batch(self) -> None:
        """Keep the state after the last step, if it is carried on, before the data are replaced."""
        if self._carried is not None:
            self._carried[:] = self.get_context(out=self._carried)
            self._carried = None

    def start_context(self, context: Sequence[Array | None] | None) -> None:
        """Set the state before the first step: as given, as carried on, or else to zeros."""
        if context is not None:
            self.apply_context(context)
        elif self._carried is None:
            self.clear_context()

    def clear_context(self) -> None:
        """Start the next forward pass from zeros."""
        for i, hub in self._context_hubs():
            self.handler.fill(self._context_rows(i, hub), 0.0)

    def _context_rows(self, number: int, hub: Hub) -> Array:
        return self.buffers[number][self.time_size : self.time_size + hub.context_size]


def last_axis_slice(array: Array, start: int, stop: int) -> Array:
    """Return the view of an array with its last axis cut to ``start:stop``."""
    return array[(*(slice(None),) * (len(array.shape) - 1), slice(start, stop))]


# -- views --------------------------------------------------------------------------------------


def create_buffer_views_from_layout(
    layout: Node,
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    handler: Handler,
    existing: BufferView | None = None,
    path: str = "",
) -> BufferView:
    """Return the tree of named views over the hubs' arrays.

    Args:
        layout: The layout, or a view node of it.
        buffers: One array per hub.
        hubs: The hubs.
        handler: Makes the arrays of size zero that lie in no hub.
        existing: A tree from an earlier call, to be re-pointed in place.
        path: Dotted path of `layout`, with a dot at the end unless empty.
    """
    children = sorted(
        ((k, v) for k, v in layout.items() if not k.startswith("@")), key=sort_by_index_key
    )
    members = []
    for name, node in children:
        if node["@type"] == "array":
            members.append(_array(node, buffers, hubs, handler, path + name))
        else:
            below = None if existing is None else existing[name]
            members.append(
                create_buffer_views_from_layout(
                    node, buffers, hubs, handler, below, f"{path}{name}."
                )
            )
    names = [name for name, _ in children]
    nodes = dict(children)
    full = _joined(layout, [n for _, n in children], buffers, hubs, flat=True)
    joints = {
        group: _joined_group([nodes[name] for name in group], buffers, hubs)
        for group in layout.get("@joints", ())
    }
    if existing is None:
        return BufferView(names, members, full, joints)
    return existing.adjust(names, members, full, joints)


def _array(
    node: Node, buffers: Sequence[Array], hubs: Sequence[Hub], handler: Handler, path: str
) -> Array:
    if "@null" in node:
        return NullBuffer(path, node["@null"])
    structure = BufferStructure.from_layout(node)
    if "@hub" not in node:
        return handler.allocate(structure.get_shape(0, 0))
    number = node["@hub"]
    return structure.create_from_buffer_hub(buffers[number], hubs[number], node["@slice"])


def _joined(
    view: Node,
    nodes: Sequence[Node],
    buffers: Sequence[Array],
    hubs: Sequence[Hub],
    flat: bool,
) -> Array | None:
    if "@slice" not in view:
        return None
    start, stop = view["@slice"]
    shape: tuple[Any, ...] = (stop - start,)
    hub = hubs[view["@hub"]]
    if hub.buffer_type == CONSTANT and not flat:
        first = nodes[0]["@shape"]
        shape = (sum(node["@shape"][0] for node in nodes), *first[1:])
    if hub.is_square:
        shape = (*shape, "T")
    markers = ("T", "B")[TIME - hub.buffer_type :]
    context = min(node.get("@context_size", 0) for node in nodes)
    structure = BufferStructure(*markers, *shape, context_size=context)
    return structure.create_from_buffer_hub(buffers[view["@hub"]], hub, (start, stop))


def _joined_group(nodes: Sequence[Node], buffers: Sequence[Array], hubs: Sequence[Hub]) -> Array:
    slices = [node["@slice"] for node in nodes]
    together = {"@hub": nodes[0]["@hub"], "@slice": (slices[0][0], slices[-1][1])}
    return _joined(together, nodes, buffers, hubs, flat=False)
