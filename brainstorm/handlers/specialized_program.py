"""How a program meets arrays: loops and operations, and the numbers and addresses they take."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brainstorm.handlers.binding import Alone, Binding, Bound
from brainstorm.handlers.numpy_memory import ALIGNMENT, address_of, array_at
from brainstorm.optree.collapse import Axes
from brainstorm.optree.loops import Loop
from brainstorm.optree.program import Step
from brainstorm.utils import Array


class Loops(NamedTuple):
    """Consecutive loops, which one kernel may do.

    Attributes:
        loops: The loops.
        axes: Of each loop the sizes and strides.
        constants: Of each loop the numbers that its body uses.
        numbers: All of these as the arguments of a kernel in C, with threads and chunks.
    """

    loops: tuple[Loop, ...]
    axes: list[Axes]
    constants: list[tuple[float, ...]]
    numbers: np.ndarray


class SpecializedProgram:
    """Loops and arguments for all arrays of the same shapes, strides, types and overlaps.

    Args:
        bound: The program with such arrays.
        workspace: Returns memory of so many bytes that other calls may overwrite, for values
            between the stages; None: they have memory of their own.

    Attributes:
        parts: Loops, and steps that are not loops, in order.
        buffers: Memory of values between the stages; it must live as long as the calls.
        nbytes: Bytes of it that are not in the workspace.
    """

    def __init__(
        self, bound: Binding, workspace: Callable[[int], np.ndarray] | None = None
    ) -> None:
        self.parts: list[Loops | Step] = []
        #: Of each part's views: numbers of their arrays, distances from there; of steps layouts.
        self._views: list[tuple[np.ndarray, np.ndarray, list[Any]]] = []
        for number, group in itertools.groupby(bound.stages, _alone):
            stages: Any = list(group)
            views = [place for stage in stages for place in (*stage.reads, *stage.writes)]
            starts = [address_of(bound.arrays[place.base]) for place in views]
            distances = [address_of(p.view) - at for p, at in zip(views, starts, strict=True)]
            forms = [(p.view.shape, p.view.dtype, p.view.strides) for p in views if number]
            bases = np.array([place.base for place in views], np.intp)
            self._views.append((bases, np.array(distances, np.intp), forms))
            self.parts.append(stages[0].step if number else _loops(stages))
        self.buffers = bound.buffers
        self.nbytes = sum(array.nbytes for array in self.buffers)
        if workspace is not None and self.buffers and not bound.keeps_zeros:
            self.buffers, self.nbytes = _placed(self.buffers, workspace), 0

    def placed(self, given: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        """Yield loops with the addresses of their arrays, and steps with operands and result.

        Args:
            given: Addresses of inputs and outputs.
        """
        starts = np.array([*given, *map(address_of, self.buffers)], np.intp)
        for part, (bases, distances, forms) in zip(self.parts, self._views, strict=True):
            places = (starts[bases] + distances).tolist()
            if isinstance(part, Step):
                places = [array_at(at, *form) for at, form in zip(places, forms, strict=True)]
            yield part, places


def _alone(stage: Bound | Alone) -> int:
    """Return a number of a step that is not a loop; 0 for loops."""
    return id(stage) if isinstance(stage, Alone) else 0


def _loops(stages: Sequence[Bound]) -> Loops:
    numbers = np.array([n for stage in stages for n in stage.numbers], np.intp)
    constants = [tuple(stage.constants) for stage in stages]
    return Loops(tuple(s.loop for s in stages), [s.axes for s in stages], constants, numbers)


def _placed(arrays: Sequence[Array], workspace: Callable[[int], np.ndarray]) -> list[Array]:
    """Return arrays like these, placed one after the other in the workspace."""
    stops = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
    memory = workspace(stops[-1])
    return [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for start, array in zip([0, *stops], arrays, strict=False)
    ]
