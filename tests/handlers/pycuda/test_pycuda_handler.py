"""The properties of handlers on a GPU, and what the handler says of itself."""

import functools
import gc
import itertools
import threading
import time
import weakref

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.numpy_memory import array_at
from brainstorm.handlers.pycuda import images, launches, modules, recurrences
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.launches import Launch
from brainstorm.optree import formula
from brainstorm.testing import HANDLER_PROPERTIES, check_handler, handler_harness
from brainstorm.testing.handler_harness import HandlerHarness
from tests.handlers.running import graph_of, in_threads, on


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("order", "reversed"), ("order", "shuffled"), ("late", 1),
        ("multiprocessors", 1), ("multiprocessors", 132),
    ],
)  # fmt: skip
def test_results_do_not_depend_on_how_a_gpu_works(option, value, shim, monkeypatch):
    """Each allocation ends at a page that must not be touched; new memory holds NaN."""
    monkeypatch.setattr(handler_harness, "EXAMPLES", 6)
    shim.set_option(option, value)
    handler = PyCudaHandler(seed=1)
    assert option != "multiprocessors" or handler._device.multiprocessors == value
    check_handler(handler, properties=["results equal the reference", "random streams repeat"])
    assert shim.check() == 0


def test_half_precision_products_are_rounded_factors_and_exact_sums(rng):
    def rounded(x):
        bits = x.astype(np.float32).view(np.uint32)
        bits = bits + 0x7FFF + (bits >> 16 & 1)
        return (bits & 0xFFFF0000).view(np.float32)

    handler = PyCudaHandler(seed=1, compute="bf16")
    for transa, transb in itertools.product((False, True), repeat=2):
        a, b, out = rng.normal(size=(5, 7)), rng.normal(size=(7, 3)), handler.zeros((5, 3))
        arrays = [on(handler, x.T if turned else x) for x, turned in ((a, transa), (b, transb))]
        handler.dot_mm(*arrays, out, transa=transa, transb=transb)
        # The order of additions of float32 is cuBLAS's.
        np.testing.assert_allclose(out.get(), rounded(a) @ rounded(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("compute", "bits"), [("f32", 20), ("tf32", 9), ("bf16", 6)])
def test_products_have_the_precision_that_was_chosen(compute, bits, rng):
    handler = PyCudaHandler(seed=1, compute=compute)
    a, b = rng.uniform(1, 2, size=(2, 20, 20)).astype(np.float32)
    out = handler.zeros((20, 20))
    handler.dot_mm(on(handler, a), on(handler, b), out, transb=True)
    error = np.abs(out.get() / (a.astype(float) @ b.T.astype(float)) - 1).max()
    assert error < 2.0**-bits
    assert (error > 2.0**-18) == (compute != "f32")  # it is rounded indeed


@pytest.mark.parametrize(("compute", "rounding"), [("tf32", 2.0**-11), ("bf16", 2.0**-8)])
def test_all_products_are_computed_in_the_chosen_precision(compute, rounding):
    handler = PyCudaHandler(seed=1, compute=compute)
    operations = ["dot_mm", "dot_add_mm", "batched_dot_mm", "affine_mm", "conv2d_forward_batch"]
    harness = HandlerHarness(handler, [*operations, "conv3d_backward_batch"], 0)
    # The absolute tolerance becomes 20 roundings of numbers of size 1: sums have about 30 terms.
    harness.epsilon = rounding / 10
    HANDLER_PROPERTIES["results equal the reference"](harness)


@pytest.mark.parametrize("transb", [False, True])
def test_a_graph_rounds_a_common_factor_once(transb, rng, monkeypatch):
    monkeypatch.setattr(recurrences, "MOST_ROWS", 0)  # else it is no product of bfloat16
    handler = PyCudaHandler(seed=1, compute="bf16")
    b = on(handler, rng.integers(-4, 5, (6, 5)))
    for matrix in (b, b.T):
        factors = rng.integers(-4, 5, (4, 2, matrix.shape[1 if transb else 0]))
        out = handler.zeros((2, matrix.shape[0 if transb else 1]))
        arrays = [on(handler, a) for a in factors]

        def steps(matrix=matrix, arrays=arrays, out=out):
            product = handler.repeated_dot_add(matrix, transb=transb)
            for a in arrays:
                product(a, out)

        graph = graph_of(handler, steps)
        # One kernel rounds b, and one all the other factors.
        assert len(graph.launches) == 2 + len(factors)
        for run in (graph, steps):  # what b holds now counts
            handler.add_st(1.0, b, b)
            handler.fill(out, 0.0)
            run()
            second = matrix.get().T if transb else matrix.get()
            np.testing.assert_array_equal(out.get(), factors.sum(axis=0) @ second)


def test_few_rows_are_multiplied_by_a_common_factor_that_is_not_rounded():
    handler = PyCudaHandler(seed=1, compute="bf16")
    a, b, out = handler.ones((2, 4)), handler.ones((4, 4)), handler.zeros((2, 4))
    (launch,) = graph_of(handler, lambda: handler.repeated_dot_add(b)(a, out)).launches
    assert launch.kernel.name.startswith("few_rows_")


def test_what_matrices_are_rounded_to_lives_as_long_as_their_memory():
    handler = PyCudaHandler(seed=1, compute="bf16")
    a, b, out = (handler.ones((4, 4)) for _ in range(3))
    handler.dot_mm(a.reshape((4, 4)), b.reshape((4, 4)), out)  # views that nobody keeps
    gc.collect()
    assert {memory.address for memory in handler._halves} == {a.address, b.address}
    del a, b
    gc.collect()
    assert not handler._halves


def test_convolutions_of_some_images_at_a_time(handler, rng, monkeypatch):
    values = [rng.normal(size=s) for s in ((5, 4, 3, 2), (4, 2, 2, 1))]
    found = []
    for columns in (images.COLUMNS, 100):  # the matrix of an image has 48 elements
        monkeypatch.setattr(images, "COLUMNS", columns)
        x, w = (on(handler, value) for value in values)
        y, dx = handler.zeros((5, 3, 2, 4)), handler.ones(x.shape)
        dw, db = handler.ones(w.shape), handler.ones((4,))
        handler.conv2d_forward_batch(x, w, None, y, 0, (1, 1), groups=2)
        handler.conv2d_backward_batch(x, w, 0, (1, 1), dx, y, dw, db, groups=2)
        found.append([array.get() for array in (y, dx, dw, db)])
    for got, expected in zip(*found, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_kernels_that_are_written_by_hand_count_in_32_bits(handler):
    huge = handler.zeros((1,)).broadcast_to((1 << 16, 1 << 16))
    text = "^%s on a GPU: expected fewer than 2,130,706,432 elements, got 4,294,967,296\\. Use "
    building = Building(handler, "by hand")
    with pytest.raises(HandlerValidationError, match=text % "maximum_pool"):
        building.kernel("maximum_pool", huge.size, huge, huge, huge)
    with pytest.raises(HandlerValidationError, match=text % "take_rows"):
        building.elements("take_rows", [huge, huge], huge, (1, 1, 1, 0))
    few, shadow = handler.zeros((3,)), array_at(huge.address, (1 << 32, 1), np.float32)
    rows = DeviceArray(handler._device, huge.memory, shadow)
    with pytest.raises(HandlerValidationError, match=text % "take_rows"):
        handler.take_rows_mv(rows, few, few.reshape((3, 1)))
    with pytest.raises(HandlerValidationError, match=text % "sort_tiles"):
        handler.add_rows_mv(few.reshape((3, 1)), few, rows)
    with pytest.raises(HandlerValidationError, match=text % "dot_mm"):
        handler.dot_mm(rows, rows, few[:1].reshape((1, 1)), transa=True)


def test_info_says_what_computes(handler):
    info = handler.info()
    assert info["handler"] == "PyCudaHandler"
    assert info["compute"] == "f32"
    assert "cuBLAS" in info["products"]
    assert "NVRTC" in info["op-trees"]
    assert set(info) >= {"device", "driver", "pycuda", "convolutions", "pooling", "random numbers"}


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
        ({"device": "0"}, r"\(device\): expected the number of a GPU, got '0'"),
        ({"device": -1}, r"\(device\): expected the number of a GPU, got -1"),
        ({"device": True}, r"\(device\): expected the number of a GPU, got True"),
    ],
)
def test_bad_arguments(options, text):
    with pytest.raises(HandlerValidationError, match=text):
        PyCudaHandler(**options)


def test_nothing_keeps_a_handler_which_may_be_collected_in_any_thread(no_device, monkeypatch):
    """PyCUDA warns where it cannot destroy something, and warnings are errors here."""
    new = functools.cache(modules.modules_of.__wrapped__)  # as in a new process
    monkeypatch.setattr(launches, "modules_of", new)
    handler = PyCudaHandler(seed=1)
    x, out = on(handler, np.ones((300, 300))), handler.zeros((300, 300))
    handler.dot_mm(x, x, out[:, ::-1])
    device, held = weakref.ref(handler._device), [handler]
    del handler, x, out
    in_threads(lambda things: (things.clear(), gc.collect()), [held])
    assert device() is None
    PyCudaHandler(seed=1).zeros((2, 2))
    gc.collect()


def test_threads_may_share_it(monkeypatch):
    """Each product needs scratch memory for the columns of its factors."""
    handler, results = PyCudaHandler(seed=1, compute="bf16"), []
    bind = Launch.bind

    def interrupted(launch, functions):
        bind(launch, functions)
        run = launch.run
        launch.run = lambda: (run(), time.sleep(1e-3))

    monkeypatch.setattr(Launch, "bind", interrupted)

    def work(number):
        x, out = on(handler, np.full((4, 4), number)), handler.zeros((4, 8))[:, ::2]
        for _ in range(5):
            handler.dot_mm(x, x, out)
            results.append((out.get() == 4 * number**2).all())

    in_threads(work, range(4))
    assert results == [True] * 20


@pytest.mark.parametrize("replayed", [False, True])
def test_handlers_of_a_gpu_work_in_one_order(replayed, shim):
    """One may be given the arrays of another one, as a network the outputs of another network."""
    shim.set_option("late", 1)
    first, second = PyCudaHandler(seed=1), PyCudaHandler(seed=2, compute="bf16")
    x, y = on(first, np.ones((300, 300))), second.zeros((300, 300))

    def steps():
        second.mult_st(2.0, x, x)
        second.copy_to(x, y)

    graph_of(second, steps)() if replayed else steps()
    first.mult_st(3.0, y, y)
    assert (x.get() == 2).all()
    assert (y.get() == 6).all()


def test_what_a_thread_does_while_another_one_captures_a_graph_is_not_in_it(handler):
    found, other = [], PyCudaHandler(seed=2)

    def elsewhere():
        ones = other.ones((8,))
        found.append((ones, ones.get()))

    thread, x = threading.Thread(target=elsewhere), handler.ones((3,))

    def start():
        if thread.ident is None:
            thread.start()
            thread.join(0.2)  # it waits for the graph

    with handler.tracing(runs=False) as trace:
        handler.add_tt(x, x, x)
        handler.call(start, is_queued=True)
    trace.replay()
    thread.join()
    trace.replay()
    (ones, values), expected = found[0], np.ones(8)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(ones.get(), expected)
    np.testing.assert_array_equal(x.get(), np.full(3, 4.0))


def test_several_devices(shim):
    shim.set_option("devices", 2)
    first, second = PyCudaHandler(seed=1), PyCudaHandler(seed=1, device=1)
    assert (first.context, second.context) == ("cuda:0", "cuda:1")
    x = [on(h, np.arange(6)) for h in (first, second)]
    for _ in range(3):
        for h, array in zip((first, second), x, strict=True):
            h.mult_st(2.0, array, array)
    assert [a.__dlpack_device__() for a in x] == [(2, 0), (2, 1)]
    for work in (
        lambda: second.copy_to(*x),
        lambda: second.compute(formula(lambda a: -a), x[:1], x[1:]),
        lambda: second.set_from_numpy(x[0], np.zeros(6)),
        lambda: second.fill_gaussian(0.0, 1.0, x[1], first.stream),
    ):
        with pytest.raises(HandlerValidationError, match=r"\(number 1\), got .* \(number 0\)"):
            work()
    for array in x:
        np.testing.assert_array_equal(array.get(), np.arange(6) * 8)
