"""How a program meets arrays: loops and operations, and the numbers and addresses they take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.binding import Alone, Binding, Bound, Place
from brainstorm.handlers.numpy_memory import ALIGNMENT, address_of, array_at
from brainstorm.utils import Array


class _Part:
    """What is done with views of arrays: each at a distance from an array's beginning.

    Args:
        places: The views.
        arrays: The arrays.
    """

    def __init__(self, places: Sequence[Place], arrays: Sequence[Array]) -> None:
        self._bases = np.array([place.base for place in places], np.intp)
        distances = [address_of(p.view) - address_of(arrays[p.base]) for p in places]
        self._distances = np.array(distances, np.intp)

    def pointers(self, addresses: np.ndarray) -> np.ndarray:
        """Return the addresses of the views, given what `SpecializedProgram.addresses` returns."""
        return addresses[self._bases] + self._distances


class Loops(_Part):
    """Consecutive loops, which one kernel may do.

    Attributes:
        loops: The loops.
        axes: Of each loop the sizes and strides.
        constants: Of each loop the numbers that its body uses.
        numbers: All of these as the arguments of a kernel in C, with threads and chunks.
    """

    def __init__(self, stages: Sequence[Bound], arrays: Sequence[Array]) -> None:
        views = [place for stage in stages for place in (*stage.reads, *stage.writes)]
        super().__init__(views, arrays)
        self.loops = tuple(stage.loop for stage in stages)
        self.axes = [stage.axes for stage in stages]
        self.constants = [tuple(stage.constants) for stage in stages]
        self.numbers = np.array([n for stage in stages for n in stage.numbers], np.intp)


class Operation(_Part):
    """A step that is not a loop: a product, or an indexing.

    Attributes:
        step: The step.
    """

    def __init__(self, bound: Alone, arrays: Sequence[Array]) -> None:
        places = [*bound.reads, *bound.writes]
        super().__init__(places, arrays)
        self.step = bound.step
        self._forms = [(p.view.shape, p.view.dtype, p.view.strides) for p in places]

    def views(self, addresses: np.ndarray) -> list[np.ndarray]:
        """Return its operands and its result, given what `SpecializedProgram.addresses` returns."""
        pointers = self.pointers(addresses).tolist()
        return [array_at(at, *form) for at, form in zip(pointers, self._forms, strict=True)]


class SpecializedProgram:
    """Loops and arguments for all arrays of the same shapes, strides, types and overlaps.

    Args:
        bound: The program with such arrays.
        workspace: Returns memory of so many bytes that other calls may overwrite, for values
            between the stages; None: they have memory of their own.

    Attributes:
        parts: The parts, in order.
        buffers: Memory of values between the stages; it must live as long as the calls.
        nbytes: Bytes of it that are not in the workspace.
    """

    def __init__(
        self, bound: Binding, workspace: Callable[[int], np.ndarray] | None = None
    ) -> None:
        self.parts: list[Loops | Operation] = []
        for alone, group in itertools.groupby(bound.stages, lambda s: isinstance(s, Alone)):
            stages: Any = list(group)
            if alone:
                self.parts += [Operation(stage, bound.arrays) for stage in stages]
            else:
                self.parts.append(Loops(stages, bound.arrays))
        self.buffers = bound.buffers
        self.nbytes = sum(array.nbytes for array in self.buffers)
        if workspace is not None and self.buffers and not bound.keeps_zeros:
            self.buffers, self.nbytes = _placed(self.buffers, workspace), 0

    def addresses(self, given: Sequence[int]) -> np.ndarray:
        """Return the addresses of all arrays, given those of the inputs and outputs."""
        return np.array([*given, *map(address_of, self.buffers)], np.intp)


def _placed(arrays: Sequence[Array], workspace: Callable[[int], np.ndarray]) -> list[Array]:
    """Return arrays like these, placed one after the other in the workspace."""
    stops = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
    memory = workspace(stops[-1])
    return [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for start, array in zip([0, *stops], arrays, strict=False)
    ]
