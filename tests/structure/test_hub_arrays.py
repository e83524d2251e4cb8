"""Changes of T and B that are interrupted, and views that others read or change meanwhile."""

import gc
import itertools
import linecache
import queue
import sys
import threading
import weakref
from collections import Counter
from functools import partial

import numpy as np
import pytest

from brainstorm.handlers import NativeHandler, NumpyHandler
from brainstorm.structure.buffer_structure import BufferStructure
from tests.networks import build

PATH = "Out.outputs.predictions"
FILES = ("buffers.py", "buffer_views.py", "view_tree.py", "hub_arrays.py")
DATA = {B: np.random.RandomState(B).normal(size=(1, B, 4)) for B in range(1, 6)}


def network():
    return build("mlp", NumpyHandler(np.float64))


@pytest.fixture(scope="module")
def expected():
    net = network()
    return {B: net.predict(x, PATH) for B, x in DATA.items()}


def check(net, expected, order=(3, 1, 2)):
    for B in order:
        np.testing.assert_array_equal(net.predict(DATA[B], PATH), expected[B])
        for view in (net.buffer.Out.outputs, net.buffer.Loss.inputs):
            assert view[0].shape[1] == view.values()[0].shape[1] == next(iter(view)).shape[1] == B


def interrupt_at(number, function, *arguments, files=FILES, events=("line",)):
    """Call a function, and interrupt it at one of the lines of some files that it runs.

    Lines count the first two times that they are run: before anything was done, and in between. So
    do calls, if they are among the events: then a signal comes before the first line.

    Returns:
        Whether there are so many lines.
    """
    lines, entered, times = 0, set(), Counter()

    def trace(frame, event, _):
        nonlocal lines
        where = frame.f_code.co_filename, frame.f_lineno
        if not where[0].endswith(files):
            return None
        if event == "line" and (frame, where) in entered:
            return trace  # the end of a with statement, where Python looks at no signal
        if linecache.getline(*where).strip().startswith("with "):
            entered.add((frame, where))
        times[where] += event in events
        lines += event in events and times[where] <= 2
        if lines == number:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("B", [3, 4, 5], ids=["known size", "new size", "growth"])
def test_a_change_of_sizes_may_be_interrupted_anywhere(B, expected):
    for number in itertools.count(1, 4 if B == 5 else 2):
        net = network()
        for size in (4, 1, 2, 3, 2) if B == 4 else (1, 2, 3, 2):
            net.predict(DATA[size], PATH)
        if B == 4:
            net._buffer_manager._arrays.clear()
        if not interrupt_at(number, net.predict, DATA[B], PATH):
            break
        repr(net.buffer.Out)  # whose arrays are of whatever sizes there are now
        check(net, expected)
    assert number > 50


@pytest.mark.parametrize("is_used", [False, True])
def test_others_do_not_wait_for_a_turn_that_was_interrupted_anywhere(is_used):
    net, results = build("mlp", NativeHandler(np.float64)), []
    turn, lane, expected = net._buffer_manager.turn, net.handler.lane, net.predict(DATA[1], PATH)
    function = partial(net.predict, DATA[1], PATH) if is_used else turn.__enter__
    for number in itertools.count(1):
        if not interrupt_at(number, function, files=("turns.py",), events=("line", "call")):
            break
        assert net.handler.lane is lane
        other = threading.Thread(
            target=lambda: results.append(net.predict(DATA[1], PATH)), daemon=True
        )
        other.start()
        other.join(timeout=60)
        np.testing.assert_array_equal(results[number - 1], expected)
    assert number > 10


def test_the_lane_is_that_of_the_network_that_computes():
    nets = [build("mlp", NativeHandler(np.float64)) for _ in range(2)]
    nets[1].set_handler(handler := nets[0].handler)
    (a, b), own = nets, handler.lane
    with a.alone():
        for net in (b, a, b, b, a):
            with net.alone():
                assert handler.lane is net._buffer_manager.lane
        assert handler.lane is a._buffer_manager.lane
        assert len(handler.running.turns) <= 2
    assert handler.lane is own
    with b.alone():
        assert handler.running.turns == [b.alone()]


def test_a_thread_enters_its_own_turn_again_while_others_wait():
    net, entered = network(), []
    turn = net._buffer_manager.turn
    waiting = threading.Thread(target=turn.__enter__, daemon=True)

    def enter_twice():
        with turn:
            waiting.start()
            while not turn._gate.locked():
                pass
            with turn:
                entered.append(True)

    thread = threading.Thread(target=enter_twice, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert entered


def test_a_thread_that_looks_slowly_changes_no_prediction(monkeypatch, expected):
    net, create, looks = network(), BufferStructure.create_from_buffer_hub, queue.Queue()
    goes_on = threading.Event()

    def slow(*args):
        if threading.current_thread() is thread:
            looks.put(None)
            goes_on.wait(5)
        return create(*args)

    thread = threading.Thread(target=lambda: net.buffer.Out.outputs.predictions)
    net.predict(DATA[4], PATH)
    net._buffer_manager.resize(1, 2)
    monkeypatch.setattr(BufferStructure, "create_from_buffer_hub", slow)
    thread.start()
    looks.get()
    for B in (4, 2):
        np.testing.assert_array_equal(net.predict(DATA[B], PATH), expected[B])
    net._buffer_manager.resize(1, 3)  # nobody has looked at these arrays yet
    goes_on.set()
    thread.join()
    assert net.buffer.Out.outputs.predictions.shape[1] == 3
    monkeypatch.undo()
    check(net, expected)


def test_threads_that_look_change_no_prediction(expected):
    net, is_over, failures = network(), threading.Event(), []

    def look():
        while not is_over.is_set():
            try:
                net.buffer.Out.outputs.predictions.shape, list(net.buffer.Projection.outputs)
            except BaseException as error:  # pragma: no cover
                failures.append(error)
                return

    threads, interval = [threading.Thread(target=look) for _ in range(3)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for n in range(400):
            assert net.predict(DATA[n % 5 + 1], PATH).shape[1] == n % 5 + 1
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        for thread in threads:
            thread.join()
    assert not failures
    check(net, expected)


def test_memory_is_freed_with_the_last_reference_to_a_network():
    net = network()
    net.predict(DATA[3])
    view, memory = net.buffer, weakref.ref(net._buffer_manager.full_buffers[-1])
    gc.disable()
    try:
        del net
        assert memory() is not None
        del view
        assert memory() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.set_handler(NumpyHandler(np.float64)),
        lambda net: setattr(net, "keep_input_deltas", True),
    ],
    ids=["handler", "input deltas"],
)
def test_a_change_of_the_layout_may_be_interrupted_anywhere(change, expected):
    for number in itertools.count(1, 4):
        net = network()
        values = net.get("parameters")
        net.predict(DATA[2], PATH)
        is_interrupted = interrupt_at(number, change, net)
        np.testing.assert_array_equal(net.get("parameters"), values)
        check(net, expected)
        if not is_interrupted:
            break
    assert number > 50
