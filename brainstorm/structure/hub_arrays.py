"""The memory of a network, its arrays for the present T, B and S, and those for earlier ones.

Creating arrays takes longer than a small network takes to compute, and when T and B vary from batch
to batch, the same ones come again. All arrays for some sizes are in one object, so a change of
sizes is one assignment: other threads see those of before or after it, and it can be interrupted.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from brainstorm.errors import NetworkValidationError, OutOfMemoryError
from brainstorm.structure.buffer_views import Members
from brainstorm.structure.hubs import Hub
from brainstorm.structure.memory import describe_shortage
from brainstorm.structure.placement import place
from brainstorm.utils import Array, product

#: For how many sizes arrays are kept, and if they are of how many views at most: a replay uses
#: those of the data and of a few results, a pass of the layers uses all.
MOST_SIZES, MOST_VIEWS = 256, 32

#: What is wrong if the network, or a view of it, is used after `close`.
CLOSED = "the network is closed, its memory was released."


class HubArrays(Sequence[Array]):
    """The arrays of the hubs, created when needed.

    Args:
        hubs: The hubs.
        memory: The memory of each type of buffer.
        starts: Where each hub starts in it.
        sizes: T, B and S.

    Raises:
        NetworkValidationError: The memory was released.

    Attributes:
        members: Path of a view to its arrays.
    """

    def __init__(
        self,
        hubs: Sequence[Hub],
        memory: Sequence[Array] = (),
        starts: Sequence[int] = (),
        sizes: tuple[int, ...] = (0, 0, 0),
    ) -> None:
        self._hubs, self.memory, self._starts, self.sizes = hubs, memory, starts, sizes
        self._made: dict[int, Array] = {}
        self.members: dict[str, Members] = {}

    @classmethod
    def of(cls, arrays: Sequence[Array], hubs: Sequence[Hub]) -> HubArrays:
        """Return existing arrays, one per hub."""
        found = cls(hubs)
        found._made.update(enumerate(arrays))
        return found

    def __len__(self) -> int:
        return len(self._hubs)

    def __getitem__(self, number: Any) -> Any:
        array = self._made.get(number)
        if array is None:
            if not self._starts:
                raise NetworkValidationError(CLOSED)
            hub, start = self._hubs[number], self._starts[number]
            shape = hub.get_shape(*self.sizes)
            flat = self.memory[hub.buffer_type][start : start + product(shape)]
            array = self._made.setdefault(number, flat.reshape(shape))
        return array


class HubMemory:
    """The memory of the hubs. It only grows, and hubs stay in place until one needs more.

    Args:
        hubs: The hubs.
        allocate: Allocates it; a function of the shape.
        item_size: Bytes per value.

    Attributes:
        full_buffers: The memory of each type of buffer; another list when hubs have moved.
        capacities: Number of values in each of them.
    """

    def __init__(
        self,
        hubs: Sequence[Hub],
        allocate: Callable[[tuple[int, ...]], Array | None],
        item_size: int,
    ) -> None:
        self._hubs, self._allocate, self._item_size = hubs, allocate, item_size
        self.full_buffers: list[Array] = [None, None, None]
        self.capacities = [0, 0, 0]
        #: For each hub how many values it has had at most, and where it starts.
        self._largest, self._starts = [0] * len(hubs), list[int]()
        #: T, B and S that the memory is known to suffice for, and so for smaller ones.
        self._fitting: tuple[int, ...] | None = None

    def arrays(self, *sizes: int) -> HubArrays:
        """Return the arrays for some sizes; more memory is allocated if needed.

        Raises:
            OutOfMemoryError: The allocation failed.
        """
        if self._fitting is None or any(map(operator.gt, sizes, self._fitting)):
            self._make_room(*sizes)
        return HubArrays(self._hubs, self.full_buffers, self._starts, sizes)

    def _make_room(self, *sizes: int) -> None:
        counts = [hub.get_size(*sizes) for hub in self._hubs]
        if self._fitting is None or any(map(operator.gt, counts, self._largest)):
            self._move(list(map(max, counts, self._largest)), *sizes)
        try:
            list(HubArrays(self._hubs, self.full_buffers, self._starts, sizes))
        except (OverflowError, ValueError) as error:  # raised by NumPy, even if T or B is 0
            raise self._out_of_memory(*(n or 1 for n in sizes)) from error
        if self._fitting is None or all(map(operator.ge, sizes, self._fitting)):
            self._fitting = sizes

    def _move(self, counts: list[int], *sizes: int) -> None:
        """Place hubs of so many values each."""
        totals, starts = place(self._hubs, counts, self._item_size)
        memory = list(self.full_buffers)
        for buffer_type, needed in enumerate(totals):
            if memory[buffer_type] is None or needed > self.capacities[buffer_type]:
                try:
                    memory[buffer_type] = self._allocate((needed,))
                except (MemoryError, OverflowError, ValueError) as error:  # NumPy, from 2^63 on
                    raise self._out_of_memory(*sizes) from error
        capacities = list(map(max, totals, self.capacities))
        # In this order: if it is interrupted, the next call does all of it again.
        self.full_buffers, self.capacities = memory, capacities
        self._starts, self._largest = starts, counts

    def _out_of_memory(self, *sizes: int) -> OutOfMemoryError:
        return OutOfMemoryError(describe_shortage(self._hubs, self._item_size, *sizes))


class ArraysBySize:
    """The arrays for the present sizes, and for those that may come again.

    Attributes:
        present: The arrays for the present sizes.
    """

    def __init__(self) -> None:
        self.present = HubArrays(())
        self._kept: OrderedDict[tuple[int, ...], HubArrays] = OrderedDict()

    def enter(self, arrays: HubArrays) -> None:
        """Make these, or equal ones that are kept, the present arrays."""
        left, sizes = self.present, arrays.sizes
        if len(left.members) > MOST_VIEWS:
            self._kept.pop(left.sizes, None)
        found = self._kept.setdefault(sizes, arrays)
        self._kept.move_to_end(sizes)
        if len(self._kept) > MOST_SIZES:
            self._kept.popitem(last=False)
        self.present = found

    def clear(self) -> None:
        """Keep no arrays, because memory moves."""
        self._kept.clear()
