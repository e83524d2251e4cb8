"""The buffer manager: where the memory is, when it grows, and what survives."""

import operator
import signal
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.errors import NetworkValidationError, OutOfMemoryError
from brainstorm.handlers import NumpyHandler
from brainstorm.structure import hub_arrays
from brainstorm.structure.buffers import BufferManager
from brainstorm.structure.hub_arrays import MOST_SIZES
from brainstorm.structure.hubs import Hub
from brainstorm.structure.placement import measure_bytes
from brainstorm.structure.turns import PATIENCE, Turn


def array(index, shape, hub=None, part=None, **marks):
    node = {"@type": "array", "@index": index, "@shape": shape}
    if hub is not None:
        node |= {"@hub": hub, "@slice": part}
    return node | {f"@{key}": value for key, value in marks.items()}


def view(index, hub=None, part=None, **children):
    node = {"@type": "BufferView", "@index": index, **children}
    return node if hub is None else node | {"@hub": hub, "@slice": part}


def make_hub(paths, buffer_type, size, context=0, backward=False):
    return Hub(paths, [], buffer_type, backward, context, size)


# Constant: W (2, 3), b (2,) and running statistics; per sequence: 3 values; over time: y (4 values,
# two steps of context) and x (2, 2), and the delta of y.
HUBS = [
    make_hub(["L.parameters.W", "L.parameters.b"], 0, 8),
    make_hub(["L.internals.mean"], 0, 3),
    make_hub(["Input.outputs.label"], 1, 3),
    make_hub(["L.outputs.y", "Input.outputs.x"], 2, 8, context=2),
    make_hub(["L.output_deltas.y"], 2, 4, context=2, backward=True),
]
LAYOUT = view(
    0,
    parameters=array(0, (8,), 0, (0, 8)),
    Input=view(
        1,
        outputs=view(
            0, label=array(0, ("B", 3), 2, (0, 3)), x=array(1, ("T", "B", 2, 2), 3, (4, 8))
        ),
    ),
    L=view(
        2,
        outputs=view(1, y=array(0, ("T", "B", 4), 3, (0, 4), context_size=2)),
        parameters=view(2, 0, (0, 8), W=array(0, (2, 3), 0, (0, 6)), b=array(1, (2,), 0, (6, 8))),
        internals=view(3, mean=array(0, (3,), 1, (0, 3), persistent=True, initial_value=0.5)),
        input_deltas=view(4, x=array(0, ("T", "B", 4), null="it is not needed.")),
        output_deltas=view(5, y=array(0, ("T", "B", 4), 4, (0, 4), context_size=2)),
    ),
)


#: The arrays that grow with T and B, and some that do not.
PATHS = ["Input.outputs.x", "Input.outputs.label", "L.outputs.y", "L.parameters.W"]


@pytest.fixture
def manager():
    return BufferManager(LAYOUT, HUBS, NumpyHandler(np.float64))


@pytest.fixture
def counting():
    return BufferManager(LAYOUT, HUBS, CountingHandler())


def address(a):
    return a.__array_interface__["data"][0]


# -- placing ------------------------------------------------------------------------------------


def test_views_have_the_shapes_of_t_and_b(manager):
    views = manager.resize(3, 5)
    assert views is manager.views
    assert {path: views[path].shape for path in views.paths()} == {
        "parameters": (8,),
        "Input.outputs.label": (5, 3),
        "Input.outputs.x": (3, 5, 2, 2),
        "L.outputs.y": (5, 5, 4),
        "L.parameters.W": (2, 3),
        "L.parameters.b": (2,),
        "L.internals.mean": (3,),
        "L.output_deltas.y": (5, 5, 4),
    }


# -- growing ------------------------------------------------------------------------------------


class CountingHandler(NumpyHandler):
    """Counts what is allocated."""

    def __init__(self):
        super().__init__(np.float64)
        self.allocated = []
        self.limit = np.inf

    def allocate(self, shape):
        if shape[0] > self.limit:
            raise MemoryError
        self.allocated.append(shape[0])
        return super().allocate(shape)


def test_memory_only_grows(counting):
    counting.handler.allocated.clear()
    counting.resize(3, 5)
    assert len(counting.handler.allocated) == 2  # parameters have been there before
    assert measure_bytes(HUBS, 3, 5, 8) == counting.size * 8
    label, stamp = address(counting.buffers[2]), counting.stamp
    for size in ((1, 1), (2, 5), (3, 5), (3, 4)):
        counting.resize(*size)
    assert (len(counting.handler.allocated), counting.stamp) == (2, stamp)
    counting.resize(4, 5)  # only what depends on T
    assert len(counting.handler.allocated) == 3
    assert counting.stamp != stamp
    assert address(counting.buffers[2]) == label


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6))
def test_memory_suffices_for_all_sizes_so_far(sizes):
    manager = BufferManager(LAYOUT, HUBS, NumpyHandler(np.float32))
    tree, layer = manager.views, manager.views.L

    def resize(size):
        assert manager.resize(*size) is tree
        assert ((manager.time_size, manager.batch_size), manager.views.L) == (size, layer)
        new = BufferManager(LAYOUT, HUBS, NumpyHandler(np.float32)).resize(*size)
        for path in PATHS:
            node, array = manager.nodes[path], tree[path]
            assert (array.shape, array.strides) == (new[path].shape, new[path].strides)
            assert np.shares_memory(array, manager.buffers[node["@hub"]])
            assert list(tree[path.rpartition(".")[0]])[node["@index"]] is tree[path] is array
        places = [address(array) for array in manager.buffers]
        assert all(place % 64 == 0 for place in places)
        return [*places, address(layer.outputs.y), manager.stamp]

    for size in sizes:
        resize(size)
    assert len({str(resize(size)) for size in sizes}) == 1  # nothing moves
    largest = [max(hub.get_size(*size) for size in sizes) for hub in manager.hubs]
    assert manager.size <= sum(-(-n // 16) * 16 for n in largest)


def test_arrays_of_the_last_sizes_are_kept_until_memory_moves(manager):
    manager.resize(4, 2 * MOST_SIZES)
    found = {T: manager.resize(T, 2).L.outputs.y for T in (2, 3)}
    for T in (2, 3, 2):
        assert manager.resize(T, 2).L.outputs.y is found[T]
    for B in range(3, MOST_SIZES + 5):
        assert manager.resize(1, B).L.outputs.y.shape[1] == B
    later = manager.resize(2, 2).L.outputs.y
    assert later is not found[2]
    manager.resize(40, 2 * MOST_SIZES)
    assert manager.resize(2, 2).L.outputs.y is not later
    assert np.shares_memory(manager.views.L.outputs.y, manager.full_buffers[2])
    manager.set_handler(NumpyHandler(np.float32))
    assert manager.resize(2, 2).L.outputs.y.dtype == np.float32


def test_arrays_of_many_views_are_not_kept(manager, monkeypatch):
    monkeypatch.setattr(hub_arrays, "MOST_VIEWS", 1)
    first = manager.resize(2, 2).L.outputs.y
    manager.resize(1, 2)
    assert manager.resize(2, 2).L.outputs.y is first
    assert manager.views.Input.outputs.x.shape == (2, 2, 2, 2)
    manager.resize(1, 2)
    assert manager.resize(2, 2).L.outputs.y is not first


def test_parameters_and_statistics_stay_where_they_are(manager):
    manager.views.parameters[:] = np.arange(8)
    places = [address(manager.buffers[i]) for i in (0, 1)]
    for size in ((3, 5), (1, 1), (20, 30)):
        manager.resize(*size)
        assert [address(manager.buffers[i]) for i in (0, 1)] == places
        assert manager.views.parameters.tolist() == list(range(8))
        assert manager.views.L.internals.mean.tolist() == [0.5] * 3


def test_without_memory_the_previous_size_stays_in_force(counting):
    views = counting.resize(3, 5)
    views.Input.outputs.x[...] = 7
    counting.handler.limit = 1000
    with pytest.raises(OutOfMemoryError) as caught:
        counting.resize(100, 10)
    assert isinstance(caught.value, MemoryError)
    start, first, second, *_ = text = str(caught.value).splitlines()
    assert start == "cannot allocate 96.0 KiB for T=100, B=10. The largest buffers:"
    assert first.split() == ["63.8", "KiB", "L.outputs.y,", "Input.outputs.x"]
    assert second.split() == ["31.9", "KiB", "L.output_deltas.y"]
    assert text[-1].endswith("Use a smaller batch (see net.largest_batch) or shorter sequences.")
    assert (counting.time_size, counting.batch_size) == (3, 5)
    assert (views.Input.outputs.x == 7).all()
    for size in ((2, 4), (3, 10)):  # of the batch size that there was no memory for, too
        assert counting.resize(*size).Input.outputs.x.shape == (*size, 2, 2)


# -- content ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_another_handler_gets_parameters_and_statistics(manager, dtype):
    views, handler = manager.resize(3, 5), NumpyHandler(dtype)
    views.parameters[:] = np.arange(8)
    views.L.internals.mean[:] = [1, 2, 3]
    manager.set_handler(handler)
    assert (manager.handler is handler, manager.views is views) == (True, True)
    assert (manager.time_size, manager.batch_size) == (3, 5)
    assert views.parameters.dtype == dtype
    assert views.parameters.tolist() == list(range(8))
    assert views.L.internals.mean.tolist() == [1, 2, 3]


def test_a_handler_without_memory_changes_nothing(counting):
    views = counting.resize(3, 5)
    views.parameters[:] = np.arange(8)
    before, handler = dict(vars(counting)), CountingHandler()
    handler.limit = 100
    with pytest.raises(OutOfMemoryError, match="for T=3, B=5"):
        counting.set_handler(handler)
    assert not [name for name, value in vars(counting).items() if value is not before[name]]
    assert counting.resize(3, 5).parameters.tolist() == list(range(8))
    assert counting.resize(4, 6).L.outputs.y.shape == (6, 6, 4)


def test_released_memory_is_had_again_on_the_next_resize(manager):
    manager.resize(3, 5)
    manager.carry_context([], continues=False)
    manager.release()
    assert (manager.size, manager.sizes, manager.carries_context) == (0, (0, 0, 0), False)
    assert manager.resize(2, 5).L.outputs.y.shape == (4, 5, 4)
    assert manager.size * 8 == measure_bytes(HUBS, 2, 5, 8)


def test_only_backward_buffers_are_cleared(manager):
    manager.resize(3, 5)
    for buffer in manager.buffers:
        buffer[...] = 1
    manager.clear_backward_buffers()
    assert [buffer.mean() for buffer in manager.buffers] == [1, 1, 1, 1, 0]


# -- context ------------------------------------------------------------------------------------


def fill_rows(manager):
    """Number the rows of the hub with a context from 1 on."""
    rows = manager.buffers[3]
    rows[...] = np.arange(1, len(rows) + 1)[:, None, None]


def test_the_context_is_the_state_after_the_last_step(manager):
    manager.resize(3, 5)
    fill_rows(manager)
    context = manager.get_context()
    assert [c is None for c in context] == [True, True, True, False, True]
    assert context[3].shape == (2, 5, 8)
    assert context[3][:, 0, 0].tolist() == [2, 3]  # steps T - 2 and T - 1
    manager.buffers[3][...] = 0
    assert context[3][1, 0, 0] == 3  # a copy
    manager.resize(1, 5)  # shorter than the context, which reaches into the sequence before
    fill_rows(manager)  # step 0 is 1; the rows before it are 2 (step -2) and 3 (step -1)
    assert manager.get_context()[3][:, 0, 0].tolist() == [3, 1]


def test_applying_and_clearing_touch_nothing_but_the_context_rows(manager):
    views = manager.resize(3, 5)
    fill_rows(manager)
    context = manager.get_context()
    manager.apply_context(context)
    assert manager.buffers[3][:, 0, 0].tolist() == [1, 2, 3, 2, 3]
    assert views.L.outputs.y[-1, 0, 0] == 3  # index -1 is the step before the first
    manager.clear_context()
    assert manager.buffers[3][:, 0, 0].tolist() == [1, 2, 3, 0, 0]
    # other lengths are fine, other batch sizes are not
    manager.resize(6, 5)
    manager.apply_context(context)
    assert manager.buffers[3][-2:, 0, 0].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("spoil", "got"),
    [
        (lambda c: c[:3], "none"),
        (lambda c: [None] * 5, "none"),
        (lambda c: [*c[:3], c[3][:, :4], None], r"\(2, 4, 8\)"),
    ],
)
def test_a_foreign_context_is_refused(manager, spoil, got):
    manager.resize(3, 5)
    text = (
        rf"^context for 'L\.outputs\.y': expected an array of shape \(2, 5, 8\), got {got}\. "
        r"A context fits the network and the batch size that it came from\.$"
    )
    with pytest.raises(NetworkValidationError, match=text):
        manager.apply_context(spoil(manager.get_context()))


def test_who_comes_back_at_once_finds_who_has_waited(manager):
    came = []

    def wait(number):
        with manager.turn:
            came.append(number)

    for number in range(20):
        with manager.turn, manager.turn:  # its owner does not wait
            other = threading.Thread(target=wait, args=(number,))
            other.start()
            while not manager.turn._gate.locked():  # it does not wait yet
                time.sleep(1e-3)
            assert len(came) == number
        with manager.turn:
            assert len(came) == number + 1
        other.join()


@pytest.mark.parametrize("is_interrupted", [False, True])
@pytest.mark.parametrize("patience", [PATIENCE, 0.05])
def test_a_long_wait_is_a_warning_and_goes_on(
    manager, monkeypatch, caplog, patience, is_interrupted
):
    soon = property(operator.methodcaller("acquire", True, patience))
    monkeypatch.setattr(Turn, "_acquires_soon", soon)
    expected = int(patience < PATIENCE)
    is_held, may_go = threading.Event(), threading.Event()

    def hold():
        with manager.turn:
            is_held.set()
            may_go.wait(60)

    def end():
        while not manager.turn._gate.locked():
            time.sleep(1e-3)
        time.sleep(0.2)
        if is_interrupted:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        else:
            may_go.set()

    threads = [threading.Thread(target=function) for function in (hold, end)]
    for thread in threads:
        thread.start()
        is_held.wait(60)
    with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext(), manager.turn:
        assert may_go.is_set()
    may_go.set()
    for thread in threads:
        thread.join()
    with manager.turn:  # which is free
        pass
    assert len(caplog.messages) == expected
    for text in caplog.messages:
        assert text.startswith("thread 'MainThread' has waited 60 s for the network of the layers ")
        assert "A hook of timescale 'update' runs while its training has the network" in text
