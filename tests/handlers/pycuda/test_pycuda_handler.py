"""The laws of handlers on a GPU, and what the handler says of itself."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import brainstorm.handlers
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, PyCudaHandler
from brainstorm.testing import HANDLER_LAWS, check_handler
from brainstorm.testing.handler_bench import HandlerBench


@pytest.mark.parametrize("law", HANDLER_LAWS)
def test_it_obeys_all_laws(law, handler):
    check_handler(handler, laws=[law])


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_results_do_not_depend_on_the_order_of_threads(order, handler, shim):
    """Each allocation ends at a page that must not be touched; new memory holds NaN."""
    shim.set_option("order", order)
    check_handler(handler, laws=["results equal the reference"])
    assert shim.check() == 0


def test_results_do_not_depend_on_when_streams_work(handler, shim):
    """All work is put off until somebody waits for it."""
    shim.set_option("late", 1)
    check_handler(handler, laws=["results equal the reference", "random streams repeat"])


def test_half_precision_products_are_rounded_factors_and_exact_sums(rng):
    def rounded(x):
        bits = x.astype(np.float32).view(np.uint32)
        bits = bits + 0x7FFF + (bits >> 16 & 1)
        return (bits & 0xFFFF0000).view(np.float32)

    handler = PyCudaHandler(seed=1, compute="bf16")
    for transa, transb in ((False, False), (True, False), (False, True), (True, True)):
        a, b = rng.normal(size=(5, 7)), rng.normal(size=(7, 3))
        arrays = [
            handler.create_from_numpy(np.ascontiguousarray(x.T if t else x, np.float32))
            for x, t in ((a, transa), (b, transb))
        ]
        out = handler.zeros((5, 3))
        handler.dot_mm(*arrays, out, transa=transa, transb=transb)
        # The order of additions of float32 is cuBLAS's.
        np.testing.assert_allclose(out.get(), rounded(a) @ rounded(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("compute", "bits"), [("f32", 20), ("tf32", 9), ("bf16", 6)])
def test_products_have_the_precision_that_was_chosen(compute, bits, rng):
    handler = PyCudaHandler(seed=1, compute=compute)
    a, b = rng.uniform(1, 2, size=(2, 20, 20)).astype(np.float32)
    out, on = handler.zeros((20, 20)), handler.create_from_numpy
    handler.dot_mm(on(a), on(b), out, transb=True)
    error = np.abs(out.get() / (a.astype(float) @ b.T.astype(float)) - 1).max()
    assert error < 2.0**-bits
    if compute != "f32":
        assert error > 0  # it is rounded indeed


@pytest.mark.parametrize(("compute", "rounding"), [("tf32", 2.0**-11), ("bf16", 2.0**-8)])
def test_all_products_are_computed_in_the_chosen_precision(compute, rounding):
    handler = PyCudaHandler(seed=1, compute=compute)
    operations = ["dot_mm", "dot_add_mm", "batched_dot_mm", "affine_mm", "conv2d_forward_batch"]
    bench = HandlerBench(handler, [*operations, "conv3d_backward_batch"], 0)
    # The absolute tolerance becomes 20 roundings of numbers of size 1: sums have about 30 terms.
    bench.epsilon = rounding / 10
    HANDLER_LAWS["results equal the reference"](bench)


@pytest.mark.parametrize("transb", [False, True])
def test_packed_factors_are_rounded_once(transb, rng, shim):
    handler = PyCudaHandler(seed=1, compute="bf16")
    b = handler.create_from_numpy(rng.integers(-4, 5, (3, 5)).astype(np.float32))
    for matrix in (b, b.T):
        factors = rng.integers(-4, 5, (4, 2, matrix.shape[1 if transb else 0]))
        out = handler.zeros((2, matrix.shape[0 if transb else 1]))
        arrays = [handler.create_from_numpy(a.astype(np.float32)) for a in factors]
        for _ in range(2):  # what b holds now counts
            handler.add_st(1.0, b, b)
            handler.fill(out, 0.0)
            product = handler.repeated_dot_add(matrix, transb=transb)
            for a in arrays:
                product(a, out)
            second = matrix.get().T if transb else matrix.get()
            np.testing.assert_array_equal(out.get(), factors.sum(axis=0) @ second)
        shim.reset()
        product(arrays[0], out)
        # A kernel rounds a; that of b has been done, unless its rows do not lie in order.
        assert shim.counters()["kernels"] == (1 if matrix is b else 2)


def test_info_says_what_computes(handler):
    info = handler.info()
    assert info["handler"] == "PyCudaHandler"
    assert info["compute"] == "f32"
    assert "cuBLAS" in info["products"]
    assert "nvcc" in info["op-trees"]
    assert set(info) >= {"device", "driver", "pycuda", "convolutions", "pooling", "random numbers"}


def test_descriptions(handler):
    assert get_description(handler) == {"@type": "PyCudaHandler"}
    other = PyCudaHandler(compute="bf16")
    assert get_description(other) == {"@type": "PyCudaHandler", "compute": "bf16"}
    for new in (
        create_from_description(get_description(other)),
        copy.deepcopy(other),
        pickle.loads(pickle.dumps(other)),
    ):
        assert type(new) is PyCudaHandler
        assert new.info() == other.info()


def test_the_same_seed_gives_the_same_numbers():
    def draw(seed):
        handler = PyCudaHandler(seed=seed)
        out = handler.zeros((3, 4))
        handler.fill_gaussian(0.0, 1.0, out)
        return out.get()

    np.testing.assert_array_equal(draw(3), draw(3))
    assert not np.array_equal(draw(3), draw(4))


def test_philox_gives_the_known_answers(handler):
    """The first vector of Random123's known answers, for key and counter 0."""
    stream, mask = handler.create_random_stream(0), handler.zeros((4,))
    stream.set_state({"key": 0, "drawn": 0})
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])
    for place, word in enumerate(words):
        for offset, expected in ((0.0, 0.0), (2.0**-24, 1.0)):
            stream.set_state({"key": 0, "drawn": 0})
            handler.generate_probability_mask(mask, float((word >> 8) * 2.0**-24 + offset), stream)
            assert mask.get()[place] == expected
    assert stream.get_state() == {"generator": "Philox4x32", "key": 0, "drawn": 1}


def test_states_of_other_streams_are_refused(handler):
    stream = handler.create_random_stream(0)
    with pytest.raises(ValueError, match="cannot be continued on a GPU"):
        stream.set_state({"bit_generator": "Philox"})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compute": "f16"}, r"\(compute\): expected one of 'f32', 'tf32', 'bf16', got 'f16'"),
        ({"cublas": "x"}, r"\(cublas\): expected one of 'ctypes', 'skcuda', got 'x'"),
        ({"device": "0"}, r"\(device\): expected the number of a GPU, got '0'"),
        ({"device": -1}, r"\(device\): expected the number of a GPU, got -1"),
    ],
)
def test_bad_arguments(options, text):
    with pytest.raises(HandlerValidationError, match=text):
        PyCudaHandler(**options)


def test_operations_check_what_numpy_checks(handler):
    x = handler.zeros((2, 3))
    with pytest.raises(HandlerValidationError, match=r"'dest': expected shape \(2, 3\)"):
        handler.copy_to(x, handler.zeros((3, 2)))
    with pytest.raises(HandlerValidationError, match="'src': expected a dtype that fits in int"):
        handler.copy_to(x, handler.create_from_numpy(np.zeros((2, 3), np.int32)))
    with pytest.raises(HandlerValidationError, match=r"'arr': expected shape \(2, 3\)"):
        handler.set_from_numpy(x, np.zeros(6))
    with pytest.raises(HandlerValidationError, match="'arr': expected a NumPy array, got list"):
        handler.create_from_numpy([1.0])
    with pytest.raises(HandlerValidationError, match="'mem': expected an array of this handler"):
        handler.get_numpy_copy(np.zeros(3))


def test_it_can_be_checked_itself():
    debug = DebugHandler(PyCudaHandler(seed=1))
    with pytest.raises(HandlerValidationError, match=r"'b': expected shape \(K=3, N\), got"):
        debug.dot_mm(debug.zeros((2, 3)), debug.zeros((4, 5)), debug.zeros((2, 5)))
    bad = debug.create_from_numpy(np.full((2, 3), np.nan, np.float32))
    with pytest.raises(HandlerValidationError, match="'t' holds NaN"):
        debug.add_st(1.0, bad, debug.zeros((2, 3)))


def test_threads_may_share_it(handler):
    results, count = [], 8

    def work(number):
        x = handler.create_from_numpy(np.full((4, 4), number, np.float32))
        for _ in range(20):
            handler.add_st(1.0, x, x)
        results.append((x.get() == number + 20).all())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
        thread.join()
    assert results == [True] * count


def test_several_devices(shim):
    shim.set_option("devices", 2)
    first, second = PyCudaHandler(seed=1), PyCudaHandler(seed=1, device=1)
    assert (first.context, second.context) == ("cuda:0", "cuda:1")
    x = [h.create_from_numpy(np.arange(6, dtype=np.float32)) for h in (first, second)]
    for _ in range(3):
        for h, array in zip((first, second), x, strict=True):
            h.mult_st(2.0, array, array)
    assert [a.__dlpack_device__() for a in x] == [(2, 0), (2, 1)]
    for array in x:
        np.testing.assert_array_equal(array.get(), np.arange(6) * 8)


def test_importing_the_class_needs_nothing_of_cuda():
    code = (
        "import sys, brainstorm\n"
        "from brainstorm.handlers import PyCudaHandler\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'pycuda', 'skcuda', 'pytools'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "PyCudaHandler" in brainstorm.handlers.__all__
