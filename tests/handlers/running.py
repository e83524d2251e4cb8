"""What several tests do: in threads and processes, with arrays of all layouts, as programs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from brainstorm.handlers import compiler
from brainstorm.handlers.executor import Executor
from tests.trainings import run_threads

ROOT = Path(__file__).parents[2]

needs_compiler = pytest.mark.skipif(
    not compiler.found_commands(), reason="NO C COMPILER: ITS USE IS NOT TESTED"
)


def in_threads(work, arguments):
    """Call a function with each of the arguments, each in a thread of its own."""
    given = list(arguments)
    run_threads(lambda number: work(given[number]), len(given))


def in_process(code, environment=os.environ, **more):
    """Run code in a new Python; return what it prints, and what it says of mistakes."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**environment, **more},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def on(handler, values):
    """Return an array of a handler."""
    return handler.create_from_numpy(np.ascontiguousarray(values, handler.dtype))


#: Layout of an array in memory: the shape of that memory, and what of it is the array.
LAYOUTS = {
    "plain": (lambda shape: shape, lambda memory: memory),
    "slice": (lambda shape: (*shape[:-1], shape[-1] + 3), lambda memory: memory[..., 1:-2]),
    "fortran": (lambda shape: shape[::-1], lambda memory: memory.T),
    "reversed": (lambda shape: shape, lambda memory: memory[..., ::-1]),
    "every second": (lambda shape: (*shape[:-1], 2 * shape[-1]), lambda memory: memory[..., ::2]),
}


def strided(array, layout, make=np.asarray):
    """Return an equal array, made from one of NumPy, that lies in memory in one of the layouts."""
    if not array.ndim:
        return make(array)
    shape, part = LAYOUTS[layout]
    view = part(make(np.zeros(shape(array.shape), array.dtype)))
    view[...] = array
    return view


def bound_program(program, inputs, outputs, accumulate=None, threads=1):
    """Return a program, bound to given arrays."""
    flags = tuple(accumulate or [False] * len(outputs))
    return Executor(program, threads).bound(inputs, outputs, flags)


def traced(handler, operations):
    """Return the calls of the operations of a function, none of which runs."""
    with handler.tracing(runs=False) as trace:
        operations()
    return [step.call for step in trace.steps]


def graph_of(handler, operations):
    """Return what a function does as a CUDA graph; none of it runs."""
    (graph,) = handler.compile(traced(handler, operations))
    return graph


def graph_as_direct(handler, values, steps):
    """Return what ``steps(handler, arrays)`` does as a CUDA graph, which gives the same bits.

    Args:
        handler: The handler.
        values: What the arrays hold at first, by name.
        steps: Called once with arrays that the graph gets, and once with others.
    """
    direct, replayed = ({n: on(handler, x) for n, x in values.items()} for _ in range(2))
    steps(handler, direct)
    graph = graph_of(handler, lambda: steps(handler, replayed))
    graph()
    for name, array in direct.items():
        np.testing.assert_array_equal(replayed[name].get(), array.get(), name)
    return graph
