"""Products of the shim's cuBLAS against NumPy."""

import ctypes
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brainstorm.handlers.pycuda.libraries import path_of
from tests import cudashim

F32, F16, BF16 = 0, 2, 14
COMPUTE_F32, FAST_BF16, FAST_TF32 = 68, 75, 77
SETTINGS = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def pointer(x):
    return ctypes.c_void_p(int(x))


def number(x):
    return ctypes.byref(ctypes.c_float(x))


def truncated(x, bits):
    """Float32 whose mantissas keep all but `bits` bits, rounded to the nearest, ties to even."""
    u = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    u = u + (1 << (bits - 1)) - 1 + (u >> bits & 1) >> bits << bits
    return u.astype(np.uint32).view(np.float32)


class Blas:
    def __init__(self, cuda):
        self.cuda = cuda
        self.library = ctypes.CDLL("libcublas.so.13")
        self.handle = ctypes.c_void_p()
        assert self.library.cublasCreate_v2(ctypes.byref(self.handle)) == 0

    def on_device(self, values):
        """Copy an array as it is, in Fortran's order, to the device."""
        flat = np.asfortranarray(values).ravel("F")
        memory = self.cuda.driver.mem_alloc(max(flat.nbytes, 1))
        if flat.nbytes:
            self.cuda.driver.memcpy_htod(memory, flat)
        return memory

    def back(self, memory, like):
        flat = np.empty(like.size, like.dtype)
        self.cuda.driver.memcpy_dtoh(flat, memory)
        return flat.reshape(like.shape, order="F")


@pytest.fixture
def blas(cuda):
    found = Blas(cuda)
    yield found
    assert found.library.cublasDestroy_v2(found.handle) == 0


@st.composite
def products(draw):
    """Sizes, transposes, extra rows of the three matrices, factors."""
    m, n, k = (draw(st.integers(1, 7)) for _ in range(3))
    transposes = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    extra = draw(st.tuples(*[st.integers(0, 3)] * 3))
    return m, n, k, transposes, extra, draw(st.sampled_from([0, 1, -0.5])), draw(st.integers(1, 3))


def stored(rnd, rows, columns, transposed, extra, batches):
    """A batch of matrices with some rows too many: as they lie in memory, and what they mean."""
    shape = (columns, rows) if transposed else (rows, columns)
    whole = rnd.standard_normal((shape[0] + extra, shape[1], batches)).astype(np.float32)
    used = whole[: shape[0]]
    return whole, used.transpose(1, 0, 2) if transposed else used


@SETTINGS
@given(product=products(), seed=st.integers(0, 99))
def test_products(product, seed, blas):
    m, n, k, (ta, tb), extra, beta, batches = product
    rnd = np.random.RandomState(seed)
    a, left = stored(rnd, m, k, ta, extra[0], batches)
    b, right = stored(rnd, k, n, tb, extra[1], batches)
    c, old = stored(rnd, m, n, 0, extra[2], batches)
    if beta == 0:
        c[:m] = np.nan  # must not be read
    expected = c.copy()
    expected[:m] = 1.5 * np.einsum("mkb,knb->mnb", left, right) + (beta * old if beta else 0)
    memory = [blas.on_device(x) for x in (a, b, c)]
    blas.library.cublasSgemmStridedBatched(
        blas.handle, ta, tb, m, n, k, number(1.5),
        pointer(memory[0]), len(a), ctypes.c_longlong(a[..., 0].size),
        pointer(memory[1]), len(b), ctypes.c_longlong(b[..., 0].size), number(beta),
        pointer(memory[2]), len(c), ctypes.c_longlong(c[..., 0].size), batches,
    )  # fmt: skip
    np.testing.assert_allclose(blas.back(memory[2], c), expected, 1e-5, 1e-5)
    memory[2] = blas.on_device(c)
    blas.library.cublasSgemm_v2(
        blas.handle, ta, tb, m, n, k, number(1.5), pointer(memory[0]), len(a),
        pointer(memory[1]), len(b), number(beta), pointer(memory[2]), len(c),
    )  # fmt: skip
    first = blas.back(memory[2], c)[..., 0]
    np.testing.assert_allclose(first, expected[..., 0], 1e-5, 1e-5)


def narrow(x, dtype):
    """The 16 bits of each number."""
    if dtype == F16:
        return x.astype(np.float16).view(np.uint16)
    return (truncated(x, 16).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits, dtype):
    if dtype == F16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def factors():
    """Return matrices (5, 40) and (40, 6)."""
    rnd = np.random.RandomState(0)
    return [rnd.standard_normal(shape).astype(np.float32) for shape in ((5, 40), (40, 6))]


def gemm_ex(blas, a, b, dtype, out, compute=COMPUTE_F32):
    """Return the product of matrices of such elements, in elements of another type."""
    result = np.zeros((5, 6), np.float32 if out == F32 else np.uint16)
    memory = [blas.on_device(x) for x in (a, b, result)]
    code = blas.library.cublasGemmEx(
        blas.handle, 0, 0, 5, 6, 40, number(1), pointer(memory[0]), dtype, 5, pointer(memory[1]),
        dtype, 40, number(0), pointer(memory[2]), out, 5, compute, -1,
    )  # fmt: skip
    assert code == 0
    return blas.back(memory[2], result)


@pytest.mark.parametrize("out", ["the same", "float32"])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_products_of_16_bits_are_summed_in_float32(dtype, out, blas):
    a, b = (narrow(x, dtype) for x in factors())
    expected, tolerance = wide(a, dtype) @ wide(b, dtype), 1e-5
    found = gemm_ex(blas, a, b, dtype, dtype if out == "the same" else F32)
    if out == "the same":
        found, tolerance = wide(found, dtype), 2**-8
    np.testing.assert_allclose(found, expected, tolerance, tolerance)


@pytest.mark.parametrize(
    ("mode", "compute", "dropped"),
    [(0, COMPUTE_F32, 0), (3, COMPUTE_F32, 13), (0, FAST_TF32, 13), (0, FAST_BF16, 16)],
)
def test_fast_float32_rounds_its_operands(mode, compute, dropped, blas):
    a, b = factors()
    blas.library.cublasSetMathMode(blas.handle, mode)
    found = gemm_ex(blas, a, b, F32, F32, compute)
    exact = a.astype(np.float64) @ b
    rounded = truncated(a, dropped).astype(np.float64) @ truncated(b, dropped) if dropped else exact
    assert np.abs(found - rounded).max() < 1e-5
    assert (np.abs(found - exact).max() > 1e-4) == bool(dropped)


def sgemm(blas, c, ldc=2, lda=2, a=None, library=None):
    """Multiply unit matrices."""
    a = a or blas.on_device(np.eye(2, dtype=np.float32))
    return (library or blas.library).cublasSgemm_v2(
        blas.handle, 0, 0, 2, 2, 2, number(1), pointer(a), lda, pointer(a), 2, number(0),
        pointer(c), ldc,
    )  # fmt: skip


def test_what_is_wrong_is_said(blas, cuda):
    c = blas.on_device(np.zeros((2, 2), np.float32))
    assert sgemm(blas, c) == 0
    assert sgemm(blas, c, lda=1) == 7  # CUBLAS_STATUS_INVALID_VALUE
    assert sgemm(blas, c, ldc=3) == 13  # its last row is outside
    assert "C of a product reads or writes 20 bytes from byte 0" in cudashim.message()


def test_products_are_captured_and_in_the_order_of_their_stream(blas, cuda):
    cudashim.set_option("late", 1)
    a, c = (blas.on_device(x) for x in (np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32)))
    stream = cuda.driver.Stream(1)
    blas.library.cublasSetStream_v2(blas.handle, ctypes.c_void_p(stream.handle))
    assert sgemm(blas, c, a=a) == 0  # memory is not freed before the work is done
    assert cudashim.counters()["products"] == 0
    stream.synchronize()
    assert cudashim.counters()["products"] == 1
    np.testing.assert_array_equal(blas.back(c, np.zeros((2, 2), np.float32)), np.eye(2))


NOT_INITIALIZED, EXECUTION_FAILED = 1, 13


def test_a_handle_of_another_copy_of_the_library_is_refused(blas, tmp_path):
    mine = path_of("cublas")
    other = ctypes.CDLL(shutil.copy(mine, tmp_path / "libcublas.so.12"))
    version = ctypes.c_int()
    assert other.cublasSetMathMode(blas.handle, 0) == NOT_INITIALIZED
    assert blas.library.cublasSetMathMode(blas.handle, 0) == 0
    assert other.cublasDestroy_v2(blas.handle) == NOT_INITIALIZED
    assert sgemm(blas, blas.on_device(np.eye(2, dtype="f")), library=other) == NOT_INITIALIZED
    assert other.cublasGetVersion_v2(None, ctypes.byref(version)) == 0


def test_a_handle_of_another_context_is_refused(blas):
    a, made, driver = blas.on_device(np.eye(2, dtype="f")), ctypes.c_void_p(), cudashim.installed()
    assert driver.cuCtxCreate_v4(ctypes.byref(made), None, 0, 0) == 0
    status = sgemm(blas, a, a=a)
    assert driver.cuCtxDestroy_v2(made) == 0
    assert status == EXECUTION_FAILED
