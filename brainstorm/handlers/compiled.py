"""The compiled executor: a program as C, run on NumPy arrays.

    run = CompiledProgram(linearise([loss, *gradients], lower=True))
    run([x, w], [loss_array, dw_array], accumulate=[False, True])

Everything that depends on shapes, strides and types is worked out once per layout of the arrays.
Kernels are shared by all programs of the same structure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import compiler
from brainstorm.handlers.compiled_layout import Layout, find_overlaps
from brainstorm.handlers.numpy_memory import address_of, aligned_zeros, steps_of
from brainstorm.handlers.threads import default_threads
from brainstorm.optree.loops import Loop
from brainstorm.optree.program import Program
from brainstorm.optree.render_c import render_kernel
from brainstorm.optree.stages import schedule
from brainstorm.utils import Array

__all__ = ["CompiledProgram"]

#: How many layouts a program remembers.
MOST_LAYOUTS = 32

_Flags: TypeAlias = tuple[bool, ...]

#: A kernel in C: takes pointers and numbers.
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


#: Loops to the address of their kernel.
_functions: dict[tuple[Loop, ...], int] = {}


def _function_of(loops: tuple[Loop, ...]) -> int:
    if loops not in _functions:
        function: Any = compiler.load(lambda seal: render_kernel(loops, "kernel", seal), "kernel")
        _functions[loops] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return _functions[loops]


class CompiledProgram:
    """Executes a program with compiled loops; not for several Python threads at a time.

    Args:
        program: Linearised with ``lower=True``.
        threads: How many threads a call uses at most; None: `default_threads`. Results are the
            same bits for the same number of threads.
        new: See `Layout`.
        workspace: See `Layout`; None: layouts have memory of their own.

    Raises:
        NotRenderableError: If the program has products or indexing, or an operator without C.
    """

    def __init__(
        self,
        program: Program,
        threads: int | None = None,
        new: Callable[[tuple[int, ...], Any], Array] = aligned_zeros,
        workspace: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.program, self._memory = program, (new, workspace)
        self.threads = default_threads() if threads is None else threads
        self._schedule = schedule(program)
        self._layouts: dict[Any, Layout] = {}

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
        address, pointers, numbers, _ = self.parts(inputs, outputs, accumulate)
        _KERNEL(address)(pointers.ctypes.data, numbers.ctypes.data)

    def parts(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: bool | Sequence[bool],
        addresses: Sequence[int] | None = None,
    ) -> tuple[int, np.ndarray, np.ndarray, Any]:
        """Return what a call with these arrays consists of, and do nothing.

        Args:
            inputs: As for a call.
            outputs: Likewise.
            accumulate: Likewise.
            addresses: Those of inputs and outputs, if they are known.

        Returns:
            The address of the C function, its pointers and its numbers, and what must be kept as
            long as they are used, beside the arrays.
        """
        if addresses is None:
            addresses = [address_of(array) for array in (*inputs, *outputs)]
        layout = self._layout(inputs, outputs, accumulate, addresses)
        return _function_of(layout.loops), *layout.arguments(addresses), layout

    @property
    def nbytes(self) -> int:
        """How much memory the layouts have to themselves."""
        return sum(layout.nbytes for layout in self._layouts.values())

    def forget(self) -> None:
        """Forget the layouts, and the memory that they hold."""
        self._layouts.clear()

    def source(self, inputs: Sequence[Array], outputs: Sequence[Array],
               accumulate: bool | Sequence[bool] = False) -> str:  # fmt: skip
        """Return the C text for arrays like these."""
        addresses = [address_of(array) for array in (*inputs, *outputs)]
        return render_kernel(self._layout(inputs, outputs, accumulate, addresses).loops, "kernel")

    def _layout(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        accumulate: bool | Sequence[bool],
        addresses: Sequence[int],
    ) -> Layout:
        flags = self._flags(accumulate)
        self._check(inputs, outputs, flags)
        arrays = (*inputs, *outputs)
        form = tuple([(steps_of(array), array.dtype) for array in arrays])
        key = (form, flags, find_overlaps(arrays, addresses, len(inputs)))
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            layout = self._layouts[key] = Layout(
                self._schedule, inputs, outputs, flags, self.threads, *self._memory
            )
        return layout

    def _flags(self, accumulate: bool | Sequence[bool]) -> _Flags:
        if isinstance(accumulate, bool):
            return (accumulate,) * len(self.program.outputs)
        return tuple(map(bool, accumulate))

    def _check(self, inputs: Sequence[Array], outputs: Sequence[Array], flags: _Flags) -> None:
        for what, values, arrays in (
            ("input", range(len(self.program.inputs)), inputs),
            ("output", self.program.outputs, outputs),
        ):
            expected = [self.program.shape_of(value) for value in values]
            got = [array.shape for array in arrays]
            if expected != got or (what == "output" and len(flags) != len(got)):
                raise HandlerValidationError(
                    f"compiled op-tree: expected {what}s of shapes {expected}, got {got} and "
                    f"accumulate={flags}. Linearise the trees again for other shapes."
                )
