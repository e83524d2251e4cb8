"""The compiled executor: a program as C, run on NumPy arrays.

    run = CompiledProgram(linearise([loss, *gradients]))
    run([x, w], [loss_array, dw_array], accumulate=[False, True])

Everything that depends on shapes, strides and types is worked out once per layout of the arrays.
Kernels are shared by all programs of the same structure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.handlers import compiler
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.program_layouts import ProgramLayouts
from brainstorm.optree.loops import Loop
from brainstorm.optree.render_c import render_kernel
from brainstorm.utils import Array

__all__ = ["CompiledProgram"]

#: A kernel in C: takes pointers and numbers.
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


#: Loops to the address of their kernel.
_functions: dict[tuple[Loop, ...], int] = {}


def _function_of(loops: tuple[Loop, ...]) -> int:
    if loops not in _functions:
        function: Any = compiler.load(lambda seal: render_kernel(loops, "kernel", seal), "kernel")
        _functions[loops] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return _functions[loops]


class CompiledProgram(ProgramLayouts):
    """Executes a program with compiled loops; not for several Python threads at a time.

    Results are the same bits for the same number of threads; see `ProgramLayouts`.
    """

    def __call__(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: bool | Sequence[bool] = False,
    ) -> None:
        """Compute the outputs, as if every input were read before any output is written.

        Args:
            inputs: One array per input of the program, of its shape.
            outputs: One array per output.
            accumulate: Whether to add to what is in the outputs: for all, or for each.

        Raises:
            HandlerValidationError: If an array has another shape.
            MissingDependencyError: If there is no compiler.
            NotRenderableError: If an array's element type is none of C's.
        """
        addresses = [address_of(array) for array in (*inputs, *outputs)]
        address, pointers, numbers, _ = self.parts(
            inputs, outputs, self._flags(accumulate), addresses
        )
        _KERNEL(address)(pointers.ctypes.data, numbers.ctypes.data)

    def parts(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: tuple[bool, ...],
        addresses: Sequence[int],
    ) -> tuple[int, np.ndarray, np.ndarray, Any]:
        """Return what a call with these arrays consists of, and do nothing; see `layout`.

        Returns:
            The address of the C function, its pointers and its numbers, and what must be kept as
            long as they are used, beside the arrays.
        """
        layout = self.layout(inputs, outputs, accumulate, addresses)
        return _function_of(layout.loops), *layout.arguments(addresses), layout.buffers

    def source(self, inputs: Sequence[Array], outputs: Sequence[Array],
               accumulate: bool | Sequence[bool] = False) -> str:  # fmt: skip
        """Return the C text for arrays like these."""
        addresses = [address_of(array) for array in (*inputs, *outputs)]
        layout = self.layout(inputs, outputs, self._flags(accumulate), addresses)
        return render_kernel(layout.loops, "kernel")

    def _flags(self, accumulate: bool | Sequence[bool]) -> tuple[bool, ...]:
        if isinstance(accumulate, bool):
            return (accumulate,) * len(self.program.outputs)
        return tuple(map(bool, accumulate))
