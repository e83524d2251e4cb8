"""Bound programs: loops and operations with arrays, the numbers and the addresses they take."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from brainstorm.handlers.numpy_memory import address_of, array_at
from brainstorm.optree.collapse import Axes
from brainstorm.optree.loops import Loop
from brainstorm.optree.program import Step
from brainstorm.utils import Array


class Place(NamedTuple):
    """A view, and which of the program's arrays it is a view of."""

    base: int
    view: Array

    def over(self, domain: tuple[int, ...]) -> Place:
        """Return the place with the view broadcast to a shape."""
        if self.view.shape == domain:
            return self
        return Place(self.base, np.broadcast_to(self.view, domain))


class BoundStage(NamedTuple):
    """A stage with arrays.

    Attributes:
        work: The loop, or a step that is not a loop: for this there is nothing after `writes`.
        reads: What it reads.
        writes: What it writes.
        axes: Sizes and strides of the loop.
        threads: The largest number of threads.
        chunks: The number of chunks of the outermost reduced axis.
        constants: The numbers that the body uses.
    """

    work: Loop | Step
    reads: list[Place]
    writes: list[Place]
    axes: Axes = Axes((), (), ())
    threads: int = 1
    chunks: int = 1
    constants: Sequence[float] = ()

    @property
    def numbers(self) -> list[int]:
        """The arguments of a loop's C function other than addresses."""
        flat = [n for strides in self.axes.strides for n in strides]
        bits = np.array(self.constants, np.float64).view(np.int64).tolist()
        return [self.threads, self.chunks, *self.axes.sizes, *flat, *bits]

    @property
    def reads_all(self) -> list[bool]:
        """For each write, whether everything is read before anything is written."""
        if isinstance(self.work, Step):
            return [True]
        return [bool(write.reduction) for write in self.work.writes]


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


class BoundProgram:
    """Loops and arguments for all arrays of the same shapes, strides, types and overlaps.

    Args:
        stages: The stages, in order, with such arrays.
        arrays: The arrays of their places: inputs, outputs, and new ones.
        buffers: The new ones, or others like them.
        nbytes: Bytes of these that are not in the workspace.

    Attributes:
        parts: Loops, and steps that are not loops, in order.
        buffers: Memory of values between the stages; it must live as long as the calls.
        nbytes: Bytes of it that are not in the workspace.
    """

    def __init__(
        self,
        stages: Sequence[BoundStage],
        arrays: Sequence[Array],
        buffers: list[Array],
        nbytes: int,
    ) -> None:
        self.buffers, self.nbytes = buffers, nbytes
        self.parts: list[Loops | Step] = []
        #: Of each part's views: numbers of their arrays, distances from there; of steps layouts.
        self._views: list[tuple[np.ndarray, np.ndarray, list[Any]]] = []
        for step, group in itertools.groupby(stages, _step_of):
            part = list(group)
            views = [place for stage in part for place in (*stage.reads, *stage.writes)]
            starts = [address_of(arrays[place.base]) for place in views]
            distances = [address_of(p.view) - at for p, at in zip(views, starts, strict=True)]
            forms = [(p.view.shape, p.view.dtype, p.view.strides) for p in views if step]
            bases = np.array([place.base for place in views], np.intp)
            self._views.append((bases, np.array(distances, np.intp), forms))
            self.parts.append(step or _loops(part))

    def placed(self, given: Iterable[Array]) -> Iterator[tuple[Any, Any]]:
        """Yield loops with the addresses of their arrays, and steps with operands and result.

        Args:
            given: Inputs and outputs.
        """
        starts = np.array([address_of(array) for array in (*given, *self.buffers)], np.intp)
        for part, (bases, distances, forms) in zip(self.parts, self._views, strict=True):
            places = (starts[bases] + distances).tolist()
            if isinstance(part, Step):
                places = [array_at(at, *form) for at, form in zip(places, forms, strict=True)]
            yield part, places


def _step_of(stage: BoundStage) -> Step | None:
    """Return the step, which equals no other and so is a part of its own; None: it is a loop."""
    return stage.work if isinstance(stage.work, Step) else None


def _loops(stages: Sequence[Any]) -> Loops:
    numbers = np.array([n for stage in stages for n in stage.numbers], np.intp)
    constants = [tuple(stage.constants) for stage in stages]
    return Loops(tuple(s.work for s in stages), [s.axes for s in stages], constants, numbers)
