"""Programs as calls: loops in C, and other operations between them.

Everything that depends on shapes, strides and types is worked out once for all arrays that lie
likewise. Kernels are shared by all programs of the same structure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from brainstorm.handlers import compiler
from brainstorm.handlers.bound_program import Loops
from brainstorm.handlers.executor import Executor
from brainstorm.handlers.native.calls import Kernel
from brainstorm.optree.program import Step
from brainstorm.optree.render_c import render_kernel
from brainstorm.utils import Array


def numpy_calls(step: Step, *arrays: Array) -> list[Callable[[], None]]:
    """Return the call of NumPy's function for a step that is not a loop, of operands and result."""
    *operands, out = arrays
    call = functools.partial(_quietly, step.operator.numpy, *operands, out=out, **step.params)
    return [call]


def _quietly(function: Any, *operands: Array, **options: Any) -> None:
    with np.errstate(all="ignore"):
        function(*operands, **options)


class NativeExecutor(Executor):
    """Turns a program and arrays into calls; not for several Python threads at a time.

    Results have the same bits for the same number of threads.

    Args:
        *given: What `Executor` takes.
        operation: Returns the calls for a step that is no loop, as `numpy_calls` does.
        **options: Of `Executor`, by name.
    """

    def __init__(
        self, *given: Any, operation: Callable[..., list[Any]] = numpy_calls, **options: Any
    ) -> None:
        super().__init__(*given, **options)
        self._operation = operation

    def calls(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: tuple[bool, ...]
    ) -> list[Any]:
        """Return calls that compute the outputs as if all inputs were read before any is written.

        See `Executor.bound` for arguments and errors.

        Raises:
            MissingDependencyError: If there is no compiler.
        """
        bound = self.bound(inputs, outputs, accumulate)
        calls: list[Any] = []
        for part, places in bound.placed((*inputs, *outputs)):
            if isinstance(part, Loops):
                text = functools.partial(render_kernel, part.loops, "kernel")
                function = compiler.load_once(part.loops, text, "kernel")
                calls.append(Kernel(function, places, part.numbers, bound.buffers))
            else:
                for call in self._operation(part, *places):
                    call.keep = (getattr(call, "keep", ()), bound.buffers)
                    calls.append(call)
        for call in calls:
            call.name = self.program.name
        return calls

    def source(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
        """Return the C text for arrays like these: all kernels, one after the other."""
        parts = self.bound(inputs, outputs, (False,) * len(outputs)).parts
        kernels = [part.loops for part in parts if isinstance(part, Loops)]
        return "\n".join(render_kernel(loops, "kernel") for loops in kernels)
