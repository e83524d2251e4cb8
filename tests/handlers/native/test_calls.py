"""Calls and replays."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from brainstorm.errors import BrainstormError, OutOfMemoryError
from brainstorm.handlers.native.calls import _TYPES, KERNEL, PRIMITIVE, Call, Replay


def kernel(function):
    """A call of a Python function that gets the numbers."""
    numbers = np.zeros(1, np.int64)
    inner = _TYPES[KERNEL](lambda pointers, address: function())
    address = ctypes.cast(inner, ctypes.c_void_p).value
    return Call(KERNEL, address, 0, numbers.ctypes.data, keep=(inner, numbers))


def primitive(function, name="dot_mm"):
    inner = _TYPES[PRIMITIVE](lambda *arguments: function(*arguments))
    address = ctypes.cast(inner, ctypes.c_void_p).value
    return Call(PRIMITIVE, address, 11, 12, 13, 14, keep=inner, name=name)


@pytest.fixture(params=["C", "Python"])
def replay(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setenv("CC", "no-such-compiler-here")
        monkeypatch.setenv("BRAINSTORM_CACHE_DIR", "/nonexistent/nothing")
    return Replay


def test_a_call_passes_its_arguments_on():
    seen = []
    primitive(lambda *arguments: seen.append(arguments) or 0)()
    assert seen == [(11, 12, 13, 14)]


def test_order(replay):
    seen = []
    calls = [kernel(lambda: seen.append("kernel")), primitive(lambda *a: seen.append(a) or 0)]
    again = replay([*calls, calls[0]])
    again()
    again()
    assert seen == ["kernel", (11, 12, 13, 14), "kernel"] * 2


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
