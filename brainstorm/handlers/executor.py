"""Executors of a program: it is bound once for all arrays that lie in memory likewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.binding import bind
from brainstorm.handlers.bound_program import BoundProgram
from brainstorm.handlers.numpy_memory import aligned_zeros, steps_of
from brainstorm.handlers.overlaps import find_overlaps
from brainstorm.handlers.threads import default_threads
from brainstorm.optree.program import Program
from brainstorm.optree.stages import split_into_stages
from brainstorm.utils import Array

#: For how many kinds of arrays an executor keeps the bound program.
MOST_BOUND = 32


class Executor:
    """Base of executors of a program that are made of compiled loops.

    Args:
        program: The program.
        threads: How many threads loops use at most; None: `default_threads`.
        new: See `bind`.
        workspace: See `bind`.

    Raises:
        NotRenderableError: If the program has an operator without a C form.
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        new: Callable[[tuple[int, ...], Any], Array] = aligned_zeros,
        workspace: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.program, self.threads = program, threads or default_threads()
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
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
        addresses: Sequence[int],
    ) -> BoundProgram:
        """Return the program bound to NumPy arrays, or to what looks like them.

        Args:
            inputs: One array per input of the program, of its shape.
            outputs: One array per output.
            accumulate: For each output, whether to add to it.
            addresses: Addresses of inputs and outputs.

        Raises:
            HandlerValidationError: If an array has another shape.
        """
        self._check(inputs, outputs, accumulate)
        arrays = (*inputs, *outputs)
        form = tuple([(steps_of(array), array.dtype) for array in arrays])
        overlaps = find_overlaps(arrays, addresses, len(inputs))
        key = (form, accumulate, overlaps)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_BOUND:
                del self._known[next(iter(self._known))]
            found = self._known[key] = bind(
                self._staged, inputs, outputs, accumulate, overlaps, self.threads, self._new,
                self._workspace,
            )  # fmt: skip
        return found

    def _check(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: tuple[bool, ...]
    ) -> None:
        for what, values, arrays in (
            ("input", range(len(self.program.inputs)), inputs),
            ("output", self.program.outputs, outputs),
        ):
            expected = [self.program.shape_of(value) for value in values]
            got = [array.shape for array in arrays]
            if expected != got or (what == "output" and len(accumulate) != len(got)):
                raise HandlerValidationError(
                    f"compiled op-tree: expected {what}s of shapes {expected}, got {got} and "
                    f"accumulate={accumulate}. Linearise the trees again for other shapes."
                )
