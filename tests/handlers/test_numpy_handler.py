"""NumpyHandler: memory, conversions, descriptions, threads, and the default handler."""

import numpy as np
import pytest

import brainstorm.handlers as handlers
from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import Handler, NumpyHandler, get_default_handler, set_default_handler
from brainstorm.randomness import global_rnd
from brainstorm.testing import check_handler


def test_too_much_memory_is_a_memory_error():
    with pytest.raises(MemoryError):
        NumpyHandler().allocate((2**40, 2**20))


def test_wrong_types_and_memory_are_refused():
    with pytest.raises(HandlerValidationError, match="expected float32 or float64, got int64"):
        NumpyHandler(np.int64)
    h = NumpyHandler()
    x, w, bias, wide = (h.ones(s) for s in ((1, 3, 3, 1), (2, 2, 2, 1), (2,), (1, 2, 2, 3)))
    text = r"conv2d_forward_batch: argument 'outputs': expected contiguous memory, got .* strides"
    with pytest.raises(HandlerValidationError, match=text):
        h.conv2d_forward_batch(x, w, bias, wide[..., :2], 0, (1, 1))


@pytest.mark.parametrize("shape", [(1, 9, 9, 2), (1, 3, 2, 2)])
def test_a_convolution_reads_nothing_beyond_its_images(shape):
    h = NumpyHandler()
    x, w, y = h.ones((1, 3, 3, 1)), h.ones((2, 2, 2, 1)), h.ones(shape)
    with pytest.raises(ValueError, match="mismatch"):
        h.conv2d_forward_batch(x, w, None, y, 0, (1, 1))
    with pytest.raises(ValueError, match="mismatch"):
        h.conv2d_backward_batch(x, w, 0, (1, 1), None, y, h.ones(w.shape), None)


def test_info():
    info = NumpyHandler(np.float64).info()
    assert info["numpy"] == np.__version__
    assert info["dtype"] == "float64"
    assert info["products"]


# -- precision -----------------------------------------------------------------------------------


def test_float32_stays_float32():
    handler = NumpyHandler(np.float32)
    own = [n for n in Handler.operations() if getattr(NumpyHandler, n) is not getattr(Handler, n)]
    check_handler(handler, own, properties=["results equal the reference"])
    held = handler._scratch._slots
    assert held
    assert not [name for name, array in held.items() if array.dtype == np.float64]


# -- the default handler -------------------------------------------------------------------------


@pytest.fixture
def no_default():
    """Start without a default handler, and put the old one back."""
    old = get_default_handler()
    set_default_handler(None)
    yield
    set_default_handler(old)


def test_the_default_handler_is_made_once(no_default):
    """And draws no numbers from the global generator."""
    state = global_rnd.get_state(legacy=False)
    default = get_default_handler()
    assert isinstance(default, NumpyHandler)
    assert default.dtype == np.float32
    assert get_default_handler() is handlers.default_handler is default
    np.testing.assert_equal(global_rnd.get_state(legacy=False), state)


def test_the_default_handler_can_be_set(no_default):
    mine = NumpyHandler(np.float64)
    set_default_handler(mine)
    assert handlers.default_handler is mine
    text = r"^set_default_handler\(handler\): expected a Handler or None, got 'numpy'. Create one "
    with pytest.raises(
        HandlerValidationError, match=rf"{text}first, e.g. NumpyHandler\(np.float32"
    ):
        set_default_handler("numpy")


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'no_such_handler'"):
        handlers.no_such_handler  # noqa: B018
