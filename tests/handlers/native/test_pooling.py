"""Pooling and rows in C: against the reference, for both types."""

import numpy as np
import pytest

from brainstorm.handlers.native import NativeHandler
from brainstorm.testing.handler_arguments import Arguments
from tests.handlers.native.lowered import check, check_random_calls
from tests.handlers.running import needs_compiler

OPERATIONS = [f"{k}pool2d_{way}_batch" for k in ("max", "avg") for way in ("forward", "backward")]


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", [*OPERATIONS, "take_rows_mv", "add_rows_mv"])
def test_random_pooling_and_random_rows(without, name, dtype):
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    handler = NativeHandler(dtype, seed=1)
    check_random_calls(handler, name, rtol, strided="rows" in name, count=40)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("images", [1, 5])
@pytest.mark.parametrize("name", OPERATIONS)
def test_threads(name, threads, images):
    sizes = {"N": images, "H": 41, "W": 37, "C": 50, "window": (3, 3), "stride": (2, 1),
             "padding": 1}  # fmt: skip
    arguments = Arguments(name, 1, np.float32, fixed=sizes, large=True)
    (native,) = check(NativeHandler(threads=threads, seed=1), name, arguments)
    assert native.numbers[0] == threads
