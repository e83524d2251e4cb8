"""The compiled executor: a program as C, run on NumPy arrays.

    run = CompiledProgram(linearise([loss, *gradients], lower=True))
    run([x, w], [loss_array, dw_array], accumulate=[False, True])

Everything that depends on shapes, strides and types is worked out once per layout of the arrays,
everything that depends on addresses once per set of arrays; a call with arrays that were given
before passes two pointers to C. Kernels are shared by all programs of the same structure.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import compiler
from brainstorm.handlers.compiled_layout import Layout, find_overlaps
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.threads import default_threads, is_forked
from brainstorm.optree.loops import Loop
from brainstorm.optree.program import Program
from brainstorm.optree.render_c import render_kernel
from brainstorm.optree.stages import schedule
from brainstorm.utils import Array

__all__ = ["CompiledProgram"]

#: How many layouts, and how many sets of arrays, a program remembers per Python thread.
MOST_LAYOUTS, MOST_CALLS = 32, 4096

_Flags: TypeAlias = tuple[bool, ...]

_functions: dict[tuple[Loop, ...], Callable[..., None]] = {}
_programs: weakref.WeakSet[CompiledProgram] = weakref.WeakSet()


def _after_fork() -> None:
    for program in list(_programs):
        program.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _function_of(loops: tuple[Loop, ...]) -> Callable[..., None]:
    function = _functions.get(loops)
    if function is None:
        function = compiler.load(lambda seal: render_kernel(loops, "kernel", seal), "kernel")
        _functions[loops] = function
    return function


class _Memory(threading.local):
    """What is remembered, per thread: layouts own the buffers between their stages."""

    def __init__(self) -> None:
        self.layouts: dict[Any, Layout] = {}
        self.places: dict[Any, tuple[Any, ...]] = {}
        self.calls: dict[Any, tuple[Any, ...]] = {}


class CompiledProgram:
    """Executes a program with compiled loops.

    Args:
        program: Linearised with ``lower=True``.
        threads: How many threads a call uses at most; None: `default_threads`. Results are the
            same bits for the same number of threads.

    Raises:
        NotRenderableError: If the program has products or indexing, or an operator without C.
    """

    def __init__(self, program: Program, threads: int | None = None) -> None:
        self.program = program
        self._schedule = schedule(program)
        self._threads = threads
        self._memory = _Memory()
        _programs.add(self)

    def forget(self) -> None:
        """Drop everything that is remembered about arrays."""
        self._memory = _Memory()

    @property
    def threads(self) -> int:
        """The largest number of threads."""
        if self._threads is None or is_forked():
            return default_threads()
        return self._threads

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
        known = self._known(inputs, outputs, accumulate)
        known[0](known[1], known[2])

    def call_parts(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: bool | Sequence[bool]
    ) -> tuple[int, int, int, Any]:
        """Return what a call with these arrays passes to C, and do nothing.

        Returns:
            The addresses of the function, of its pointers and of its numbers, and what these
            belong to: they are valid as long as this and the arrays are kept.
        """
        function, pointers, numbers, *owners = self._known(inputs, outputs, accumulate)
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        return address, pointers, numbers, owners

    def _known(
        self, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: bool | Sequence[bool]
    ) -> tuple[Any, ...]:
        flags = accumulate if type(accumulate) is bool else tuple(accumulate)
        key = (*map(id, inputs), *map(id, outputs), flags)
        known = self._memory.calls.get(key)
        if known is None:
            known = self._remember(key, inputs, outputs, flags)
        return known

    def source(self, inputs: Sequence[Array], outputs: Sequence[Array],
               accumulate: bool | Sequence[bool] = False) -> str:  # fmt: skip
        """Return the C text for arrays like these."""
        flags = self._flags(accumulate)
        self._check(inputs, outputs, flags)
        return render_kernel(self._call_at(inputs, outputs, flags)[-1].loops, "kernel")

    def _flags(self, accumulate: bool | Sequence[bool]) -> _Flags:
        if isinstance(accumulate, bool):
            return (accumulate,) * len(self.program.outputs)
        return tuple(map(bool, accumulate))

    def _remember(
        self, key: Any, inputs: Sequence[Array], outputs: Sequence[Array], accumulate: Any
    ) -> tuple[Any, ...]:
        flags = self._flags(accumulate)
        self._check(inputs, outputs, flags)
        call = self._call_at(inputs, outputs, flags)
        calls = self._memory.calls
        if len(calls) >= MOST_CALLS:
            calls.clear()

        def gone(_: Any) -> None:
            calls.pop(key, None)

        # An entry lives no longer than its arrays, whose ids may be given to others.
        alive = [weakref.ref(array, gone) for array in (*inputs, *outputs)]
        entry = (*call, alive)
        calls[key] = entry
        return entry

    def _call_at(
        self, inputs: Sequence[Array], outputs: Sequence[Array], flags: _Flags
    ) -> tuple[Any, ...]:
        """Return the call for the places of arrays: other views of them need no other call.

        The steps of a sequence, say, lie where they lay when the last one was longer.
        """
        arrays = (*inputs, *outputs)
        form = tuple([(array.strides, array.dtype) for array in arrays])
        key = (*map(address_of, arrays), form, flags, self.threads)
        places = self._memory.places
        if key not in places:
            layout = self._layout(inputs, outputs, form, flags)
            pointers, numbers = layout.arguments(arrays)
            function = _function_of(layout.loops)
            if len(places) >= MOST_CALLS:
                places.clear()
            places[key] = function, pointers.ctypes.data, numbers.ctypes.data, pointers, layout
        return places[key]

    def _layout(
        self, inputs: Sequence[Array], outputs: Sequence[Array], form: Any, flags: _Flags
    ) -> Layout:
        key = (form, flags, find_overlaps(inputs, outputs), self.threads)
        layouts = self._memory.layouts
        if key not in layouts:
            if len(layouts) >= MOST_LAYOUTS:
                layouts.clear()
                self._memory.places.clear()
                self._memory.calls.clear()
            layouts[key] = Layout(self._schedule, inputs, outputs, flags, self.threads)
        return layouts[key]

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
