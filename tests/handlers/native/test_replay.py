"""Calls and replays."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm.errors import BrainstormError, OutOfMemoryError
from brainstorm.handlers import compiler
from brainstorm.handlers.native.calls import _KERNEL_TYPE, _PRIMITIVE_TYPE, Execution, Kernel
from brainstorm.handlers.native.replay import Replay, as_loop
from tests.handlers.running import needs_compiler


def address_of_function(inner):
    return ctypes.cast(inner, ctypes.c_void_p).value


def kernel(function, pointers=()):
    """A call of a Python function that gets the pointers."""
    count = len(pointers)

    def run(start, numbers):
        function(*((ctypes.c_int64 * count).from_address(start) if count else ()))

    inner = _KERNEL_TYPE(run)
    call = Kernel(address_of_function(inner), pointers, np.zeros(1, np.int64), inner)
    call.name = "kernel"
    return call


class Library:
    """Stands for oneDNN: executes a Python function."""

    def __init__(self, function):
        self.inner = _PRIMITIVE_TYPE(lambda *arguments: function(*arguments))
        self.execute, self.used = address_of_function(self.inner), SimpleNamespace(count=0)
        self.thread_setters = [0, 0]

    def use_threads(self, count):
        self.used.count = count


def primitive(function, name="dot_mm"):
    handle, stream = SimpleNamespace(address=11), SimpleNamespace(address=12)
    made = SimpleNamespace(handle=handle)
    call = Execution(Library(function), made, stream, {}, (), 1)
    call.name = name
    return call


@pytest.fixture(params=["C", "Python"])
def replay(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setenv("CC", "no-such-compiler-here")
        monkeypatch.setenv("BRAINSTORM_CACHE_DIR", "/nonexistent/nothing")
        monkeypatch.setattr(compiler, "_known", {})
    return Replay


def test_calls_pass_their_arguments_on_in_their_order(replay):
    seen = []
    calls = [kernel(lambda: seen.append("kernel")), primitive(lambda *a: seen.append(a[:3]) or 0)]
    calls[1]()
    again = replay([*calls, calls[0]])
    again()
    again()
    assert seen == [(11, 12, 0), *["kernel", (11, 12, 0), "kernel"] * 2]


@pytest.mark.parametrize(
    ("status", "error", "match"),
    [
        (1, OutOfMemoryError, "^sum: oneDNN got no memory from the system$"),
        (5, BrainstormError, "^sum: oneDNN returned status 5. Set BRAINSTORM_ONEDNN=off to do "),
    ],
)
def test_failures(replay, status, error, match):
    seen = []
    failing = primitive(lambda *a: status, "sum")
    with pytest.raises(error, match=match):
        failing()
    again = replay([kernel(lambda: seen.append(1)), failing, kernel(lambda: seen.append(2))])
    for _ in range(2):
        with pytest.raises(error, match=match):
            again()
    assert seen == [1, 1]
    status = 0
    again()
    assert seen == [1, 1, 1, 2]


def rounds(seen, *places):
    """One call for each of the places, of the same function."""
    first = kernel(lambda *pointers: seen.append(tuple(pointers)), places[0])
    return [[first] if i == 0 else [moved(first, given)] for i, given in enumerate(places)]


def moved(call, places):
    return Kernel(call._function, places, call.numbers, call.keep)


@needs_compiler
def test_a_loop_moves_every_place_by_its_own_step():
    seen = []
    loop = as_loop(rounds(seen, [100, 7, 50], [108, 7, 46], [132, 7, 34]), 5, (), None)
    assert loop.name == "5 times kernel"
    expected = [(100 + 8 * t, 7, 50 - 4 * t) for t in range(5)]
    loop()
    assert seen == expected
    Replay([loop, kernel(lambda: seen.append("end"))])()
    assert seen == [*expected, *expected, "end"]


CALL, OTHER = kernel(lambda: None), kernel(lambda: None)


@pytest.mark.parametrize(
    "calls",
    [
        rounds([], [100], [108], [131]),  # the last one is not where the others lead
        rounds([], [100], [108, 1], [132]),
        [[print], [print], [print]],
        [[CALL], [OTHER], [CALL]],
        [[CALL], [CALL, CALL], [CALL]],
        [[], [], []],
    ],
    ids=range(6),
)
def test_calls_that_do_not_follow_from_each_other_are_no_loop(calls):
    assert as_loop(calls, 5, (), None) is None
