"""Pooling in C: against the reference, for both types, and where NumPy does it."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler, compiler
from brainstorm.handlers.native import NativeHandler
from brainstorm.testing.handler_arguments import Arguments
from tests.handlers.native.lowered import check, check_random_calls, native_calls

OPERATIONS = [
    f"{kind}pool2d_{way}_batch" for kind in ("max", "avg") for way in ("forward", "backward")
]  # fmt: skip

needs_compiler = pytest.mark.skipif(
    compiler.compiler_command() is None, reason="NO C COMPILER: ITS USE IS NOT TESTED"
)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", OPERATIONS)
def test_random_pooling(without, name, dtype):
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    check_random_calls(NativeHandler(dtype, seed=1), name, rtol)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("name", OPERATIONS)
def test_threads(name, threads, images):
    sizes = {"N": images, "H": 41, "W": 37, "C": 50, "window": (3, 3), "stride": (2, 1)}
    sizes["padding"] = 1
    arguments = Arguments(name, 1, np.float32, fixed=sizes, large=True)
    (native,) = check(NativeHandler(threads=threads, seed=1), name, arguments)
    assert native.numbers[0] == threads


def test_no_images():
    handler, x, y = NativeHandler(seed=1), np.ones((0, 4, 4, 2)), np.ones((0, 2, 2, 2))
    x, y, where = (array.astype(np.float32) for array in (x, y, y))
    handler.maxpool2d_forward_batch(x, (2, 2), y, 0, (2, 2), where)
    handler.maxpool2d_backward_batch(x, (2, 2), y, 0, (2, 2), where, x, y)
    handler.avgpool2d_forward_batch(x, (2, 2), y, 0, (2, 2))
    handler.avgpool2d_backward_batch(x, (2, 2), y, 0, (2, 2), x, y)


@needs_compiler
@pytest.mark.parametrize("make", [NativeHandler, NumpyHandler])
def test_of_nan_the_first_is_the_largest(make):
    x = np.zeros((1, 4, 4, 1), np.float32)
    x[0, 1, 0], x[0, 3, 3] = np.nan, -np.inf
    out, argmax = (np.zeros((1, 2, 2, 1), np.float32) for _ in range(2))
    x[0, 1, 1] = np.nan
    make(seed=1).maxpool2d_forward_batch(x, (2, 2), out, 0, (2, 2), argmax)
    np.testing.assert_array_equal(out.ravel(), [np.nan, 0, 0, 0])
    np.testing.assert_array_equal(argmax.ravel(), [4, 2, 8, 10])


def test_what_numpy_does(monkeypatch):
    handler = NativeHandler(seed=1)
    wide = np.ones((1, 4, 4, 3), np.float32)
    out, expected = (np.zeros((1, 2, 2, 1), np.float32) for _ in range(2))
    arguments = {"inputs": wide[..., 1:2], "window": (2, 2), "outputs": out, "padding": 0}
    arguments["stride"] = (2, 2)
    assert native_calls(handler, "avgpool2d_forward_batch", arguments) is None
    handler.avgpool2d_forward_batch(**arguments)
    NumpyHandler(seed=1).avgpool2d_forward_batch(**{**arguments, "outputs": expected})
    np.testing.assert_array_equal(out, expected)


def test_indices_that_float32_cannot_hold():
    huge = np.broadcast_to(np.float32(0), (1, 4097, 4096, 1))
    with pytest.raises(ValueError, match=r"'inputs': expected at most 2\*\*24 elements per image"):
        NativeHandler(seed=1).maxpool2d_forward_batch(huge, (1, 1), huge, 0, (1, 1), huge)


@pytest.mark.parametrize("name", OPERATIONS)
def test_without_a_compiler(monkeypatch, tmp_path, name):
    from brainstorm.handlers.native import kernels

    monkeypatch.setenv("CC", "no-such-compiler-here")
    monkeypatch.setenv("BRAINSTORM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(kernels, "_function", kernels._function.__wrapped__)
    handler = NativeHandler(seed=1)
    check(handler, name, Arguments(name, 1, np.float32), is_native=False)
    assert "no C compiler was found" in handler.info()["pooling"]
