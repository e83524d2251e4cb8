"""Products of all the shapes and strides that arrays can have, and who calls cuBLAS."""

import importlib.util
import itertools
import sys
import types
from unittest import mock

import numpy as np
import pytest

from brainstorm.errors import DeviceError, HandlerValidationError, MissingDependencyError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import blas
from tests.handlers.running import graph_of, on

LAYOUTS = {
    "rows": on,
    "columns": lambda h, x: on(h, x.T).T,
    "part": lambda h, x: on(h, np.pad(x, ((1, 2), (3, 1))))[1:-2, 3:-1],
    "every second": lambda h, x: on(h, np.repeat(x, 2, axis=1))[:, ::2],
    "backwards": lambda h, x: on(h, x[::-1])[::-1],
}


@pytest.mark.parametrize("compute", ["f32", "bf16"])
@pytest.mark.parametrize("sizes", [(5, 4, 3), (1, 4, 3), (5, 1, 3), (5, 4, 1), (1, 1, 1)])
def test_factors_and_results_lie_anyhow_in_memory(sizes, compute, rng):
    handler = PyCudaHandler(seed=1, compute=compute)
    m, k, n = sizes
    # Whole numbers, which bfloat16 holds.
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    for first, second, third in itertools.product(LAYOUTS, repeat=3):
        out = LAYOUTS[third](handler, np.ones((m, n), np.float32))
        x, y = LAYOUTS[first](handler, a), LAYOUTS[second](handler, b)
        handler.dot_mm(x, y, out)
        np.testing.assert_array_equal(out.get(), a @ b, err_msg=f"{first} {second} {third}")
        handler.dot_add_mm(x.T, y.T, out, transa=True, transb=True)
        np.testing.assert_array_equal(out.get(), 2 * (a @ b), err_msg=f"{first} {second} {third}")


@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_factors_and_results_may_be_empty(compute):
    handler = PyCudaHandler(seed=1, compute=compute)
    for m, k, n in itertools.product((0, 1, 3), repeat=3):
        a, b, out = (handler.ones(shape) for shape in ((m, k), (k, n), (m, n)))
        handler.dot_add_mm(a, b, out)
        handler.dot_add_mm(a.T, b.T, out, transa=True, transb=True)
        np.testing.assert_array_equal(out.get(), np.full((m, n), 1 + 2 * k))
        handler.dot_mm(a, b, out)
        np.testing.assert_array_equal(out.get(), np.full((m, n), k))


@pytest.mark.parametrize(("cublas", "status"), [("ctypes", "7"), ("skcuda", "cublasError")])
def test_failures_of_cublas_say_what_was_multiplied(cublas, status, monkeypatch):
    _stand_in(monkeypatch)
    product = blas.Product(0, 0, 0, False, False, 2, 3, -1, 4, 3, 3, False)
    with pytest.raises(DeviceError, match=rf"Sgemm.* failed with status {status} for \(2, -1\) @"):
        PyCudaHandler(seed=1, cublas=cublas)._blas.call(product)()


def test_no_cublas(monkeypatch):
    def missing(name, versions):
        raise FileNotFoundError(f"no lib{name} of {versions}")

    monkeypatch.setattr(blas, "load_library", missing)
    with pytest.raises(MissingDependencyError, match=r"no libcublas of \(13, 12\).*pip install"):
        PyCudaHandler()


def test_the_library_goes_with_its_handles(handler, monkeypatch):
    spy = mock.Mock(wraps=blas._load_cublas())
    monkeypatch.setattr(blas, "_load_cublas", lambda: spy)
    made = blas.CtypesBlas(handler._device, "f32")
    expected = {made._small.value, made._large.value}
    del made
    destroyed = [call.args[0].value for call in spy.cublasDestroy_v2.call_args_list]
    assert len(destroyed) == 2
    assert set(destroyed) == expected


# -- scikit-cuda ---------------------------------------------------------------------------------


def test_scikit_cuda_is_not_installed(monkeypatch):
    device = PyCudaHandler(seed=1)._device
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install scikit-cuda"):
        blas.SkcudaBlas(device, "f32")


def test_scikit_cuda_has_float32_alone():
    with pytest.raises(HandlerValidationError, match="expected compute='f32'.*got 'bf16'"):
        PyCudaHandler(compute="bf16", cublas="skcuda")


def _stand_in(monkeypatch):
    """A module with the signatures of skcuda.cublas, over the library that is there."""
    library = blas._load_cublas()
    module = types.ModuleType("skcuda.cublas")
    trans = {"n": 0, "t": 1}

    def create():
        handle = blas.c_void_p()
        assert library.cublasCreate_v2(blas.byref(handle)) == 0
        return handle.value

    def check(status):
        if status:
            raise module.cublasError(status)

    def gemm(handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        one, two = blas.c_float(alpha), blas.c_float(beta)
        check(
            library.cublasSgemm_v2(
                blas.c_void_p(handle), trans[transa], trans[transb], m, n, k, blas.byref(one),
                blas.c_void_p(int(a)), lda, blas.c_void_p(int(b)), ldb, blas.byref(two),
                blas.c_void_p(int(c)), ldc,
            )
        )  # fmt: skip

    vars(module).update(
        cublasError=type("cublasError", (Exception,), {}),
        cublasCreate=create,
        cublasDestroy=lambda handle: check(library.cublasDestroy_v2(blas.c_void_p(handle))),
        cublasGetVersion=lambda handle: 13,
        cublasSetStream=lambda handle, stream: check(
            library.cublasSetStream_v2(blas.c_void_p(handle), blas.c_void_p(stream))
        ),
        cublasSgemm=gemm,
    )
    package = types.ModuleType("skcuda")
    package.cublas = module
    monkeypatch.setitem(sys.modules, "skcuda", package)
    monkeypatch.setitem(sys.modules, "skcuda.cublas", module)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if name == "skcuda" else find(name)
    )


def test_scikit_cuda_computes_the_same(monkeypatch, rng):
    _stand_in(monkeypatch)
    handler, other = PyCudaHandler(seed=1, cublas="skcuda"), PyCudaHandler(seed=1)
    assert "skcuda.cublas" in handler.info()["products"]
    a, b = rng.normal(size=(2, 4, 3, 5)).astype(np.float32)
    results = []
    for h in (handler, other):
        first, second = on(h, a), on(h, b)
        product, stack = h.zeros((3, 3)), h.ones((4, 3, 4))
        h.dot_mm(first[0], second[1], product, transb=True)
        # (M=4, G=3, K=5) times the transposed (N=4, G=3, K=5)
        h.batched_dot_mm(first, second.transpose((2, 1, 0)), stack)
        results.append([product.get(), stack.get()])
    for got, expected in zip(*results, strict=True):
        # NVIDIA's library sums in another order in cublasSgemm than in cublasGemmEx.
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_graph_rounds_a_factor_once_while_it_is_not_written(shim):
    handler = PyCudaHandler(seed=1, compute="bf16")
    x, y, z = (handler.ones((4, 4)) for _ in range(3))

    def steps():
        handler.dot_mm(x, y, z)
        handler.dot_add_mm(y, x, z, transb=True)  # both are rounded already
        handler.add_st(1.0, x, x)  # rounded by the kernel that writes it
        handler.dot_add_mm(x, y, z)

    graph = graph_of(handler, steps)
    assert len(graph.launches) == 3 + 1 + 1
    graph()
    np.testing.assert_array_equal(z.get(), np.full((4, 4), 16.0))
    shim.reset()
    steps()
    assert shim.counters()["kernels"] == 4  # x and y by one kernel, except where x was written
    np.testing.assert_array_equal(z.get(), np.full((4, 4), 4.0 * (2 + 2 + 3)))


def test_what_factors_are_rounded_to_takes_no_more_memory_than_they_do():
    handler = PyCudaHandler(seed=1, compute="bf16")
    memory = handler.zeros((64, 64))
    for rows in range(1, 64):  # as batches of ever new sizes
        handler.dot_mm(memory[:rows], memory, handler.zeros((rows, 64)))
    (halves,) = (known for owner, known in handler._halves.items() if owner is memory.memory)
    assert 0 < sum(half.nbytes for half in halves.values()) <= memory.memory.size
