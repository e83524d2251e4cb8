"""NumpyHandler: memory, conversions, descriptions, threads, and the default handler."""

from __future__ import annotations

import copy
import pickle
import re
import threading

import numpy as np
import pytest

import brainstorm.handlers as handlers
from brainstorm.describable import create_from_description, get_description
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import Handler, NumpyHandler, get_default_handler, set_default_handler
from brainstorm.randomness import global_rnd
from brainstorm.testing import check_handler


def test_too_much_memory_is_a_memory_error():
    with pytest.raises(MemoryError):
        NumpyHandler().allocate((2**40, 2**20))


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


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda h: h.copy_to(h.zeros(3), h.zeros((2, 3))),
         "copy_to(src, dest): argument 'dest': expected shape (3,), that of src, got (2, 3)"),
        (lambda h: h.set_from_numpy(h.zeros((2, 3)), np.zeros(3)),
         "set_from_numpy(mem, arr): argument 'arr': expected shape (2, 3), that of mem, got (3,)"),
        (lambda h: h.get_numpy_copy([1.0]),
         "'mem': expected an array of this handler, got list"),
        (lambda h: h.create_from_numpy([1.0]), "'arr': expected a NumPy array, got list"),
        (lambda h: NumpyHandler(np.int64), "expected float32 or float64, got int64"),
        (lambda h: h.conv2d_forward_batch(h.ones((1, 3, 3, 1)), h.ones((2, 2, 2, 1)), h.ones(2),
                                          h.ones((1, 2, 2, 3))[..., :2], 0, (1, 1)),
         "conv2d_forward_batch: argument 'outputs': expected contiguous memory, got shape "
         "(1, 2, 2, 2) with strides"),
    ],
)  # fmt: skip
def test_wrong_shapes_types_and_memory_are_refused(call, text):
    with pytest.raises(HandlerValidationError, match=re.escape(text)):
        call(NumpyHandler())


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


# -- precision and threads -----------------------------------------------------------------------


def test_float32_stays_float32():
    handler = NumpyHandler(np.float32)
    check_handler(handler, properties=["results equal the reference"])
    held = handler._scratch._slots
    assert held
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
