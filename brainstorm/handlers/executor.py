"""Executors of a program: it is bound once for all arrays that lie in memory likewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.binding import Binder
from brainstorm.handlers.bound_program import BoundProgram
from brainstorm.handlers.numpy_memory import ALIGNMENT, aligned_zeros, steps_of
from brainstorm.handlers.overlaps import Overlaps, find_conflicts, find_overlaps
from brainstorm.optree.program import Program
from brainstorm.optree.stages import split_into_stages
from brainstorm.utils import Array

#: For how many kinds of arrays an executor keeps the bound program.
MOST_BOUND = 32


class Executor:
    """Base of executors of a program that are made of compiled loops.

    Args:
        program: The program.
        threads: How many threads loops use at most.
        new: Returns an array of zeros of a shape and type, for what lies between the stages.
        workspace: Returns memory of so many bytes that other calls may overwrite, which replaces
            these arrays, unless parts are never written and must stay zero; None: there is none.

    Raises:
        NotRenderableError: If the program has an operator without a C form.
    """

    def __init__(
        self,
        program: Program,
        threads: int = 1,
        new: Callable[[tuple[int, ...], Any], Array] = aligned_zeros,
        workspace: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.program, self.threads = program, threads
        self._staged, self._new, self._workspace = split_into_stages(program), new, workspace
        self._known: dict[Any, BoundProgram] = {}

    @property
    def nbytes(self) -> int:
        """How much memory the bound programs have to themselves."""
        return sum(bound.nbytes for bound in self._known.values())

    def forget(self) -> None:
        """Evict the bound programs, and the memory that they hold."""
        self._known.clear()

    def bound(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: tuple[bool, ...]
    ) -> BoundProgram:
        """Return the program bound to NumPy arrays, or to what looks like them.

        Args:
            inputs: One array per input of the program, of its shape.
            outputs: One array per output.
            accumulate: For each output, whether to add to it.

        Raises:
            HandlerValidationError: If an array has another shape.
            NotRenderableError: If there is no C type for an array's elements.
        """
        self.program.check_arrays(inputs, outputs, accumulate)
        arrays = (*inputs, *outputs)
        form = tuple([(steps_of(array), array.dtype) for array in arrays])
        overlaps = find_overlaps(arrays, len(inputs))
        key = (form, accumulate, overlaps)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_BOUND:
                del self._known[next(iter(self._known))]
            found = self._known[key] = self._bind(inputs, outputs, accumulate, overlaps)
        return found

    def _bind(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
        overlaps: Overlaps,
    ) -> BoundProgram:
        """Bind the program; outputs that would be written too early get new arrays first."""
        protected: set[int] = set()
        while True:
            binder = Binder(
                self._staged, inputs, outputs, accumulate, self.threads, self._new, protected
            )
            stages = binder.run()
            found = find_conflicts(stages, len(inputs), overlaps) - protected
            if not found:
                break
            protected |= found
        buffers = binder.arrays[len(inputs) + len(outputs) :]
        nbytes = sum(array.nbytes for array in buffers)
        if self._workspace is not None and buffers and not binder.keeps_zeros:
            buffers, nbytes = _in_workspace(buffers, self._workspace), 0
        return BoundProgram(stages, binder.arrays, buffers, nbytes)


def _in_workspace(arrays: Sequence[Array], workspace: Callable[[int], np.ndarray]) -> list[Array]:
    """Return arrays like these, placed one after the other in the workspace."""
    stops = np.cumsum([-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays]).tolist()
    memory = workspace(stops[-1])
    return [
        memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for start, array in zip([0, *stops], arrays, strict=False)
    ]
