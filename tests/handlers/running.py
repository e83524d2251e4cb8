"""What several tests do: in threads, with arrays of all layouts, as programs or graphs."""

from threading import Thread

import numpy as np
import pytest

from brainstorm.handlers import compiler
from brainstorm.handlers.numpy_memory import address_of
from brainstorm.handlers.program_specializer import ProgramSpecializer

needs_compiler = pytest.mark.skipif(
    compiler.compiler_command() is None, reason="NO C COMPILER: ITS USE IS NOT TESTED"
)


def in_threads(work, arguments):
    """Call a function with each of the arguments, each in a thread of its own."""
    threads = [Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


LAYOUTS = ("plain", "slice", "fortran", "reversed", "every second")


def strided(array, layout):
    """Return an equal array that lies in memory in one of the layouts."""
    if not array.ndim:
        return array
    *outer, columns = array.shape
    if layout == "slice":
        view = np.zeros((*outer, columns + 3), array.dtype)[..., 1:-2]
    elif layout == "fortran":
        view = np.zeros(array.shape[::-1], array.dtype).T
    elif layout == "reversed":
        view = np.zeros(array.shape, array.dtype)[..., ::-1]
    elif layout == "every second":
        view = np.zeros((*outer, 2 * columns), array.dtype)[..., ::2]
    else:
        view = np.zeros_like(array)
    view[...] = array
    return view


def specialized(program, inputs, outputs, accumulate=None, threads=1):
    """Return a program, specialized for given arrays, with the addresses of the arrays."""
    given = [address_of(array) for array in (*inputs, *outputs)]
    flags = tuple(accumulate or [False] * len(outputs))
    return ProgramSpecializer(program, threads).specialize(inputs, outputs, flags, given), given


def graph_of(handler, operations):
    """Return what a function does as a CUDA graph; none of it runs."""
    with handler.tracing(runs=False) as trace:
        operations()
    (graph,) = handler.compile([step.call for step in trace.steps])
    return graph
