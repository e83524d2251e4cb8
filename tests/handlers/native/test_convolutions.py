"""Convolutions: against the loops of the reference, and what they cost when repeated."""

from unittest import mock

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler
from brainstorm.handlers.native import convolutions
from brainstorm.handlers.native.calls import Execution
from brainstorm.handlers.native.primitives import DST, WEIGHTS
from brainstorm.testing.handler_arguments import Arguments, Invocation
from tests.handlers.native.lowered import check, check_random_calls, native_calls

OPERATIONS = [f"conv{n}d_{way}_batch" for n in (2, 3) for way in ("forward", "backward")]


@pytest.mark.parametrize("name", OPERATIONS)
def test_random_convolutions(native, name):
    check_random_calls(native, name, 2e-5, count=48)


#: Sizes at which the library's kernels for vectors and blocks of channels run.
LARGER = [
    {"C": 1, "CG": 1, "groups": 1, "F": 32, "KH": 5, "KW": 5, "H": 28, "W": 28, "N": 3},
    {"C": 32, "CG": 32, "groups": 1, "F": 64, "KH": 5, "KW": 5, "H": 12, "W": 12, "N": 3},
    {"C": 48, "CG": 16, "groups": 3, "F": 24, "KH": 3, "KW": 2, "H": 9, "W": 11, "N": 2},
    {"C": 16, "CG": 1, "groups": 16, "F": 16, "KH": 3, "KW": 3, "H": 9, "W": 9, "N": 2},
    {"C": 7, "CG": 7, "groups": 1, "F": 70, "KH": 1, "KW": 1, "H": 8, "W": 8, "N": 4},
]


@pytest.mark.parametrize("sizes", LARGER, ids=str)
@pytest.mark.parametrize("name", OPERATIONS[:2])
def test_larger_convolutions(native, name, sizes):
    for example in range(8):
        # exp would turn rounding errors into large ones
        fixed = {**sizes, "activation": "leaky_rel"}
        check(native, name, Arguments(name, 3, np.float32, example, fixed=fixed), 2e-4)


def test_weights_are_copied_into_the_layout_that_each_convolution_has_chosen(native):
    """It need not choose the same one with a bias, or with another activation function."""
    x, w, out = (np.ones(s, "f") for s in ((2, 9, 9, 16), (32, 3, 3, 16), (2, 7, 7, 32)))
    given = {"inputs": x, "weights": w, "outputs": out, "padding": 0, "stride": (1, 1)}
    copies = set()
    for bias, activation in ((None, "linear"), (np.ones(32, "f"), "linear"), (None, "tanh")):
        options = {"bias": bias, "activation": activation}
        copy, convolution = native_calls(native, "conv2d_forward_batch", given | options)
        assert copy._made_of[3][DST] == convolution._made_of[3][WEIGHTS]
        copies.add(copy._made_of[1])
    assert len(copies) == 3


@pytest.mark.parametrize("with_weights", [True, False])
@pytest.mark.parametrize("add", [False, True])
def test_gradients_of_many_pixels(native, with_weights, add, rng):
    """They are added for some images at a time: the library adds them one after the other."""
    x, dy = (rng.random((15, 256, 256, n), np.float32) for n in (1, 2))
    weights = np.ones((2, 1, 1, 1), np.float32)
    dw, db = (np.full(shape, 3, np.float32) for shape in (weights.shape, (2,)))
    native.conv2d_backward_batch(
        x, weights, 0, (1, 1), None, dy, dw if with_weights else None, db, add_gradients=add
    )
    exact = dy.astype(float)
    np.testing.assert_allclose(db, exact.sum((0, 1, 2)) + 3 * add, 1e-5)
    if with_weights:
        np.testing.assert_allclose(dw[:, 0, 0, 0], (exact * x).sum((0, 1, 2)) + 3 * add, 1e-5)


@pytest.mark.parametrize("precision", ["native", "half"])
@pytest.mark.parametrize("where", ["inputs", "weights", "bias"])
@pytest.mark.parametrize("channels", [(1, 4), (3, 5), (16, 32)], ids=str)
def test_nan_goes_through_every_activation(request, precision, where, channels):
    handler = request.getfixturevalue(precision)
    depth, filters = channels
    rng, numpy = np.random.default_rng(0), NumpyHandler(np.float32)
    shapes = {"inputs": (2, 9, 9, depth), "weights": (filters, 3, 3, depth), "bias": (filters,)}
    arrays = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays[where].flat[1] = np.nan
    arrays |= {"padding": 0, "stride": (1, 1)}
    expected = np.zeros((2, 7, 7, filters), np.float32)
    numpy.conv2d_forward_batch(**arrays, outputs=expected)
    assert 0 < np.isnan(expected).mean() < 1
    for activation in handler.activations:
        out = np.zeros_like(expected)
        handler.conv2d_forward_batch(**arrays, outputs=out, activation=activation)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected), activation)


@pytest.mark.parametrize("name", OPERATIONS)
def test_random_convolutions_in_bfloat16(half, name):
    """Each factor is off by up to one part in 2 ** 8, and what is small may cancel out."""
    for seed in range(48):
        fixed = {"activation": "linear"}
        arguments = Arguments(name, seed, np.float32, example=seed % 4, fixed=fixed)
        call = Invocation(half, arguments)
        assert native_calls(half, name, call.values) is not None, str(arguments)
        call.run()
        for written, expected in arguments.expected().items():
            error = np.abs(call.get(written) - expected)
            assert (error <= 0.03 * (1 + np.abs(expected).max(initial=0))).all(), str(arguments)


@pytest.mark.parametrize("name", OPERATIONS)
def test_convolutions_of_numbers_that_bfloat16_has(half, monkeypatch, name):
    """Only sums are rounded, as in float32; numbers read from beyond the images would be NaN."""
    monkeypatch.setattr(convolutions, "HALF_WORK", 0)
    names = set()
    for seed in range(48):
        arguments = Arguments(name, seed, np.float32, example=seed % 4)
        for key, value in arguments.values.items():
            if isinstance(value, np.ndarray):
                halves = value.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
                arguments.values[key] = halves.view(np.float32).astype(np.float64)
        calls = native_calls(half, name, Invocation(half, arguments).values)
        primitives = [call._made_of[1] for call in calls if isinstance(call, Execution)]
        names |= {primitive.implementation for primitive in primitives}
        for memory in half.lane.held.values():
            memory[:] = 255
        check(half, name, arguments, 2e-5)
    assert any(convolutions.FAST_IN_HALF in name for name in names)


def test_windows_that_the_library_gets_wrong_in_bfloat16(half, native, monkeypatch):
    monkeypatch.setattr(convolutions, "HALF_WORK", 0)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 32, 32, 16)), rng.normal(size=(8, 4, 4, 16))
    results = []
    for handler in (half, native):
        out = handler.zeros((2, 8, 8, 8))
        arrays = [handler.create_from_numpy(array) for array in (x, w)]
        handler.conv2d_forward_batch(*arrays, None, out, 0, (4, 4))
        results.append(out)
    np.testing.assert_allclose(*results, atol=0.01 * np.abs(results[1]).max())


def test_a_convolution_is_tried_once_before_it_uses_bfloat16(half, monkeypatch):
    trial = mock.Mock(wraps=convolutions._is_right)
    monkeypatch.setattr(convolutions, "_is_right", trial)
    w = half.zeros((32, 5, 5, 32))
    for n in (2, 3, 2):
        x, out = half.zeros((n, 12, 12, 32)), half.zeros((n, 8, 8, 32))
        half.conv2d_forward_batch(x, w, None, out, 0, (1, 1))
    assert trial.call_count == 1


@pytest.mark.parametrize("name", OPERATIONS[:2])
def test_a_second_call_creates_nothing(native, counted, name):
    for example in range(4):
        call = Invocation(native, Arguments(name, 5, np.float32, example, large=True))
        call.run()
        assert "dnnl_primitive" in counted
        held = [id(memory) for memory in native.lane.held.values()]
        counted.clear()
        call.run()
        assert counted == []
        assert [id(memory) for memory in native.lane.held.values()] == held


def test_same_bits(native):
    call = Invocation(native, Arguments("conv2d_backward_batch", 2, np.float32, large=True))
    found = set()
    for _ in range(5):
        for argument in call.written:
            call.values[argument.name].fill(1)
        call.run()
        found.add(b"".join(call.get(argument.name).tobytes() for argument in call.written))
    assert len(found) == 1
