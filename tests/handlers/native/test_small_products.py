"""Products of small matrices: against NumPy, for every block of rows and vectors."""

import numpy as np
import pytest

from brainstorm.handlers.native import NativeHandler
from brainstorm.handlers.native.calls import Kernel
from brainstorm.handlers.native.library import UnsupportedError
from brainstorm.handlers.native.small_products import build_small, is_small
from tests.handlers.native.lowered import native_calls
from tests.handlers.running import needs_compiler

pytestmark = needs_compiler
LANES = {np.float32: 16, np.float64: 8}


@pytest.mark.parametrize("dtype", LANES)
def test_random_small_products(dtype):
    rng = np.random.default_rng(0)
    for seed in range(200):
        m, k = (int(size) for size in rng.integers(1, 14, 2))
        n = LANES[dtype] * int(rng.integers(10)) + int(rng.integers(6)) + 1
        a = rng.standard_normal((m, 2 * k))[:, ::2] if seed % 3 else rng.standard_normal((k, m)).T
        b, wide = rng.standard_normal((k, n + 3))[:, 1:-2], rng.standard_normal((m, n + 4))
        a, b, wide = (x.astype(dtype, order="K") for x in (a, b, wide))
        b, out = np.ascontiguousarray(b) if seed % 2 else b, wide[:, 1:-3]
        expected = wide.astype(np.float64)
        expected[:, 1:-3] = (out if seed % 2 else 0) + a.astype(np.float64) @ b
        assert is_small(m, k, n, a.itemsize)
        (call,) = build_small(a, b, out, bool(seed % 2))
        call()
        np.testing.assert_allclose(wide, expected, 1e-5, 1e-5)


def test_what_is_not_small():
    assert not is_small(800, 32, 3, 4)  # no whole vector
    assert not is_small(32, 256, 1024, 4)  # oneDNN is faster
    b, out = np.ones((16, 4), np.float32).T, np.ones((2, 16), np.float32)
    with pytest.raises(UnsupportedError, match="rows are not contiguous"):
        build_small(np.ones((2, 4), np.float32), b, out, False)


def test_the_handler_uses_them():
    a, b, out = (np.ones(shape, np.float32) for shape in ((8, 32), (128, 32), (8, 128)))
    handler = NativeHandler(seed=1)
    handler.pack_m(b, transb=True)
    for name, transb in (("dot_add_packed", True), ("dot_mm", False)):
        right = b if transb else np.ones((32, 128), np.float32)
        arguments = {"a": a, "b": right, "out": out, "transb": transb}
        (call,) = native_calls(handler, name, arguments)
        assert isinstance(call, Kernel)
    b[...] = 2
    handler.dot_add_packed(a, b, out, transb=True)
    np.testing.assert_array_equal(out, np.full((8, 128), 33))  # b as it was when it was packed
