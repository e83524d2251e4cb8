"""Traces of the native handler, its threads, and its processes."""

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import base_handler
from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.threads import default_threads
from brainstorm.optree import Variable, linearise
from brainstorm.optree import functions as fn
from tests.handlers.running import in_process, needs_compiler
from tests.trainings import in_a_fork, needs_fork


def chain(handler, rng):
    """Return a function that does operations of every kind, and the array at its end."""
    x, w, b, y = (rng.standard_normal(s, np.float32) for s in ((8, 4), (6, 4), (6,), (8, 6)))
    z, norms = np.zeros((8, 6), np.float32), np.zeros((8, 1), np.float32)
    v = Variable((8, 6))
    program = linearise(fn.tanh(v) + v)

    def run():
        handler.affine_mm(x, w, b, y, "tanh")
        handler.pack_m(w, transb=True)
        handler.dot_add_packed(x, w, y, transb=True)
        handler.run_program(program, [y], [z], [False])
        handler.argmax_m(z, norms)
        handler.dot_mm(z, w, x)

    return run, x


@needs_compiler
@pytest.mark.parametrize("runs", [False, True])
def test_a_replay_is_one_call_and_the_same_bits_as_its_operations(native, counted, runs):
    first, x = chain(native, np.random.default_rng(0))
    second, y = chain(native, np.random.default_rng(0))
    with native.tracing(runs) as trace:
        first()
    if runs:
        second()
    np.testing.assert_array_equal(x, y)
    for _ in range(5):
        trace.replay()
        second()
        np.testing.assert_array_equal(x, y)
    assert len(trace._functions) == 1
    counted.clear()
    trace.replay()
    assert counted == []


@needs_compiler
def test_a_trace_keeps_its_numbers(monkeypatch):
    monkeypatch.setattr(base_handler, "MOST_CONSTANTS", 2)
    handler, x = NativeHandler(seed=1), np.ones(3, np.float32)
    with handler.tracing(runs=False) as trace:
        handler.mult_st(0.25, x, x)
    for value in (1.5, 2.5, 3.5):
        handler.add_st(value, x, np.zeros_like(x))
    assert 0.25 not in handler._constants
    trace.replay()
    np.testing.assert_array_equal(x, np.full(3, 0.25))


def test_a_loop_does_the_same_bits_as_its_steps(native):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((50, 4, 6), np.float32), rng.standard_normal((6, 6), np.float32)
    y, expected = np.zeros((51, 4, 6), np.float32), np.zeros((51, 4, 6), np.float32)

    def walk(out):
        def body(t):
            native.dot_mm(out[t - 1], w, out[t])
            native.add_tt(out[t], x[t], out[t])
            native.tanh(out[t], out[t])

        return body

    for steps in (range(1, 50), range(48, 0, -1), range(3), range(0), [0, 1, 7, 3, 4]):
        y[...] = expected[...] = rng.standard_normal(y.shape)
        for t in steps:
            walk(expected)(t)
        native.loop(steps, walk(y))
        np.testing.assert_array_equal(y, expected)
        native.trace(lambda steps=steps: native.loop(steps, walk(y))).replay()
        for t in (*steps, *steps):
            walk(expected)(t)
        np.testing.assert_array_equal(y, expected)


def test_rows_that_are_not_equally_far_apart_are_walked_through_all_the_same(native):
    order = [3, 0, 1, 2, 7, 5, 4, 6]
    x, y = np.arange(8, dtype=np.float32).reshape(8, 1), np.zeros((8, 1), np.float32)
    native.loop(range(8), lambda t: native.mult_st(2.0, x[order[t]], y[t]))
    np.testing.assert_array_equal(y[:, 0], [2.0 * k for k in order])
    with native.tracing(runs=False) as trace:
        native.loop(range(8), lambda t: native.mult_st(3.0, x[order[t]], y[t]))
    trace.replay()
    np.testing.assert_array_equal(y[:, 0], [3.0 * k for k in order])


# -- threads and processes ---------------------------------------------------------------------


def test_every_handler_has_its_number_of_threads(native):
    a, b, out = (np.ones((500, 500), np.float32) for _ in range(3))
    count = native._library._library.omp_get_max_threads
    for threads in (1, 2, 1):
        NativeHandler(threads=threads, seed=1).dot_mm(a, b, out)
        assert count() == threads
    native.dot_mm(a, b, out)
    assert count() == native.threads


@needs_fork
def test_after_a_fork_there_is_one_thread_and_older_traces_are_refused(native):
    """What handlers compute there: `tests/test_processes.py`."""
    handler, (a, out) = NativeHandler(threads=2, seed=1), np.ones((2, 500, 500), np.float32)
    trace = handler.trace(lambda: handler.dot_mm(a, a, out))
    trace.replay()

    def work():
        with pytest.raises(HandlerValidationError) as refused:
            trace.replay()
        return f"{default_threads()} thread; {refused.value}".encode()

    assert in_a_fork(work) == (
        b"1 thread; a trace that was made before the process was forked cannot be replayed after "
        b"it. Trace again."
    )


ONE_POOL = """
import numpy as np
from brainstorm.handlers.native import NativeHandler
from brainstorm.optree import Variable, linearise
handler, x = NativeHandler(threads=2, seed=1), Variable((1000, 1000))
a = np.ones((1000, 1000), np.float32)
out = np.zeros_like(a)
handler.dot_mm(a, a, out)
handler.run_program(linearise(x + 1), [a], [out], [False])
assert out[0, 0] == 2
files = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1]}
print(*files)
"""


@needs_compiler
def test_library_and_kernels_have_one_pool_of_threads(native):
    printed, said = in_process(ONE_POOL)
    assert said == ""
    assert len(printed.split()) == 1
    assert "libgomp" in printed
