"""The layouts of a program: loops and arrays, worked out once for all arrays that lie likewise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers.compiled_layout import Layout, find_overlaps
from brainstorm.handlers.numpy_memory import aligned_zeros, steps_of
from brainstorm.handlers.threads import default_threads
from brainstorm.optree.program import Program
from brainstorm.optree.stages import schedule
from brainstorm.utils import Array

__all__ = ["ProgramLayouts"]

#: How many layouts a program remembers.
MOST_LAYOUTS = 32


class ProgramLayouts:
    """Base of executors of a program that are made of compiled loops.

    Args:
        program: The program.
        threads: How many threads loops use at most; None: `default_threads`.
        new: See `Layout`.
        workspace: See `Layout`; None: layouts have memory of their own.

    Raises:
        NotRenderableError: If the program has an operator without C.
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        new: Callable[[tuple[int, ...], Any], Array] = aligned_zeros,
        workspace: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.program, self.threads = program, threads or default_threads()
        self._schedule, self._memory = schedule(program), (new, workspace)
        self._layouts: dict[Any, Layout] = {}

    @property
    def nbytes(self) -> int:
        """How much memory the layouts have to themselves."""
        return sum(layout.nbytes for layout in self._layouts.values())

    def forget(self) -> None:
        """Forget the layouts, and the memory that they hold."""
        self._layouts.clear()

    def layout(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
        addresses: Sequence[int],
    ) -> Layout:
        """Return the layout of NumPy arrays, or of what looks like them.

        Args:
            inputs: One array per input of the program, of its shape.
            outputs: One array per output.
            accumulate: For each output, whether to add to it.
            addresses: Those of inputs and outputs.

        Raises:
            HandlerValidationError: If an array has another shape.
        """
        self._check(inputs, outputs, accumulate)
        arrays = (*inputs, *outputs)
        form = tuple([(steps_of(array), array.dtype) for array in arrays])
        overlaps = find_overlaps(arrays, addresses, len(inputs))
        key = (form, accumulate, overlaps)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            found = self._layouts[key] = Layout(
                self._schedule, inputs, outputs, accumulate, overlaps, self.threads, *self._memory
            )
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
