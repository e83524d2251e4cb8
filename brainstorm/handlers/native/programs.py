"""The compiled executor: a program as C, run on NumPy arrays.

    run = CompiledProgram(linearise([loss, *gradients]))
    run([x, w], [loss_array, dw_array], accumulate=[False, True])

Everything that depends on shapes, strides and types is worked out once per layout of the arrays.
Kernels are shared by all programs of the same structure.
"""

from __future__ import annotations

from collections.abc import Sequence

from brainstorm.handlers import compiler
from brainstorm.handlers.native.calls import Kernel
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.program_layouts import ProgramLayouts
from brainstorm.optree.loops import Loop
from brainstorm.optree.render_c import render_kernel
from brainstorm.utils import Array

__all__ = ["CompiledProgram"]

#: Loops to the address of their kernel.
_functions: dict[tuple[Loop, ...], int] = {}


class CompiledProgram(ProgramLayouts):
    """Executes a program with compiled loops; not for several Python threads at a time.

    Results are the same bits for the same number of threads; see `ProgramLayouts`.
    """

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: Sequence[bool] = ()
    ) -> None:
        """Compute the outputs, as if every input were read before any output is written.

        Args:
            inputs: One array per input of the program, of its shape.
            outputs: One array per output.
            accumulate: For each output, whether to add to what is in it; nothing: to none.

        Raises:
            HandlerValidationError: If an array has another shape.
            MissingDependencyError: If there is no compiler.
            NotRenderableError: If an array's element type is none of C's.
        """
        self.kernel(inputs, outputs, tuple(accumulate) or (False,) * len(outputs))()

    def kernel(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: tuple[bool, ...]
    ) -> Kernel:
        """Return the call that does that; see `layout`."""
        addresses = [address_of(array) for array in (*inputs, *outputs)]
        layout = self.layout(inputs, outputs, accumulate, addresses)
        if layout.loops not in _functions:
            source = render_kernel(layout.loops, "kernel")
            _functions[layout.loops] = compiler.load(source, "kernel")
        arguments = layout.arguments(addresses)
        return Kernel(_functions[layout.loops], *arguments, layout.buffers, "run_program")

    def source(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
        """Return the C text for arrays like these."""
        addresses = [address_of(array) for array in (*inputs, *outputs)]
        layout = self.layout(inputs, outputs, (False,) * len(outputs), addresses)
        return render_kernel(layout.loops, "kernel")
