"""BufferManager: allocates the memory that a layout describes, and provides the named views."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.display import safe_repr
from brainstorm.errors import NetworkValidationError, OutOfMemoryError, ReusedBufferError, shown
from brainstorm.forks import count_forks
from brainstorm.handlers import get_default_handler
from brainstorm.handlers.base_handler import Handler
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.buffer_structure import CONSTANT, BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.hub_arrays import CLOSED, ArraysBySize, HubArrays, HubMemory
from brainstorm.structure.hubs import Hub, last_axis_slice, stateful_hubs
from brainstorm.structure.layout import Node, gather_array_nodes
from brainstorm.structure.memory import describe_shortage
from brainstorm.structure.placement import get_total_size_slices_and_shapes, place
from brainstorm.structure.turns import Turn
from brainstorm.structure.view_tree import create_buffer_views_from_layout, create_views, find_array
from brainstorm.utils import Array, format_bytes


class BufferManager:
    """The memory of a network: one allocation per type of buffer, and the tree of views.

    Args:
        layout: The layout tree, from `create_layout`.
        hubs: Its hubs.
        handler: Allocates the memory; the default handler if `None`.
        allocate: Allocates it instead; a function of the shape.

    Attributes:
        nodes: The array nodes of the layout, by path.
        position: Where the last pass ended (see `brainstorm.structure.lifetimes`); `None` if it
            did not end, ran only some of the layers, or memory has moved since.
        passes: Number of passes that have begun.
        provided: The inputs whose data are in the memory.
        turn: To be entered by threads that compute with the memory; others wait.
    """

    def __init__(
        self,
        layout: Node,
        hubs: Sequence[Hub],
        handler: Handler | None = None,
        allocate: Callable[[tuple[int, ...]], Array | None] | None = None,
    ) -> None:
        self._allocate = allocate
        self.handler = get_default_handler() if handler is None else handler
        self.layout, self.hubs, self.nodes = layout, list(hubs), dict(gather_array_nodes(layout))
        self.position: int | None = None
        self.passes = 0
        self.turn = Turn(self)
        self.lane = self.handler.new_lane()
        if allocate is not None:  # memory that is never written
            self.lane.only_measure()
        self._moves = 0
        #: To be cleared when memory moves, because it refers to the old memory.
        self.traces: weakref.WeakSet[Any] = weakref.WeakSet()
        self._arrays = ArraysBySize()
        self.release()
        self._place(0, 0, 0)
        self._views: BufferView | None = None
        self._views = self._view()
        with self.turn:
            for path in self.persistent_paths:
                node = self.nodes[path]
                array = self.part(node["@hub"], *node["@slice"])
                self.handler.set_from_numpy(array, np.full(array.shape, node["@initial_value"]))

    # -- size -----------------------------------------------------------------------------------

    @property
    def views(self) -> BufferView:
        """The tree of named views; the same objects during the manager's whole life.

        Raises:
            NetworkValidationError: The memory was released by `close`.
        """
        if self._views is None:
            raise NetworkValidationError(CLOSED)
        return self._views

    @safe_repr
    def __repr__(self) -> str:
        bytes_held = format_bytes(self.size * self.item_size)
        return f"BufferManager: T={self.time_size}, B={self.batch_size}, {bytes_held}"

    @property
    def is_closed(self) -> bool:
        """Whether the memory was released by `close`."""
        return self._views is None

    @property
    def stamp(self) -> Any:
        """A value that traces of computations with the memory depend on; changes when it moves."""
        return self.handler, self._moves, count_forks()

    @property
    def item_size(self) -> int:
        """Bytes per value."""
        return int(np.dtype(self.handler.dtype).itemsize)

    @property
    def size(self) -> int:
        """Number of values allocated, over all three buffers."""
        return sum(self._memory.capacities)

    @property
    def full_buffers(self) -> list[Array]:
        """The memory of each type of buffer."""
        return self._memory.full_buffers

    def _view(self) -> BufferView:
        """Return the tree of views, which are always the same ones, as the layout describes it."""
        return create_views(self.layout, self._arrays, self.hubs, self.handler, self._views)

    def release(self) -> None:
        """Release all memory; the next `resize` allocates again."""
        allocate = self._allocate or self.handler.allocate
        self._memory = HubMemory(self.hubs, allocate, self.item_size)
        self.provided: set[str] = set()
        self._forget_places()
        self._arrays.present = HubArrays(self.hubs, self.full_buffers)
        self._carried: list[Array | None] | None = None

    def close(self) -> None:
        """Release everything permanently."""
        self.release()
        self._views = None

    def resize(self, time_size: int, batch_size: int, source_size: int = 1) -> BufferView:
        """Allocate memory for sequences of `time_size` steps in batches of `batch_size`.

        Memory only grows, and constant buffers (parameters) stay in place; the content of the
        others is undefined afterwards. The views are the same objects as before. If there is a
        second length S, it is `source_size`.

        Raises:
            OutOfMemoryError: The allocation failed. The previous size is kept.
            NetworkValidationError: The memory was released by `close`.
        """
        views = self.views
        sizes, present = (time_size, batch_size, source_size), self._arrays.present
        if sizes != present.sizes or present.memory is not self._memory.full_buffers:
            self._place(*sizes)
            if self.lane is not None:
                self.lane.trim()
        return views

    @property
    def buffers(self) -> HubArrays:
        """One array per hub, for the present T, B and S, created when needed."""
        return self._arrays.present

    @property
    def sizes(self) -> tuple[int, ...]:
        """Present T, B and S; 0 before the first resize."""
        return self._arrays.present.sizes

    @property
    def time_size(self) -> int:
        """Present T."""
        return self.sizes[0]

    @property
    def batch_size(self) -> int:
        """Present B."""
        return self.sizes[1]

    @property
    def source_size(self) -> int:
        """Present S."""
        return self.sizes[2]

    def steps(self, structure: BufferStructure) -> int:
        """Return the present length of the sequences in a buffer that grows with time."""
        return self.source_size if structure.time == "S" else self.time_size

    def _place(self, *sizes: int) -> None:
        """Set the sizes of the buffers.

        This may be interrupted anywhere: until the end the earlier arrays are in use.
        """
        arrays = self._memory.arrays(*sizes)
        self.position = None
        hubs = {name: self.nodes[f"{INPUT}.outputs.{name}"]["@hub"] for name in self.provided}
        self.provided = {n for n, hub in hubs.items() if self.hubs[hub].buffer_type == CONSTANT}
        if arrays.memory is not self.buffers.memory:
            self._forget_places()
        self._arrays.enter(arrays)

    def _forget_places(self) -> None:
        """Discard everything that depends on addresses."""
        self._moves += 1
        self._arrays.clear()
        for traces in self.traces:
            traces.clear()
        if self.lane is not None:
            self.lane.clear()

    # -- content --------------------------------------------------------------------------------

    @property
    def strategy(self) -> str:
        """``'compact'`` if buffers share memory, else ``'inspectable'``."""
        return "compact" if any(hub.lifetime for hub in self.hubs) else "inspectable"

    def read(self, path: str) -> Array:
        """Return the array at a dotted path, with its content after the last pass.

        Raises:
            ReusedBufferError: Its memory is shared and was reused in the last pass.
            UnknownPathError: The path does not exist, or is a view.
            NullBufferError: It is a delta that is not needed, and so not allocated.
        """
        array = find_array(self.views, path)
        node = self.nodes[path]
        lifetime = self.hubs[node["@hub"]].lifetime if "@hub" in node else None
        if lifetime is None:
            return array
        if self.position is None or not lifetime[0] <= self.position <= lifetime[1]:
            raise ReusedBufferError(
                f"{path} cannot be read now: with memory strategy 'compact' its memory is its own "
                f"only from {node['@lives']}. Read it when a pass has ended in between, or build "
                f"the network with memory='inspectable'."
            )
        return array

    def begin_pass(self, position: int) -> None:
        """Record that a pass begins at a position; shared memory can be read when it has ended.

        Raises:
            NetworkValidationError: There are no data, or no memory; or it is a backward pass
                without a forward pass before it, or not directly after its own, and memory is
                shared.
        """
        _ = self.views  # raises an error if they were released
        if self.batch_size == 0:
            raise NetworkValidationError("there is no data yet: call provide_external_data first.")
        if self.strategy == "compact" and position and self.position != position - 1:
            raise NetworkValidationError(
                "backward_pass: with memory strategy 'compact' every backward pass needs a forward "
                "pass of its own. Call forward_pass first, or build the network with "
                "memory='inspectable'."
            )
        if position and self.position is None:
            raise NetworkValidationError(
                "backward_pass: expected a forward pass before it. Call forward_pass."
            )
        self.position = None
        self.passes += 1

    @property
    def persistent_paths(self) -> list[str]:
        """Paths of the buffers that are saved with the network in addition to the parameters."""
        return [path for path, node in self.nodes.items() if node.get("@persistent")]

    def set_handler(self, handler: Handler) -> None:
        """Move to another handler; parameters and persistent buffers keep their values."""
        self.set_layout(self.layout, self.hubs, handler)

    def set_layout(self, layout: Node, hubs: Sequence[Hub], handler: Handler) -> None:
        """Use another layout of the same layers; keeps the same values as `set_handler`."""
        kept = {
            path: self.handler.get_numpy_copy(self.views[path])
            for path in ["parameters", *self.persistent_paths]
        }
        before, sizes = dict(self.__dict__), self.sizes
        try:
            self.leave_batch()  # with the memory that holds its state
            self.layout, self.hubs, self.handler = layout, list(hubs), handler
            self.nodes, self.lane = dict(gather_array_nodes(layout)), handler.new_lane()
            self._arrays = ArraysBySize()  # until they are adjusted, views show the earlier ones
            self.release()
            self._place(*sizes)
            self._view()
            for path, values in kept.items():
                handler.set_from_numpy(self.views[path], values)
        except BaseException:
            self.__dict__.update(before)
            self._view()
            raise

    def clear_backward_buffers(self) -> None:
        """Fill buffers of the backward pass that do not share memory with zeros."""
        for hub, buffer in zip(self.hubs, self.buffers, strict=True):
            if hub.is_backward_only and hub.size and hub.lifetime is None:
                self.handler.fill(buffer, 0.0)

    def part(self, hub_number: int, start: int, stop: int) -> Array:
        """Return the features ``start`` to ``stop`` of a hub, including context rows."""
        return last_axis_slice(self.buffers[hub_number], start, stop)

    # -- context --------------------------------------------------------------------------------

    def get_context(self, out: Sequence[Array | None] | None = None) -> list[Array | None]:
        """Return copies of the last rows of all buffers with a context: the state after step T.

        Args:
            out: A context of this network that is no longer needed: its memory is reused if it
                fits and may be written to. It may be empty.

        Returns:
            For each hub an array (context, B, size), or `None` if it has no context.
        """
        context: list[Array | None] = [None] * len(self.hubs)
        for i, hub in stateful_hubs(self.hubs):
            rows, shape = self.buffers[i], (hub.context_size, self.batch_size, hub.size)
            state = self._writable(out[i] if out else None, shape)
            # Row -k is k steps back, either in this sequence or in its own context.
            for k in range(hub.context_size):
                step = self.time_size - hub.context_size + k
                self.handler.copy_to(rows[step % rows.shape[0]], state[k])
            context[i] = state
        return context

    def _writable(self, array: Any, shape: tuple[int, ...]) -> Array:
        """Return an array for a state: a given one, which may come from a file, if possible."""
        is_own = isinstance(array, self.handler.array_type)
        is_fixed = isinstance(array, np.ndarray) and not array.flags.writeable
        wanted = (*shape, self.handler.dtype)
        is_fitting = is_own and not is_fixed and (*array.shape, array.dtype) == wanted
        return array if is_fitting else self.handler.allocate(shape)

    def apply_context(self, context: Sequence[Array | None]) -> None:
        """Start the next forward pass from a state that `get_context` returned.

        Raises:
            NetworkValidationError: It belongs to another network or batch size.
        """
        for i, hub in stateful_hubs(self.hubs):
            expected = (hub.context_size, self.batch_size, hub.size)
            given = context[i] if len(context) == len(self.hubs) else None
            shape = getattr(given, "shape", None)
            if shape != expected:
                got = "none" if given is None else shown(given) if shape is None else shape
                hint = "A context fits the network and the batch size that it came from."
                if not context:
                    hint = "The first batch, in training of each epoch, needs continues=False."
                raise NetworkValidationError(
                    f"context for {hub.sources[0]!r}: expected an array of shape {expected}, got "
                    f"{got}. {hint}"
                )
            self.handler.copy_to(given, hub.context_rows(self.buffers[i]))

    def carry_context(self, state: list[Array | None], continues: bool) -> None:
        """Make the present batch a part of longer sequences; see `Network.carry_context`.

        Raises:
            NetworkValidationError: `state` is not a list, or of another network or batch size.
        """
        self._carried = None
        if not isinstance(state, list):
            raise NetworkValidationError(
                f"carry_context: expected a list, which is filled later, got {state!r}."
            )
        if continues:
            self.apply_context(state)
        else:
            state.clear()
            self.clear_context()
        self._carried = state

    @property
    def carries_context(self) -> bool:
        """Whether forward passes start from a carried state, and not from zeros."""
        return self._carried is not None

    def leave_batch(self) -> None:
        """Save the state after the last step, if it is carried on, before the data are replaced.

        That of before stays if there was no pass of the data, which may be provided again.
        """
        if self._carried is not None and (self.position is not None or not self._carried):
            self._carried[:] = self.get_context(out=self._carried)
        self._carried = None

    def start_context(self, context: Sequence[Array | None] | None) -> None:
        """Set the state before the first step: as given, as carried on, or else to zeros.

        Sequences of the second length S are never continued, and start from zeros.
        """
        if context is not None:
            self.apply_context(context)
        continues = context is not None or self._carried is not None
        self.clear_context("S" if continues else "TS")

    def clear_context(self, times: str = "TS") -> None:
        """Start the next forward pass from zeros, or only the sequences of lengths T or S."""
        hubs = stateful_hubs(self.hubs, times)
        self.handler.clear([hub.context_rows(self.buffers[i]) for i, hub in hubs])
