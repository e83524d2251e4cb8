"""Products of all the shapes and strides that arrays can have."""

import itertools
from unittest import mock

import numpy as np
import pytest

from brainstorm.errors import DeviceError, MissingDependencyError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import blas
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from tests.handlers.running import graph_of, on

LAYOUTS = {
    "rows": on,
    "columns": lambda h, x: on(h, x.T).T,
    "part": lambda h, x: on(h, np.pad(x, ((1, 2), (3, 1))))[1:-2, 3:-1],
    "every second": lambda h, x: on(h, np.repeat(x, 2, axis=1))[:, ::2],
    "backwards": lambda h, x: on(h, x[::-1])[::-1],
}


@formula
def product_and_half(x, y):
    product = fn.dot(x, y)
    return product, product / 2


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
        # What follows in the same operation reads the product.
        handler.affine_mm(x, y.T, handler.ones((n,)), out, "rel")
        expected = np.maximum(a @ b + 1, 0)
        np.testing.assert_array_equal(out.get(), expected, err_msg=f"{first} {second} {third}")
        handler.compute(product_and_half, (x, y), (out, half := handler.zeros((m, n))))
        np.testing.assert_array_equal(half.get(), a @ b / 2, err_msg=f"{first} {second} {third}")


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


def test_failures_of_cublas_say_what_was_multiplied(handler):
    product = blas.Product(0, 0, 0, False, False, 2, 3, -1, 4, 3, 3, False)
    with pytest.raises(DeviceError, match=r"Sgemm.* failed with status 7 for \(2, -1\) @"):
        handler._blas.call(product)()


def test_no_cublas(monkeypatch):
    def missing(name, versions):
        raise FileNotFoundError(f"no lib{name} of {versions}")

    monkeypatch.setattr(blas, "load_library", missing)
    with pytest.raises(MissingDependencyError, match=r"no libcublas of \(13, 12\).*pip install"):
        PyCudaHandler()


def test_the_library_goes_with_its_handles(handler, monkeypatch):
    spy = mock.Mock(wraps=blas._load_cublas())
    monkeypatch.setattr(blas, "_load_cublas", lambda: spy)
    made = blas.Cublas(handler._device, "f32")
    expected = {made._small.value, made._large.value}
    del made
    destroyed = [call.args[0].value for call in spy.cublasDestroy_v2.call_args_list]
    assert len(destroyed) == 2
    assert set(destroyed) == expected


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
