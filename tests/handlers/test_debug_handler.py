"""DebugHandler: every mistake is refused, with a text that says which operand is wrong and why."""

import re

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.handlers.debug_handler import DebugArray
from brainstorm.layers import Elementwise, FullyConnected, Input, Loss
from brainstorm.network import Network
from brainstorm.optree import Variable, linearise
from brainstorm.optree import functions as fn
from brainstorm.utils import flatten_time


@pytest.fixture
def debug():
    return DebugHandler(NumpyHandler(np.float64, seed=1))


def error(text):
    """Expect a HandlerValidationError with exactly this text."""
    return pytest.raises(HandlerValidationError, match=f"^{re.escape(text)}$")


# -- operations ----------------------------------------------------------------------------------

POOL = "avgpool2d_forward_batch(inputs, window, outputs, padding, stride)"
OVERLAPS = ": the result would be undefined. Give it memory of its own."
NO_NUMBER = "argument 's': expected a number or an array of one element, got"


def pooled(h, window, padding):
    images = h.ones((1, 2, 2, 1))
    h.avgpool2d_forward_batch(images, window, images, padding, (1, 1))


def made(h, *values):
    return h.create_from_numpy(np.array([values]))


def added_to_a_part(h, start):
    """Add a part of an array, which begins at some column, to another one."""
    wide = h.ones((2, 6))
    h.add_tt(wide[:, 0:3], wide[:, start : start + 3], wide[:, 0:3])
    return wide


def square(function):
    """Return a function of a handler that gives another one a matrix, too."""
    return lambda h: function(h, h.ones((2, 2)))


LOG = linearise(fn.log(Variable((2, 3), np.float64, name="x")))
RUN = "run_program(program, inputs, outputs, accumulate):"


def logged(x=(2, 3), out=(2, 3), adds=(False,), count=1):
    """Return a function of a handler that runs a program: with ones of these shapes, or arrays."""

    def run(h):
        given, written = (h.ones(a) if isinstance(a, tuple) else a(h) for a in (x, out))
        h.run_program(LOG, [given] * count, [written], list(adds))

    return run


def holding(value):
    """Return a function of a handler that makes an array with a number in its second row."""
    array = np.ones((2, 3))
    array[1, 2] = value
    return lambda h: h.create_from_numpy(array)


#: What is done with a handler, and what it says.
MISTAKES = [
    (lambda h: h.add_mv(h.ones((2, 3)), h.ones(3), h.ones((2, 3))),
     "add_mv(m, v, out): argument 'v': expected shape (1, N=3) or (M=2, 1) or (M=2, N=3), got "
     "(3,); sizes given by 'm' (2, 3)"),
    (lambda h: h.conv2d_forward_batch(h.ones((1, 5, 5, 2)), h.ones((3, 2, 2, 2)), h.ones(3),
                                      h.ones((1, 4, 5, 3)), 0, (1, 1)),
     "conv2d_forward_batch(inputs, weights, bias, outputs, padding, stride): expected OW == "
     "(W + around(padding, 1) - dilation[1]*(KW - 1) - 1)//stride[1] + 1, got padding=0, "
     "stride=(1, 1), dilation=(1, 1), W=5, KW=2, OW=5; sizes given by 'inputs' (1, 5, 5, 2), "
     "'outputs' (1, 4, 5, 3), 'weights' (3, 2, 2, 2)"),
    (lambda h: h.fill(np.zeros(3), 0.0),
     "fill(mem, val): argument 'mem': expected an array of this handler (create_from_numpy "
     "makes one), got ndarray of shape (3,)"),
    (lambda h: h.tanh(2, h.ones(1)),
     "tanh(x, y): argument 'x': expected an array of this handler (create_from_numpy makes "
     "one), got 2"),
    (lambda h: h.set_from_numpy(h.ones(2), h.ones(2)),
     "set_from_numpy(mem, arr): argument 'arr': expected a NumPy array, got "
     "DebugArray(float64[2])"),
    (lambda h: h.add_tt(h.ones(2), h.create_from_numpy(np.ones(2, np.float32)), h.ones(2)),
     "add_tt(a, b, out): argument 'b': expected dtype float64, that of the handler, got float32"),
    (square(lambda h, x: h.add_st("1", x, x)), f"add_st(s, t, out): {NO_NUMBER} '1'"),
    (square(lambda h, x: h.mult_st(x, x, x)),
     f"mult_st(s, t, out): {NO_NUMBER} DebugArray(float64[2, 2])"),
    (square(lambda h, x: h.sum_t(x, (0, 1), h.ones(1))),
     "sum_t(a, axis, out): argument 'axis': expected None or an integer, got (0, 1)"),
    (square(lambda h, x: h.dot_mm(x, x, h.ones((2, 2)), transa="yes")),
     "dot_mm(a, b, out): argument 'transa': expected True or False, got 'yes'"),
    (lambda h: h.allocate((2, -1)),
     "allocate(shape): argument 'shape': expected a size or a tuple of sizes, got (2, -1)"),
    (lambda h: h.create_random_stream(1.5),
     "create_random_stream(seed): argument 'seed': expected an integer, got 1.5"),
    (square(lambda h, x: h.fill_gaussian(0.0, 1.0, x, 3)),
     "fill_gaussian(mean, std, out): argument 'stream': expected None or a stream from "
     "create_random_stream, got 3"),
    (lambda h: pooled(h, 2, 0), f"{POOL}: argument 'window': expected two integers, got 2"),
    *(
        (lambda h, p=padding: pooled(h, (1, 1), p),
         f"{POOL}: argument 'padding': expected an integer, or for each of two axes one or two "
         f"(before, after), got {padding}")
        for padding in (1.5, (1,), (1, 2, 3), ((1, 2, 3), 0), (True, 0))
    ),
    *(
        (lambda h, v=bad: h.index_m_by_v(h.ones((2, 3)), made(h, 2.0, v).reshape((2, 1)),
                                         h.ones((2, 1))),
         "index_m_by_v(m, v, out): argument 'v': expected integral numbers in [0, N=3), got "
         f"{bad} at index (1, 0)")
        for bad in (3.0, -1.0, 0.5, np.nan)
    ),
    (square(lambda h, x: h.dot_mm(h.ones((2, 2)), x, x)),
     f"dot_mm(a, b, out): argument 'out' overlaps argument 'b'{OVERLAPS}"),
    (square(lambda h, x: h.split_add_tt(h.ones((2, 4)), x, x)),
     f"split_add_tt(x, out_a, out_b): argument 'out_a' overlaps argument 'out_b'{OVERLAPS}"),
    (lambda h: added_to_a_part(h, 1),
     "add_tt(a, b, out): argument 'out' overlaps argument 'b' without being the same as 'b'"
     f"{OVERLAPS}"),
    (lambda h: h.log_t(h.zeros((1, 2)), h.ones((1, 2))),
     "log_t(a, out): argument 'out' holds -inf (first at index (0, 0)) after the operation; "
     "inputs were finite"),
    (lambda h: h.sqrt_t(made(h, 1.0, np.nan), h.ones((1, 2))),
     "sqrt_t(a, out): argument 'a' holds NaN (first at index (0, 1)) before the operation"),
    (lambda h: h.mult_add_tt(h.ones((1, 2)), h.ones((1, 2)), made(h, 1.0, np.nan)),
     "mult_add_tt(a, b, out): argument 'out' holds NaN (first at index (0, 1)) after the "
     "operation; it was not finite before"),
    *(
        (square(lambda h, x, key=key: x[key]),
         f"DebugArray(float64[2, 2]): cannot be indexed by {key!r}. Use integers and slices "
         "without a step: not every handler has more.")
        for key in (slice(None, None, 2), None, ..., True, 1.0, [0, 1])
    ),
    (square(lambda h, x: x[0, 1]),
     "DebugArray(float64[2, 2]): [(0, 1)] is a number, not a view. Use slices, or "
     "get_numpy_copy to read."),
    *(
        (square(lambda h, x, shape=shape: x.reshape(shape)),
         f"DebugArray(float64[2, 2]): cannot be reshaped to {shape}. Give 4 elements, with no size "
         "left open: not every handler has -1.")
        for shape in ((-1,), (-2, -2), (5,))
    ),
    (lambda h: h.ones((2, 3, 8))[:, :, 2:6].reshape((2, 12)),
     "DebugArray(float64[2, 3, 4]): reshaping to (2, 12) would copy, and writes to the copy "
     "would be lost: rows are (192, 64, 8) bytes apart. Copy it to contiguous memory."),
    (logged(count=2), f"{RUN} 'inputs': expected 1, as many as the program has, got 2"),
    (logged(adds=()), f"{RUN} 'accumulate': expected 1, as many as the program has, got 0"),
    (logged((3, 2)), f"{RUN} input 0 (x): expected shape (2, 3), got (3, 2)"),
    (logged(out=(6,)), f"{RUN} output 0: expected shape (2, 3), got (6,)"),
    (logged(lambda h: np.ones((2, 3))),
     f"{RUN} input 0 (x): expected an array of this handler (create_from_numpy makes one), got "
     "ndarray"),
    (logged(lambda h: h.create_from_numpy(np.ones((2, 3), np.float32))),
     f"{RUN} input 0 (x): expected dtype float64, got float32"),
    (logged(holding(np.nan)),
     f"{RUN} input 0 (x) holds NaN (first at index (1, 2)) before the run"),
    (logged(out=holding(np.nan), adds=(True,)),
     f"{RUN} output 0, which is added to, holds NaN (first at index (1, 2)) before the run"),
    (logged(holding(0.0)),
     f"{RUN} output 0 holds -inf (first at index (1, 2)) after the run; inputs were finite. The "
     f"program:\n{LOG}"),
]  # fmt: skip


@pytest.mark.parametrize(
    "read", [np.asarray, np.abs, np.mean, list, bool, lambda x: np.ones(2) + x]
)
def test_an_array_is_read_only_by_operations(read):
    with pytest.raises(TypeError, match=r"^DebugArray\(float64\[2\]\) is no array of NumPy, as on"):
        read(DebugHandler(NumpyHandler(np.float64)).zeros((2,)))


@pytest.mark.parametrize(("call", "text"), MISTAKES, ids=[text[:60] for _, text in MISTAKES])
def test_a_mistake_is_told_with_its_operand_and_what_was_expected(debug, call, text):
    with error(text):
        call(debug)


def test_numpy_numbers_are_numbers_and_copies_may_convert(debug):
    x = debug.ones(2)
    debug.copy_to(debug.create_from_numpy(np.ones(2, np.float32)), x)
    debug.add_st(np.float32(2), x, x)
    debug.fill_if(x, np.float64(7), debug.create_from_numpy(np.array([0.0, 1.0])))
    np.testing.assert_array_equal(debug.get_numpy_copy(x), [3, 7])


def test_argmax_may_be_minus_one(debug):
    images, pooled = debug.ones((1, 2, 2, 1)), debug.ones((1, 1, 1, 1))
    index = debug.zeros((1, 1, 1, 1))
    arguments = images, (2, 2), pooled, 0, (1, 1), index, debug.zeros((1, 2, 2, 1)), pooled
    debug.fill(index, -1.0)
    debug.maxpool2d_backward_batch(*arguments)
    debug.fill(index, 4.0)
    with pytest.raises(HandlerValidationError, match=r"in \[-1, H\*W\*C=4\), got 4.0 at index"):
        debug.maxpool2d_backward_batch(*arguments)


def test_the_stride_of_an_axis_of_length_1_makes_no_other_array(debug):
    memory = debug.ones((1, 6)).array
    same = np.lib.stride_tricks.as_strided(memory, memory.shape, (8, memory.itemsize))
    debug.add_tt(*map(DebugArray, (memory, same, same)))
    np.testing.assert_array_equal(memory, 2)


@pytest.mark.parametrize("start", [0, 3])
def test_element_wise_operations_work_in_place(debug, start):
    assert debug.get_numpy_copy(added_to_a_part(debug, start))[0].tolist() == [2] * 3 + [1] * 3


def test_what_is_not_read_may_hold_anything_and_overlap_anything(debug):
    in_deltas, argmax = debug.zeros((1, 2, 2, 1)), debug.zeros((1, 1, 1, 1))
    outputs = debug.create_from_numpy(np.full((1, 1, 1, 1), np.nan))
    window, out_deltas = (2, 2), debug.ones((1, 1, 1, 1))
    debug.maxpool2d_backward_batch(
        in_deltas, window, outputs, 0, (1, 1), argmax, in_deltas, out_deltas
    )
    assert debug.get_numpy_copy(in_deltas).ravel().tolist() == [1, 0, 0, 0]
    with pytest.raises(HandlerValidationError, match="argument 'inputs'"):
        debug.avgpool2d_backward_batch(
            debug.zeros((1, 2)), window, outputs, 0, (1, 1), in_deltas, out_deltas
        )


def test_what_is_not_finite_can_be_asked_read_and_overwritten(debug):
    soiled = made(debug, 1.0, np.inf)
    assert debug.is_fully_finite(soiled) is False
    assert debug.get_numpy_copy(soiled)[0, 1] == np.inf
    debug.add_st(1.0, debug.ones((1, 2)), soiled)
    assert debug.is_fully_finite(soiled)


# -- arrays --------------------------------------------------------------------------------------


def test_debug_arrays_have_what_all_arrays_have(debug):
    x = debug.create_from_numpy(np.arange(24.0).reshape(2, 3, 4))
    assert isinstance(x, DebugArray) is isinstance(debug.EMPTY, debug.array_type) is True
    assert (x.shape, x.size, x.dtype, x.array.shape) == ((2, 3, 4), 24, np.float64, (2, 3, 4))
    assert repr(x) == "DebugArray(float64[2, 3, 4])"
    assert x[1].shape == (3, 4)
    assert x[-1, :2].shape == (2, 4)
    assert flatten_time(x).shape == x.reshape(6, 4).shape == (6, 4)
    assert debug.ones((2, 3, 8))[:, :, 2:6].reshape(6, 4).array.strides == (64, 8)
    debug.fill(x[1, :, 0:1], 9.0)
    assert debug.get_numpy_copy(x)[1, 2, 0] == 9


def test_there_is_neither_assignment_nor_arithmetic(debug):
    x = debug.ones(2)
    with pytest.raises(TypeError):
        x[0:1] = 2.0
    with pytest.raises(TypeError):
        x + x


# -- the handler itself --------------------------------------------------------------------------


def test_what_is_not_an_operation_is_passed_on(debug):
    inner = debug.handler
    assert debug.dtype is inner.dtype
    assert debug.rnd is inner.rnd
    assert debug.stream is inner.stream
    assert debug.context == "numpy"
    assert debug.info() == {**inner.info(), "checks": "DebugHandler"}
    with pytest.raises(AttributeError, match="no_such_thing"):
        debug.no_such_thing  # noqa: B018


def test_wrong_calls_are_python_errors(debug):
    with pytest.raises(TypeError, match=r"^abs_t\(a, out\): missing a required argument: 'out'"):
        debug.abs_t(debug.ones(1))


def test_the_first_operation_and_element_that_went_wrong_in_a_pass():
    hidden, out = FullyConnected(2, "linear", name="Hidden"), Elementwise("tanh", name="Out")
    Input({"default": ("T", "B", 2)}) >> hidden >> out
    net = Network.from_layer(out, handler=DebugHandler(NumpyHandler(np.float32)))
    net.initialize({"Hidden": {"W": np.array([[1, 1], [3e38, 3e38]]), "bias": 0}})
    net.provide_external_data({"default": np.ones((2, 3, 2))})
    with error(
        "layer 'Hidden' (FullyConnected), forward pass, outputs.default: affine_mm(a, b, bias, "
        "out, activation): argument 'out' holds inf (first at index (0, 1)) after the operation; "
        "inputs were finite"
    ):
        net.forward_pass()


def test_what_went_wrong_in_a_layer_whose_deltas_are_not_allocated():
    hidden, out = FullyConnected(2, "linear", name="Hidden"), FullyConnected(2, "linear")
    Input({"default": ("T", "B", 3)}) >> hidden >> out >> Loss()
    net = Network.from_layer(out, handler=DebugHandler(NumpyHandler(np.float32)))
    net.initialize({"Hidden": 1e-30, "default": 1e12})
    net.provide_external_data({"default": np.full((1, 2, 3), 1e30)})
    net.forward_pass(training_pass=True)
    with error(
        "layer 'Hidden' (FullyConnected), backward pass, gradients.W: dot_mm(a, b, out): argument "
        "'out' holds inf (first at index (0, 0)) after the operation; inputs were finite"
    ):
        net.backward_pass()


UNEVEN = (
    "expected arrays that lie one step further at every step, and the same numbers, got others at "
    "step 3 of mult_st"
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            lambda h, x, y, t: h.copy_to(x[t], y[t]) if t == 3 else h.mult_st(2.0, x[t], y[t]),
            "loop(steps, body): expected the same operations at every step, got mult_st () (2,) "
            "(2,) at step 1 and copy_to (2,) (2,) at step 3. A handler may do all steps as it does "
            "the first ones: write a loop of Python.",
        ),
        (lambda h, x, y, t: h.mult_st(5.0 if t == 3 else 2.0, x[t], y[t]), UNEVEN),
        (lambda h, x, y, t: h.mult_st(2.0, x[(0, 1, 5, 3, 4, 2)[t]], y[t]), UNEVEN),
    ],
    ids=["another operation", "another number", "another row"],
)
def test_steps_of_a_loop_do_the_same_and_move_evenly(debug, body, text):
    x, y = debug.ones((6, 2)), debug.zeros((6, 2))
    with pytest.raises(HandlerValidationError, match=re.escape(text)):
        debug.loop(range(1, 6), lambda t: body(debug, x, y, t))


def test_a_loop_is_traced_with_all_its_steps(debug):
    x = debug.zeros((5, 2))
    with debug.tracing() as trace:
        debug.loop(range(1, 5), lambda t: debug.add_st(1.0, x[t - 1], x[t]))
    assert [step.operation for step in trace.steps] == ["add_st"] * 4
    np.testing.assert_array_equal(debug.get_numpy_copy(x)[:, 0], range(5))
