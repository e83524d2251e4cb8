"""Streams, events, stream capture and graphs."""

import ctypes

import numpy as np
import pytest

from tests import cudashim

NON_BLOCKING = 1
GLOBAL, THREAD_LOCAL, RELAXED = range(3)
ADD = "__global__ void kernel(float *x, float y) { x[threadIdx.x] += y; }"


class Graphs:
    """CUDA graphs through the driver's own functions, which PyCUDA lacks."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")

    def begin(self, stream, mode=THREAD_LOCAL):
        assert self.driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream.handle), mode) == 0

    def end(self, stream):
        """Return CUDA's error code and the graph."""
        graph, handle = ctypes.c_void_p(), ctypes.c_void_p(stream.handle)
        return self.driver.cuStreamEndCapture(handle, ctypes.byref(graph)), graph

    def executable(self, graph):
        found, flags = ctypes.c_void_p(), ctypes.c_ulonglong(0)
        assert self.driver.cuGraphInstantiateWithFlags(ctypes.byref(found), graph, flags) == 0
        assert self.driver.cuGraphDestroy(graph) == 0
        return found

    def launch(self, executable, stream):
        return self.driver.cuGraphLaunch(executable, ctypes.c_void_p(stream.handle))

    def types(self, graph):
        """Kinds of a graph's nodes: 0 kernel, 1 copy, 2 memset."""
        count = ctypes.c_size_t()
        assert self.driver.cuGraphGetNodes(graph, None, ctypes.byref(count)) == 0
        nodes = (ctypes.c_void_p * count.value)()
        assert self.driver.cuGraphGetNodes(graph, nodes, ctypes.byref(count)) == 0
        kinds = [ctypes.c_int() for _ in nodes]
        for node, kind in zip(nodes, kinds, strict=True):
            self.driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind))
        return [kind.value for kind in kinds]


@pytest.fixture
def graphs(cuda):
    return Graphs()


@pytest.fixture
def stream(cuda):
    return cuda.driver.Stream(NON_BLOCKING)


def adder(cuda):
    kernel = cuda.kernel(ADD, "kernel", "Pf")
    return lambda stream, x, y: kernel.prepared_async_call((1, 1), (4, 1, 1), stream, int(x), y)


def test_a_graph_does_what_the_calls_did(cuda, graphs, stream):
    add, x, y = adder(cuda), cuda.array([1, 2, 3, 4]), cuda.empty(4)
    pinned = cuda.driver.pagelocked_zeros(4, np.float32)

    def step():
        cuda.driver.memcpy_htod_async(int(y), pinned, stream)
        add(stream, y, 10)
        cuda.driver.memcpy_dtod_async(int(x), int(y), 8, stream)
        cuda.driver.memset_d32_async(int(x) + 12, 0, 1, stream)

    step()
    eager = x.get()
    np.testing.assert_array_equal(eager, [10, 10, 3, 0])
    x.set([1, 2, 3, 4])
    before = cudashim.counters()["kernels"]
    graphs.begin(stream)
    step()
    code, graph = graphs.end(stream)
    assert code == 0
    assert graphs.types(graph) == [1, 0, 1, 2]
    executable = graphs.executable(graph)
    assert cudashim.counters()["kernels"] == before
    np.testing.assert_array_equal(x.get(), [1, 2, 3, 4])
    assert graphs.launch(executable, stream) == 0
    np.testing.assert_array_equal(x.get(), eager)
    pinned[:] = 5  # read again at every launch
    assert graphs.launch(executable, stream) == 0
    np.testing.assert_array_equal(x.get(), [15, 15, 3, 0])
    assert cudashim.counters()["graph_launches"] == 2
    assert graphs.driver.cuGraphExecDestroy(executable) == 0
    assert graphs.launch(executable, stream) == 400


def test_a_replay_over_freed_memory(cuda, graphs, stream):
    add, x = adder(cuda), cuda.array([1, 2, 3, 4])
    graphs.begin(stream)
    add(stream, x, 1)
    _, graph = graphs.end(stream)
    executable = graphs.executable(graph)
    x.memory.free()
    assert graphs.launch(executable, stream) == 700
    assert "a freed allocation" in cudashim.message()


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_what_a_capture_forbids(mode, cuda, graphs, stream):
    x, driver = cuda.array(np.zeros(4)), cuda.driver
    for forbidden in (
        stream.synchronize, stream.is_done, driver.Context.synchronize, x.get,
        lambda: cuda.empty(1), lambda: x.set(np.zeros(4)),
        lambda: driver.memset_d32(int(x), 0, 4), lambda: driver.pagelocked_zeros(4, np.float32),
    ):  # fmt: skip
        graphs.begin(stream, mode)
        with pytest.raises(driver.Error, match="not permitted when stream is capturing"):
            forbidden()
        assert graphs.end(stream)[0] == 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        x.get()


def test_the_default_stream_waits_for_blocking_streams_only(cuda, graphs, stream):
    x = cuda.array(np.zeros(4))
    graphs.begin(stream, RELAXED)
    x.get()
    assert graphs.end(stream)[0] == 0
    blocking = cuda.driver.Stream(0)
    graphs.begin(blocking, RELAXED)
    with pytest.raises(cuda.driver.Error, match="legacy stream depend on a capturing"):
        x.get()
    assert graphs.end(blocking)[0] == 901


def test_streams_fork_and_join_in_a_capture(cuda, graphs, stream):
    add, x, other = adder(cuda), cuda.array(np.zeros(4)), cuda.driver.Stream(NON_BLOCKING)
    fork, join = cuda.driver.Event(), cuda.driver.Event()
    for joined in (True, False):
        graphs.begin(stream, RELAXED)
        fork.record(stream)
        with pytest.raises(cuda.driver.Error, match="last recorded in a capturing stream"):
            fork.synchronize()
        other.wait_for_event(fork)
        add(other, x, 1)
        join.record(other)
        if joined:
            stream.wait_for_event(join)
        code, graph = graphs.end(stream)
        assert code == (0 if joined else 904)  # CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        if joined:
            assert graphs.types(graph) == [0]


def test_a_stream_of_another_device_and_a_destroyed_one(cuda, graphs, stream):
    other = cuda.other_device()
    add, x = adder(cuda), cuda.array(np.zeros(4))
    handle = ctypes.c_void_p(cuda.driver.Stream(NON_BLOCKING).handle)  # destroyed at once
    assert graphs.driver.cuStreamSynchronize(handle) == 400
    other.push()
    theirs = cuda.driver.Stream(NON_BLOCKING)
    other.pop()
    with pytest.raises(cuda.driver.LogicError, match="invalid resource handle"):
        add(theirs, x, 1)


class TestLateStreams:
    """With the option `late` work is done when somebody waits for it."""

    @pytest.fixture(autouse=True)
    def late(self, cuda):
        cudashim.set_option("late", 1)

    def test_copies_by_the_default_stream_wait_for_blocking_streams_alone(self, cuda, stream):
        add, x = adder(cuda), cuda.array(np.zeros(4))
        add(stream, x, 1)
        np.testing.assert_array_equal(x.get(), 0)
        stream.synchronize()
        np.testing.assert_array_equal(x.get(), 1)
        add(cuda.driver.Stream(0), x, 1)
        np.testing.assert_array_equal(x.get(), 2)

    def test_a_stream_does_not_wait_for_another_one_unless_by_an_event(self, cuda, stream):
        add, x, y = adder(cuda), cuda.array(np.zeros(4)), cuda.empty(4)
        other, event = cuda.driver.Stream(NON_BLOCKING), cuda.driver.Event()
        add(stream, x, 1)
        event.record(stream)
        cuda.driver.memcpy_dtod_async(int(y), int(x), 16, other)
        other.synchronize()
        np.testing.assert_array_equal(y.get(), 0)
        other.wait_for_event(event)
        cuda.driver.memcpy_dtod_async(int(y), int(x), 16, other)
        other.synchronize()
        np.testing.assert_array_equal(y.get(), 1)

    def test_pinned_memory_is_read_when_the_copy_is_done(self, cuda, stream):
        x = cuda.empty(4)
        for make, expected in ((np.zeros, 0), (cuda.driver.pagelocked_zeros, 7)):
            host = make(4, np.float32)
            cuda.driver.memcpy_htod_async(int(x), host, stream)
            host[:] = 7
            stream.synchronize()
            np.testing.assert_array_equal(x.get(), expected)

    def test_synchronous_copies_of_pageable_memory_may_arrive_later(self, cuda, stream):
        values = np.ones(20_000, np.float32)
        x, y = cuda.empty(values.size), cuda.empty(values.size)
        x.set(values)
        cuda.driver.memcpy_dtod_async(int(y), int(x), values.nbytes, stream)
        stream.synchronize()  # which does not wait for the default stream
        assert np.isnan(y.get()).all()
        np.testing.assert_array_equal(x.get(), values)

    def test_polling_ends(self, cuda, stream):
        add, x, event = adder(cuda), cuda.array(np.zeros(4)), cuda.driver.Event()
        for _ in range(3):
            add(stream, x, 1)
        event.record(stream)
        assert not event.query()
        assert [event.query() for _ in range(3)][-1]
        np.testing.assert_array_equal(x.get(), 3)


def test_time_between_events(cuda, stream):
    start, end = cuda.driver.Event(), cuda.driver.Event()
    start.record(stream)
    adder(cuda)(stream, cuda.array(np.zeros(4)), 1)
    end.record(stream)
    end.synchronize()
    assert 0 < end.time_since(start) < 60_000
