"""Every operation against plain NumPy or plain loops, in float64, on random shapes and views.

`check_handler` compares handlers with the float64 NumpyHandler; these formulas keep that one
honest. A new operation only needs a line in `REFERENCE` (or `IMAGES`): a function of the arguments
that returns the expected content of what is written.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.optree.activations import SELU_ALPHA, SELU_SCALE
from brainstorm.testing.handler_arguments import Arguments, Invocation

CONTRACTS = Handler.operations()
HANDLERS = [DebugHandler(NumpyHandler(dtype, seed=1)) for dtype in (np.float32, np.float64)]
PLAIN = [debug.handler for debug in HANDLERS]


def _reduced(a, axis, out):
    return np.sum(a, axis=axis).reshape(out.shape)


def _product(a, b, transa, transb):
    return (a.T if transa else a) @ (b.T if transb else b)


def _softmax_to_the_past(scores, mask, causal, out):
    m, g, k = scores.shape
    wanted = np.broadcast_to(True if mask is None else mask.T[None] != 0, (m, g, k))
    if causal:
        wanted = wanted & np.tri(m, k, k - m, dtype=bool)[:, None]
    powers = np.exp(scores) * wanted
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def _added_rows(m, v, out):
    return out + np.eye(len(out))[v[:, 0].astype(int)].T @ m


def _with_sinusoids(x, out):
    steps, _, size = out.shape
    rows = [
        [(np.sin, np.cos)[i % 2](t / 10000 ** ((i - i % 2) / size)) for i in range(size)]
        for t in range(steps)
    ]
    return x + np.array(rows)[:, None]


def _reversed_within_lengths(x, mask, out, add):
    result = out * add
    for b in range(x.shape[1]):
        length = len(x) if mask is None else max(np.flatnonzero(mask[:, b]) + 1, default=0)
        for t in range(len(x)):
            result[t, b] += x[length - 1 - t if t < length else t, b]
    return result


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _normal_share(x):
    return np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x)


def _one_hot(v, out):
    return np.eye(out.shape[1])[v[:, 0].astype(int)]


def activated(name, x):
    names = {"relu": "rel", "elu": "el", "leaky_relu": "leaky_rel", "swish": "silu"}
    return x if name == "linear" else REFERENCE[names.get(name, name)](x, None)


REFERENCE = {
    "copy_to": lambda src, dest: src,
    "copy_to_if": lambda src, dest, cond: np.where(cond, src, dest),
    "fill": lambda mem, val: np.full(mem.shape, val),
    "fill_if": lambda mem, val, cond: np.where(cond, val, mem),
    "set_from_numpy": lambda mem, arr: arr,
    "abs_t": lambda a, out: np.abs(a),
    "add_into_if": lambda a, out, cond: np.where(cond, out + a, out),
    "add_st": lambda s, t, out: s + t,
    "add_tt": lambda a, b, out: a + b,
    "subtract_tt": lambda a, b, out: a - b,
    "mult_st": lambda s, t, out: s * t,
    "mult_tt": lambda a, b, out: a * b,
    "mult_add_st": lambda s, t, out: out + s * t,
    "mult_add_tt": lambda a, b, out: out + a * b,
    "divide_tt": lambda a, b, out: a / b,
    "modulo_tt": lambda a, b, out: a - np.trunc(a / b) * b,
    "clip_t": lambda a, a_min, a_max, out: np.minimum(np.maximum(a, a_min), a_max),
    "log_t": lambda a, out: np.log(a),
    "sqrt_t": lambda a, out: np.sqrt(a),
    "power_t": lambda a, exponent, out: a**exponent,
    "sign_t": lambda a, out: np.sign(a),
    "add_mv": lambda m, v, out: m + v,
    "subtract_mv": lambda m, v, out: m - v,
    "mult_mv": lambda m, v, out: m * v,
    "mult_add_mv": lambda m, v, out: out + m * v,
    "divide_mv": lambda m, v, out: m / v,
    "dot_mm": lambda a, b, out, transa, transb: _product(a, b, transa, transb),
    "dot_add_mm": lambda a, b, out, transa, transb: out + _product(a, b, transa, transb),
    "dot_add_packed": lambda a, b, out, transb: out + _product(a, b, False, transb),
    "affine_mm": lambda a, b, bias, out, activation: activated(activation, a @ b.T + bias),
    "sum_t": _reduced,
    "sum_add_t": lambda a, axis, out: out + _reduced(a, axis, out),
    "broadcast_t": lambda a, axis, out: np.broadcast_to(a, out.shape),
    "binarize_v": _one_hot,
    "index_m_by_v": lambda m, v, out: np.take_along_axis(m, v.astype(int), axis=1),
    "argmax_m": lambda m, out: np.argmax(m, axis=1)[:, None],
    "merge_tt": lambda a, b, out: np.concatenate([a, b], axis=-1),
    "split_add_tt": lambda x, out_a, out_b: (
        out_a + x[..., : out_a.shape[-1]],
        out_b + x[..., out_a.shape[-1] :],
    ),
    "sigmoid": lambda x, y: _sigmoid(x),
    "tanh": lambda x, y: np.tanh(x),
    "rel": lambda x, y: np.where(x > 0, x, 0),
    "el": lambda x, y: np.where(x >= 0, x, np.exp(x) - 1),
    "softplus": lambda x, y: np.log(1 + np.exp(x)),
    "leaky_rel": lambda x, y: np.where(x > 0, x, 0.01 * x),
    "gelu": lambda x, y: x * _normal_share(x),
    "silu": lambda x, y: x * _sigmoid(x),
    "hard_sigmoid": lambda x, y: np.clip(x / 6 + 0.5, 0, 1),
    "exp": lambda x, y: np.exp(x),
    "selu": lambda x, y: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
    "mish": lambda x, y: x * np.tanh(np.log1p(np.exp(x))),
    "hard_swish": lambda x, y: x * np.clip(x / 6 + 0.5, 0, 1),
    "softmax_m": lambda m, out: np.exp(m) / np.exp(m).sum(axis=1, keepdims=True),
    "softmax_deriv_m": lambda y, dy, dx: y * (dy - (y * dy).sum(axis=1, keepdims=True)),
    "attention_softmax": _softmax_to_the_past,
    "batched_dot_mm": lambda a, b, out, transa, transb: np.einsum(
        "mgk,kgn->mgn", a.T if transa else a, b.T if transb else b
    ),
    "take_rows_mv": lambda m, v, out: m[v[:, 0].astype(int)],
    "add_rows_mv": _added_rows,
    "add_sinusoids": _with_sinusoids,
    "reverse_time": _reversed_within_lengths,
}
#: Operations that these tests do not reach: the others have tests of their own.
ELSEWHERE = {
    *("allocate", "zeros", "ones", "create_from_numpy", "get_numpy_copy", "is_fully_finite"),
    *("pack_m", "create_random_stream", "fill_gaussian", "generate_probability_mask", "ctc_loss"),
    # Slopes: tests/optree/test_activations.py, and the properties of all handlers.
    *(name for name in CONTRACTS if name.endswith("_deriv")),
}


def check(call, arguments, expected):
    """Run an operation and compare; nothing else may have changed."""
    call.run()
    expected = expected if isinstance(expected, tuple) else (expected,)
    wanted = dict(arguments.values)
    written = [a.name for a in call.contract.arguments if a.written]
    wanted.update(zip(written, expected, strict=True))
    single = call.handler.dtype == np.float32
    for argument in call.read + call.written:
        np.testing.assert_allclose(
            call.get(argument.name),
            wanted[argument.name],
            rtol=2e-4 if single else 1e-11,
            atol=2e-5 if single else 1e-11,
            err_msg=f"{arguments}: {argument.name}",
        )


def test_every_operation_has_a_formula():
    assert {*REFERENCE, *ELSEWHERE, *IMAGES} == set(CONTRACTS)


@pytest.mark.parametrize("name", REFERENCE)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    handler=st.sampled_from(HANDLERS + PLAIN),
    strided=st.booleans(),
    in_memory=st.booleans(),
)
def test_operation(name, seed, handler, strided, in_memory):
    arguments = Arguments(name, seed, handler.dtype, example=seed % 4)
    expected = REFERENCE[name](**arguments.values)
    check(Invocation(handler, arguments, strided, in_memory), arguments, expected)


# -- images: everything that the windows show ------------------------------------------------------


def patches(images, window, padding, stride, dilation=None, outside=np.nan):
    """Return what the windows show: (images, windows, channels, cells); `outside` is the border."""
    axes = len(window)
    dilation = dilation or (1,) * axes
    items = padding if isinstance(padding, tuple) else (padding,) * axes
    border = ((0, 0), *(p if isinstance(p, tuple) else (p, p) for p in items), (0, 0))
    padded = np.pad(images, border, constant_values=outside)
    extents = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
    shown = sliding_window_view(padded, extents, tuple(range(1, axes + 1)))
    shown = shown[:, *(slice(None, None, step) for step in (*stride, 1, *dilation))]
    return shown.reshape(len(images), -1, images.shape[-1], math.prod(window))


def cells(images, *windows):
    """Return which elements of an image the windows show, as `patches` does; -1 is the border."""
    numbers = np.arange(images[0].size).reshape(1, *images.shape[1:])
    return patches(numbers, *windows, outside=-1)


def added(images, numbers, values):
    """Return images with values added to the elements of these numbers."""
    result = images.copy()
    for image, at, value in zip(
        result, np.broadcast_to(numbers, values.shape), values, strict=True
    ):
        np.add.at(image.reshape(-1), at[at >= 0], value[at >= 0])
    return result


def conv_forward(
    inputs, weights, bias, outputs, padding, stride, dilation, groups, activation,
    add_outputs=False,
):  # fmt: skip
    (filters, *window, size), n = weights.shape, len(inputs)
    shown = patches(inputs, window, padding, stride, dilation, 0).reshape(
        n, -1, groups, size, math.prod(window)
    )
    kernels = weights.reshape(groups, filters // groups, -1, size)
    out = np.einsum("nwgck,gfkc->nwgf", shown, kernels).reshape(outputs.shape)
    return activated(activation, out + outputs * add_outputs + (0 if bias is None else bias))


def conv_backward(
    inputs, weights, padding, stride, in_deltas, out_deltas, weight_deltas, bias_deltas,
    add_gradients, add_in_deltas, dilation, groups,
):  # fmt: skip
    (filters, *window, size), n = weights.shape, len(out_deltas)
    windows = window, padding, stride, dilation
    deltas = out_deltas.reshape(n, -1, groups, filters // groups)
    dx = dw = db = None
    if weight_deltas is not None:
        shown = patches(inputs, *windows, 0).reshape(*deltas.shape[:3], size, -1)
        dw = np.einsum("nwgck,nwgf->gfkc", shown, deltas).reshape(weights.shape)
        dw += weight_deltas * add_gradients
    if bias_deltas is not None:
        db = deltas.sum((0, 1)).ravel() + bias_deltas * add_gradients
    if in_deltas is not None:
        kernels = weights.reshape(groups, filters // groups, -1, size)
        parts = np.einsum("nwgf,gfkc->nwgck", deltas, kernels)
        parts = parts.reshape(*deltas.shape[:2], groups * size, -1)
        dx = added(in_deltas * add_in_deltas, cells(in_deltas, *windows), parts)
    return dx, dw, db


def max_forward(inputs, window, outputs, padding, stride, argmax):
    shown = patches(inputs, window, padding, stride)
    numbers = np.broadcast_to(cells(inputs, window, padding, stride), shown.shape)
    best = np.where(np.isnan(shown), -np.inf, shown).argmax(-1)[..., None]
    out, where = (np.take_along_axis(a, best, -1).reshape(outputs.shape) for a in (shown, numbers))
    return np.where(where < 0, 0, out), where


def max_backward(
    inputs, window, outputs, padding, stride, argmax, in_deltas, out_deltas, add_in_deltas
):
    return added(in_deltas * add_in_deltas, argmax.astype(int), out_deltas)


def avg_forward(inputs, window, outputs, padding, stride):
    shown = patches(inputs, window, padding, stride)
    counts = np.maximum(1, np.sum(~np.isnan(shown), -1))
    return (np.nansum(shown, -1) / counts).reshape(outputs.shape)


def avg_backward(inputs, window, outputs, padding, stride, in_deltas, out_deltas, add_in_deltas):
    numbers = cells(in_deltas, window, padding, stride)
    counts = np.maximum(1, np.sum(numbers >= 0, -1))
    shares = out_deltas.reshape(-1, *counts.shape[1:]) / counts
    parts = np.broadcast_to(shares[..., None], (len(shares), *numbers.shape[1:]))
    return added(in_deltas * add_in_deltas, numbers, parts)


IMAGES = {
    "conv2d_forward_batch": conv_forward,
    "conv2d_backward_batch": conv_backward,
    "conv3d_forward_batch": conv_forward,
    "conv3d_backward_batch": conv_backward,
    "maxpool2d_forward_batch": max_forward,
    "maxpool2d_backward_batch": max_backward,
    "avgpool2d_forward_batch": avg_forward,
    "avgpool2d_backward_batch": avg_backward,
}


@pytest.mark.parametrize("name", IMAGES)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), handler=st.sampled_from(HANDLERS + PLAIN))
def test_images(name, seed, handler):
    arguments = Arguments(name, seed, handler.dtype, example=seed % 4)
    check(Invocation(handler, arguments), arguments, IMAGES[name](**arguments.values))


def test_large_windows():
    handler, name = PLAIN[0], "maxpool2d_forward_batch"
    sizes = {"N": 1, "H": 18, "W": 17, "C": 1, "window": (17, 17), "padding": 0, "stride": (1, 1)}
    arguments = Arguments(name, dtype=handler.dtype, fixed=sizes)
    inputs = np.random.default_rng(1).permutation(18 * 17).reshape(1, 18, 17, 1).astype(float)
    arguments.values["inputs"] = inputs
    check(Invocation(handler, arguments), arguments, max_forward(**arguments.values))
