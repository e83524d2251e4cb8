"""NumpyHandler: memory, conversions, descriptions, threads, and the default handler."""

from __future__ import annotations

import copy
import pickle
import threading
import tracemalloc

import numpy as np
import pytest

import brainstorm.handlers as handlers
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import Handler, NumpyHandler, get_default_handler, set_default_handler
from brainstorm.randomness import global_rnd


@pytest.mark.parametrize("shape", [3, (5,), (2, 3), (1, 2, 3, 4), (0,), (), (7, 0, 2)])
def test_new_arrays(handler, shape):
    sizes = (shape,) if isinstance(shape, int) else shape
    for make, content in ((handler.allocate, 0), (handler.zeros, 0), (handler.ones, 1)):
        array = make(shape)
        assert isinstance(array, handler.array_type)
        assert array.shape == sizes
        assert array.dtype == handler.dtype
        values = handler.get_numpy_copy(array)
        assert np.all(values == content)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_memory_is_aligned(dtype):
    handler = NumpyHandler(dtype)
    for length in range(1, 40):
        for array in (handler.allocate(length), handler.create_from_numpy(np.ones(length))):
            assert array.ctypes.data % 64 == 0
            assert array.flags.c_contiguous


def test_too_much_memory_is_a_memory_error():
    with pytest.raises(MemoryError):
        NumpyHandler().allocate((2**40, 2**20))


def test_create_from_numpy_keeps_the_dtype_and_copies(handler):
    source = np.arange(6, dtype=np.int64).reshape(2, 3).T
    array = handler.create_from_numpy(source)
    assert array.dtype == np.int64
    source[...] = 0
    np.testing.assert_array_equal(handler.get_numpy_copy(array), [[0, 3], [1, 4], [2, 5]])


def test_set_from_numpy_casts(handler):
    array = handler.zeros((2, 2))
    handler.set_from_numpy(array, np.array([[1, 2], [3, 4]]))
    result = handler.get_numpy_copy(array)
    assert result.dtype == handler.dtype
    np.testing.assert_array_equal(result, [[1, 2], [3, 4]])
    result[...] = 0
    assert handler.get_numpy_copy(array)[1, 1] == 4


def test_copy_to_casts_to_the_same_kind_only():
    handler = NumpyHandler(np.float32)
    single, whole = handler.zeros(2), np.zeros(2, np.int32)
    handler.copy_to(np.array([1.5, 2.5]), single)
    np.testing.assert_array_equal(single, [1.5, 2.5])
    with pytest.raises(
        HandlerValidationError,
        match=r"^copy_to\(src, dest\): argument 'src': expected a dtype that fits into int32, got "
        r"float32. Use set_from_numpy to cast.$",
    ):
        handler.copy_to(single, whole)


def test_wrong_shapes_and_types_are_refused():
    handler = NumpyHandler()
    array = handler.zeros((2, 3))
    with pytest.raises(
        HandlerValidationError,
        match=r"^copy_to\(src, dest\): argument 'dest': expected shape \(3,\), that of src, got "
        r"\(2, 3\)$",
    ):
        handler.copy_to(handler.zeros(3), array)
    with pytest.raises(
        HandlerValidationError,
        match=r"^set_from_numpy\(mem, arr\): argument 'arr': expected shape \(2, 3\), that of mem, "
        r"got \(3,\)$",
    ):
        handler.set_from_numpy(array, np.zeros(3))
    with pytest.raises(HandlerValidationError, match=r"'mem': expected an array .*, got list"):
        handler.get_numpy_copy([1.0])
    with pytest.raises(HandlerValidationError, match=r"'arr': expected a NumPy array, got list"):
        handler.create_from_numpy([1.0])
    with pytest.raises(HandlerValidationError, match="expected float32 or float64, got int64"):
        NumpyHandler(np.int64)


def test_convolutions_refuse_to_write_into_copies():
    handler = NumpyHandler()
    x, w, b = handler.ones((1, 3, 3, 1)), handler.ones((2, 2, 2, 1)), handler.ones(2)
    part = handler.ones((1, 2, 2, 3))[..., :2]
    with pytest.raises(
        HandlerValidationError,
        match=r"^conv2d_forward_batch: argument 'outputs': expected contiguous memory, got shape "
        r"\(1, 2, 2, 2\) with strides",
    ):
        handler.conv2d_forward_batch(x, w, b, part, 0, (1, 1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_is_fully_finite(handler, value):
    values = np.ones((3, 4), handler.dtype)
    assert handler.is_fully_finite(handler.create_from_numpy(values).reshape((12,)))
    values[2, 3] = value
    assert not handler.is_fully_finite(handler.create_from_numpy(values))


def test_large_finite_numbers_are_finite(handler):
    values = np.full((2, 2), np.finfo(handler.dtype).max, handler.dtype)
    assert handler.is_fully_finite(handler.create_from_numpy(values))


def test_descriptions_and_copies():
    handler = NumpyHandler(np.float32, seed=3)
    assert get_description(handler) == {"@type": "NumpyHandler", "dtype": "float32"}
    assert create_from_description({"@type": "NumpyHandler", "dtype": "float64"}).dtype == "float64"
    for new in (copy.deepcopy(handler), pickle.loads(pickle.dumps(handler))):
        ours, theirs = handler.zeros(9), new.zeros(9)
        stream = copy.deepcopy(handler.stream)
        handler.fill_gaussian(0.0, 1.0, ours, stream)
        new.fill_gaussian(0.0, 1.0, theirs)
        np.testing.assert_array_equal(ours, theirs)


def test_info():
    info = NumpyHandler(np.float64).info()
    assert info["numpy"] == np.__version__
    assert info["dtype"] == "float64"
    assert info["products"]


# -- steady state --------------------------------------------------------------------------------


def heavy_calls(h):
    """One call of every operation that needs intermediate results, on large arrays."""
    m, out, cond = h.ones((300, 400)), h.zeros((300, 400)), h.ones((300, 400))
    row, column, square = h.ones((1, 400)), h.zeros((300, 1)), h.zeros((300, 300))
    images, kernel, bias = h.ones((32, 16, 16, 16)), h.ones((16, 3, 3, 16)), h.ones(16)
    same, deltas = h.zeros((32, 16, 16, 16)), h.ones((32, 16, 16, 16))
    pooled, index = h.zeros((32, 14, 14, 16)), h.zeros((32, 14, 14, 16))
    pool = (images, (3, 3), pooled, 0, (1, 1))
    yield "copy_to_if", (m, out, cond)
    yield "fill_if", (out, 2.0, cond)
    yield "add_into_if", (m, out, cond)
    yield "is_fully_finite", (m,)
    yield "mult_add_st", (2.0, m, out)
    yield "mult_add_tt", (m, m, out)
    yield "mult_add_mv", (m, row, out)
    yield "clip_t", (m, 0.0, 1.0, out)
    yield "dot_mm", (m, m, square, False, True)
    yield "dot_add_mm", (m, m, square, False, True)
    for axis, result in ((0, row), (1, column), (None, h.zeros(()))):
        yield "sum_t", (m, axis, result)
        yield "sum_add_t", (m, axis, result)
    yield "fill_gaussian", (0.0, 1.0, out[:, :399])
    yield "generate_probability_mask", (out[:, :399], 0.5)
    yield "binarize_v", (h.zeros((300, 1)), out)
    yield "index_m_by_v", (m, h.zeros((300, 1)), column)
    yield "split_add_tt", (m, h.zeros((300, 200)), h.zeros((300, 200)))
    yield "softmax_m", (m, out)
    yield "softmax_deriv_m", (m, m, out)
    cube, square = h.ones((60, 8, 50)), h.zeros((60, 8, 60))
    yield "batched_dot_mm", (cube, cube, square, False, True)
    yield "attention_softmax", (square, h.ones((60, 8)), True, square)
    yield "take_rows_mv", (m, h.zeros((300, 1)), out)
    yield "add_rows_mv", (m, h.zeros((300, 1)), out)
    yield "add_sinusoids", (cube, cube)
    yield "reverse_time", (square, h.ones((60, 8, 1)), h.zeros(square.shape), True)
    labels, mask = h.zeros((60, 8, 1)), h.ones((60, 8, 1))
    yield "ctc_loss", (cube, labels, mask, h.zeros((8, 1)), h.zeros(cube.shape))
    others = ("softplus", "leaky_rel", "gelu", "silu", "hard_sigmoid", "exp", "selu", "mish")
    for name in ("sigmoid", "tanh", "rel", "el", "hard_swish", *others):
        yield name, (m, out)
        yield f"{name}_deriv", (m, m, m, out)
    yield "conv2d_forward_batch", (images, kernel, bias, same, 1, (1, 1))
    for add in (False, True):
        gradients = h.zeros((16, 3, 3, 16)), h.zeros(16)
        arrays = images, kernel, 1, (1, 1), same, deltas, *gradients
        yield "conv2d_backward_batch", (*arrays, add, not add)
    yield "conv2d_forward_batch", (images, kernel, None, same, 2, (1, 1), (2, 2), 1, True)
    grouped = h.ones((16, 3, 3, 4)), h.zeros((16, 3, 3, 4))
    yield "conv2d_forward_batch", (images, grouped[0], bias, same, 1, (1, 1), (1, 1), 4)
    for add in (False, True):
        arrays = images, grouped[0], 1, (1, 1), same, deltas, grouped[1], h.zeros(16)
        yield "conv2d_backward_batch", (*arrays, add, add, (1, 1), 4)
    films, cube = h.ones((2, 16, 16, 16, 16)), h.ones((16, 3, 3, 3, 16))
    yield "conv3d_forward_batch", (films, cube, bias, h.zeros(films.shape), 1, (1, 1, 1))
    for add in (False, True):
        arrays = h.zeros(films.shape), films, h.zeros(cube.shape), h.zeros(16)
        yield "conv3d_backward_batch", (films, cube, 1, (1, 1, 1), *arrays, add, not add)
    yield "maxpool2d_forward_batch", (*pool, index)
    yield "maxpool2d_backward_batch", (*pool, index, same, pooled)
    yield "avgpool2d_forward_batch", pool
    yield "avgpool2d_backward_batch", (*pool, same, pooled)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_allocated_in_steady_state(dtype):
    handler = NumpyHandler(dtype)
    calls = list(heavy_calls(handler))
    # NumPy's own buffers: at most 8192 elements for each of four operands (three from NumPy 2.3
    # on), of whatever size.
    limit = 4 * 8192 * handler.dtype.itemsize + 8192
    for name, arguments in 2 * calls:  # the second time, no scratch grows any more
        getattr(handler, name)(*arguments)
    tracemalloc.start()
    try:
        for name, arguments in calls:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            getattr(handler, name)(*arguments)
            used = tracemalloc.get_traced_memory()[1] - before
            assert used < limit, f"{name} allocated {used} bytes"
    finally:
        tracemalloc.stop()


def test_float32_stays_float32():
    handler = NumpyHandler(np.float32)
    [getattr(handler, name)(*arguments) for name, arguments in heavy_calls(handler)]
    held = handler._scratch._slots
    assert not [name for name, array in held.items() if array.dtype == np.float64]


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((10**8,), None), ((10**8,), 0), ((10**7, 10), 0), ((10, 10**7), 1), ((2, 10**7, 5), 1)],
)
def test_sums_of_many_numbers_are_exact_in_float32(shape, axis):
    handler = NumpyHandler(np.float32)
    a = np.broadcast_to(np.float32(0.1), shape)  # one number: repeated, it takes no memory
    out = handler.zeros(() if axis is None else shape[:axis] + shape[axis + 1 :])
    handler.sum_t(a, axis, out)
    expected = float(np.float32(0.1)) * a.size / out.size
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    handler.sum_add_t(a, axis, out)
    np.testing.assert_allclose(out, 2 * expected, rtol=1e-6)


def test_threads_do_not_share_scratch():
    handler = NumpyHandler(np.float64)
    wrong = []

    def work(number):
        m = np.full((50, 60), float(number))
        for _ in range(100):
            out = np.zeros((50, 60))
            handler.mult_add_st(2.0, m, out)
            if not np.all(out == 2 * number):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- the default handler -------------------------------------------------------------------------


@pytest.fixture
def no_default():
    """Start without a default handler, and put the old one back."""
    old = get_default_handler()
    set_default_handler(None)
    yield
    set_default_handler(old)


def test_the_default_handler_is_made_once(no_default):
    default = get_default_handler()
    assert isinstance(default, NumpyHandler)
    assert default.dtype == np.float32
    assert get_default_handler() is handlers.default_handler is default


def test_making_it_draws_no_numbers_from_the_global_generator(no_default):
    state = global_rnd.get_state(legacy=False)
    get_default_handler()
    np.testing.assert_equal(global_rnd.get_state(legacy=False), state)


def test_the_default_handler_can_be_set(no_default):
    mine = NumpyHandler(np.float64)
    set_default_handler(mine)
    assert handlers.default_handler is mine
    with pytest.raises(
        HandlerValidationError,
        match=r"^set_default_handler\(handler\): expected a Handler or None, got str. Create one "
        r"first, e.g. NumpyHandler\(np.float32\).$",
    ):
        set_default_handler("numpy")


def test_public_names():
    assert handlers.__all__ == [
        "DebugHandler",
        "Handler",
        "NativeHandler",
        "NumpyHandler",
        "PyCudaHandler",
        "get_default_handler",
        "register_activation",
        "set_default_handler",
    ]
    assert issubclass(NumpyHandler, Handler)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_handler'"):
        handlers.no_such_handler  # noqa: B018
