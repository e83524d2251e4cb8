"""Every operation against plain NumPy or plain loops, in float64, on random shapes and views.

The arguments are made from the contracts, so a new operation only needs a line in `REFERENCE` (or
`CONVOLUTIONS`, `POOLING`): a function of the arguments that returns the expected content of what
is written.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.handlers.contracts import _symbols

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
        wanted = wanted & np.tri(m, k, dtype=bool)[:, None]
    powers = np.exp(scores) * wanted
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total > 0, total, 1)


def _added_rows(m, v, out):
    return out + np.eye(len(out))[v[:, 0].astype(int)].T @ m


def _sinusoids(out):
    steps, _, size = out.shape
    rows = [
        [(np.sin, np.cos)[i % 2](t / 10000 ** ((i - i % 2) / size)) for i in range(size)]
        for t in range(steps)
    ]
    return np.broadcast_to(np.array(rows)[:, None], out.shape)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _normal_share(x):
    return np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)(x)


def _one_hot(v, out):
    return np.eye(out.shape[1])[v[:, 0].astype(int)]


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
    "sigmoid_deriv": lambda x, y, dy, dx: dy * y * (1 - y),
    "tanh": lambda x, y: np.tanh(x),
    "tanh_deriv": lambda x, y, dy, dx: dy * (1 - y * y),
    "rel": lambda x, y: np.where(x > 0, x, 0),
    "rel_deriv": lambda x, y, dy, dx: np.where(y > 0, dy, 0),
    "el": lambda x, y: np.where(x >= 0, x, np.exp(x) - 1),
    "el_deriv": lambda x, y, dy, dx: np.where(y >= 0, dy, dy * (y + 1)),
    "softplus": lambda x, y: np.log(1 + np.exp(x)),
    "softplus_deriv": lambda x, y, dy, dx: dy * (1 - np.exp(-y)),
    "leaky_rel": lambda x, y: np.where(x > 0, x, 0.01 * x),
    "leaky_rel_deriv": lambda x, y, dy, dx: np.where(y > 0, dy, 0.01 * dy),
    "gelu": lambda x, y: x * _normal_share(x),
    "gelu_deriv": lambda x, y, dy, dx: (
        dy * (_normal_share(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))
    ),
    "silu": lambda x, y: x * _sigmoid(x),
    "silu_deriv": lambda x, y, dy, dx: dy * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))),
    "hard_sigmoid": lambda x, y: np.clip(x / 6 + 0.5, 0, 1),
    "hard_sigmoid_deriv": lambda x, y, dy, dx: np.where((y > 0) & (y < 1), dy / 6, 0),
    "exp": lambda x, y: np.exp(x),
    "exp_deriv": lambda x, y, dy, dx: dy * y,
    "softmax_m": lambda m, out: np.exp(m) / np.exp(m).sum(axis=1, keepdims=True),
    "softmax_deriv_m": lambda y, dy, dx: y * (dy - (y * dy).sum(axis=1, keepdims=True)),
    "attention_softmax": _softmax_to_the_past,
    "batched_dot_mm": lambda a, b, out, transa, transb: np.einsum(
        "mgk,kgn->mgn", a.T if transa else a, b.T if transb else b
    ),
    "take_rows_mv": lambda m, v, out: m[v[:, 0].astype(int)],
    "add_rows_mv": _added_rows,
    "fill_sinusoids": _sinusoids,
    "reverse_time": lambda x, mask, out, add: x[::-1] + out * add,
}
#: Operations that these tests do not reach: the others have tests of their own.
ELSEWHERE = {
    *("allocate", "zeros", "ones", "create_from_numpy", "get_numpy_copy", "is_fully_finite"),
    *("create_random_stream", "fill_gaussian", "generate_probability_mask", "ctc_loss"),
}
POSITIVE = {"log_t", "sqrt_t", "power_t", "divide_tt", "divide_mv", "modulo_tt"}


class Call:
    """Random arguments for an operation, and what they become.

    Args:
        name: Name of the operation.
        handler: Makes the arrays.
        seed: Of sizes and numbers.
        strided: Make every array a slice of a wider one, on the last axis.
        sizes: Sizes of symbols and values of scalars that must not be random.
    """

    def __init__(self, name, handler, seed, strided=False, sizes=()):
        self.contract, self.handler, self.strided = CONTRACTS[name], handler, strided
        self.rng = np.random.default_rng(seed)
        self.sizes = dict(sizes)
        self.host, self.given = {}, {}
        for argument in self.contract.arguments:
            self.host[argument.name] = self._content(argument)
        for argument in self.contract.arguments:
            value = self.host[argument.name]
            is_array = argument.is_array and argument.kind != "host"
            self.given[argument.name] = self._to_handler(value) if is_array else value

    def _size(self, symbol):
        if symbol not in self.sizes:
            self.sizes[symbol] = int(self.rng.integers(1, 6))
        return self.sizes[symbol]

    def _shape(self, dims):
        shape = []
        for dim in dims:
            if dim.startswith("*"):
                rank = self.rng.integers(1, 4)
                shape += self.sizes.setdefault(dim[1:], tuple(self.rng.integers(1, 5, rank)))
            else:
                shape.append(eval(dim, {s: self._size(s) for s in _symbols(dim)}))
        return tuple(int(size) for size in shape)

    def _content(self, argument):
        if argument.name in self.sizes:
            return self.sizes[argument.name]
        if argument.kind == "bool":
            self.sizes[argument.name] = bool(self.rng.integers(2))
            return self.sizes[argument.name]
        if argument.kind == "scalar":
            return float(self.rng.normal())
        shape = self._shape(argument.shapes[self.rng.integers(len(argument.shapes))])
        if argument.high:
            high = eval(argument.high, {s: self._size(s) for s in _symbols(argument.high)})
            return self.rng.integers(argument.low, high, shape).astype(float)
        if argument.name == "cond":
            return self.rng.integers(0, 2, shape) * 2.0
        values = self.rng.normal(size=shape)
        values[np.abs(values) < 0.05] = 0.5
        if self.contract.name in POSITIVE:
            values = np.abs(values)
        return values.astype(self.handler.dtype).astype(np.float64)

    def _to_handler(self, values):
        if self.strided:
            wide = self.handler.ones((*values.shape[:-1], values.shape[-1] + 5))
            array = wide[(slice(None),) * (values.ndim - 1) + (slice(2, 2 + values.shape[-1]),)]
        else:
            array = self.handler.zeros(values.shape)
        self.handler.set_from_numpy(array, values)
        return array

    def transpose_flagged(self):
        """Give the arrays with a flag that is set the other way round."""
        for argument in self.contract.arguments:
            if argument.transposed and self.host[argument.transposed]:
                self.host[argument.name] = self.host[argument.name].T
                self.given[argument.name] = self._to_handler(self.host[argument.name])

    def check(self, expected):
        """Run the operation and compare; nothing else may have changed."""
        getattr(self.handler, self.contract.name)(**self.given)
        written = [a.name for a in self.contract.arguments if a.written]
        expected = expected if isinstance(expected, tuple) else (expected,)
        wanted = {**self.host, **dict(zip(written, expected, strict=True))}
        single = self.handler.dtype == np.float32
        for argument in self.contract.arguments:
            if (
                argument.is_array
                and argument.kind != "host"
                and self.host[argument.name] is not None
            ):
                np.testing.assert_allclose(
                    self.handler.get_numpy_copy(self.given[argument.name]),
                    wanted[argument.name],
                    rtol=2e-4 if single else 1e-11,
                    atol=2e-5 if single else 1e-11,
                    err_msg=f"{self.contract.name}: {argument.name}",
                )


def shapes_of_conditions(name, seed):
    """Sizes that fulfil an operation's conditions."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 6, rng.integers(1, 4)))
    if name in ("sum_t", "sum_add_t"):
        axis = [None, *range(-len(shape), len(shape))][rng.integers(2 * len(shape) + 1)]
        keep = bool(rng.integers(2))
        return {
            "S": shape,
            "axis": axis,
            "R": np.sum(np.ones(shape), axis=axis, keepdims=keep).shape,
        }
    if name == "broadcast_t":
        axis = int(rng.integers(-len(shape), len(shape)))
        return {"R": shape, "axis": axis, "S": np.ones(shape).sum(axis=axis, keepdims=True).shape}
    if name == "split_add_tt":
        return {"M": 2, "N": 3, "K": 5}
    return {}


def make_call(name, handler, seed, strided):
    call = Call(name, handler, seed, strided, shapes_of_conditions(name, seed))
    call.transpose_flagged()
    return call


def test_every_operation_has_a_reference():
    assert {*REFERENCE, *ELSEWHERE, *CONVOLUTIONS, *POOLING} == set(CONTRACTS)


@pytest.mark.parametrize("name", REFERENCE)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), handler=st.sampled_from(HANDLERS + PLAIN), strided=st.booleans()
)
def test_operation(name, handler, seed, strided):
    call = make_call(name, handler, seed, strided and "R" not in CONTRACTS[name].text)
    call.check(REFERENCE[name](**call.host))


@pytest.mark.parametrize("name", [n for n, c in CONTRACTS.items() if "~>" in c.text])
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), handler=st.sampled_from(HANDLERS + PLAIN))
def test_operation_in_place(name, handler, seed):
    *read, out = [a for a in CONTRACTS[name].arguments if a.is_array]
    for argument in read:
        call = make_call(name, handler, seed, strided=False)
        if call.host[argument.name].shape == call.host[out.name].shape:
            call.host[out.name] = call.host[argument.name]
            call.given[out.name] = call.given[argument.name]
            expected = REFERENCE[name](**call.host)
            getattr(handler, name)(**call.given)
            np.testing.assert_allclose(
                handler.get_numpy_copy(call.given[out.name]), expected, rtol=2e-4, atol=2e-5
            )


@pytest.mark.parametrize("handler", HANDLERS + PLAIN, ids=lambda h: type(h).__name__)
@pytest.mark.parametrize(
    "name", ["add_st", "mult_st", "mult_add_st", "power_t", "fill", "clip_t", "fill_if"]
)
def test_scalars_in_memory(name, handler):
    call = make_call(name, handler, 3, strided=False)
    for argument in call.contract.arguments:
        if argument.kind == "scalar":
            call.host[argument.name] = np.float32(call.host[argument.name])
            memory = handler.zeros((1, 1))
            handler.fill(memory, call.host[argument.name])
            call.given[argument.name] = memory
    call.check(REFERENCE[name](**call.host))


# -- images: loops over everything ---------------------------------------------------------------


def windows(x, window, padding, stride, outputs):
    """Yield (n, p, q), and the corresponding part of the padded images with its NaN borders."""
    border = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = np.pad(x, border, constant_values=np.nan)
    for n, p, q in itertools.product(*map(range, outputs.shape[:3])):
        i, j = p * stride[0], q * stride[1]
        yield (n, p, q), (n, slice(i, i + window[0]), slice(j, j + window[1])), padded


def convolved(x, weights, padding, stride, dilation, outputs):
    """Yield an index into the outputs, that into the padded images, and these; any rank."""
    axes = weights.ndim - 2
    padding = padding if isinstance(padding, tuple) else (padding,) * axes
    padded = np.pad(x, ((0, 0), *((p, p) for p in padding), (0, 0)))
    for n, *place in itertools.product(*map(range, outputs.shape[:-1])):
        spans = zip(place, stride, dilation, weights.shape[1:-1], strict=True)
        part = (n, *(slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, d, k in spans))
        yield (n, *place), part, padded


def channels_of(f, weights, groups):
    group, size = f * groups // len(weights), weights.shape[-1]
    return slice(group * size, (group + 1) * size)


def conv_forward(
    inputs, weights, bias, outputs, padding, stride, dilation, groups, add_outputs=False
):
    out = outputs * add_outputs + (0 if bias is None else bias)
    for index, part, padded in convolved(inputs, weights, padding, stride, dilation, outputs):
        for f, kernel in enumerate(weights):
            out[(*index, f)] += np.sum(kernel * padded[part][..., channels_of(f, weights, groups)])
    return out


def conv_backward(
    inputs, weights, padding, stride, in_deltas, out_deltas, weight_deltas, bias_deltas,
    add_gradients, add_in_deltas, dilation, groups,
):  # fmt: skip
    x = in_deltas * 0 if inputs is None else inputs
    dw, dx = np.zeros_like(weights), None
    for index, part, padded in convolved(x, weights, padding, stride, dilation, out_deltas):
        dx = np.zeros_like(padded) if dx is None else dx
        for f, kernel in enumerate(weights):
            channels = channels_of(f, weights, groups)
            dx[part][..., channels] += out_deltas[(*index, f)] * kernel
            dw[f] += out_deltas[(*index, f)] * padded[part][..., channels]
    before = [(a - b) // 2 for a, b in zip(dx.shape, x.shape, strict=True)]
    dx = dx[tuple(slice(p, p + size) for p, size in zip(before, x.shape, strict=True))]
    db = out_deltas.reshape(-1, out_deltas.shape[-1]).sum(axis=0)
    return (
        None if in_deltas is None else dx + in_deltas * add_in_deltas,
        None if weight_deltas is None else dw + weight_deltas * add_gradients,
        None if bias_deltas is None else db + bias_deltas * add_gradients,
    )


def max_forward(inputs, window, outputs, padding, stride, argmax):
    out, where = np.zeros_like(outputs), -np.ones_like(argmax)
    _, _, width, channels = inputs.shape
    for index, part, padded in windows(inputs, window, padding, stride, outputs):
        for c in range(channels):
            patch = padded[part][:, :, c]
            if not np.isnan(patch).all():
                i, j = np.unravel_index(np.nanargmax(patch), patch.shape)
                out[(*index, c)] = patch[i, j]
                row, column = part[1].start + i - padding, part[2].start + j - padding
                where[(*index, c)] = (row * width + column) * channels + c
    return out, where


def max_backward(inputs, window, outputs, padding, stride, argmax, in_deltas, out_deltas):
    result = in_deltas.copy()
    flat = result.reshape(len(result), -1)
    for index in itertools.product(*map(range, argmax.shape)):
        if argmax[index] >= 0:
            flat[index[0], int(argmax[index])] += out_deltas[index]
    return result


def avg_forward(inputs, window, outputs, padding, stride):
    out = np.zeros_like(outputs)
    for index, part, padded in windows(inputs, window, padding, stride, outputs):
        count = np.sum(~np.isnan(padded[part][:, :, 0]))
        out[index] = np.nansum(padded[part], axis=(0, 1)) / max(count, 1)
    return out


def avg_backward(inputs, window, outputs, padding, stride, in_deltas, out_deltas):
    border = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    dx = np.pad(in_deltas, border)
    for index, part, padded in windows(inputs, window, padding, stride, out_deltas):
        count = np.sum(~np.isnan(padded[part][:, :, 0]))
        dx[part] += out_deltas[index] / max(count, 1)
    return dx[:, padding : padding + inputs.shape[1], padding : padding + inputs.shape[2]]


CONVOLUTIONS = {
    "conv2d_forward_batch": conv_forward,
    "conv2d_backward_batch": conv_backward,
    "conv3d_forward_batch": conv_forward,
    "conv3d_backward_batch": conv_backward,
}
POOLING = {
    "maxpool2d_forward_batch": max_forward,
    "maxpool2d_backward_batch": max_backward,
    "avgpool2d_forward_batch": avg_forward,
    "avgpool2d_backward_batch": avg_backward,
}


@st.composite
def pooling_sizes(draw):
    window = draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    padding = draw(st.integers(0, 3))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    size = [draw(st.integers(max(1, k - 2 * padding), 6)) for k in window]
    out = [(i + 2 * padding - k) // s + 1 for i, k, s in zip(size, window, stride, strict=True)]
    return {
        "N": draw(st.integers(1, 3)), "C": draw(st.integers(1, 3)), "H": size[0], "W": size[1],
        "OH": out[0], "OW": out[1], "window": window, "padding": padding, "stride": stride,
    }  # fmt: skip


@st.composite
def convolution_sizes(draw, names):
    """Sizes for a convolution over axes called e.g. 'HW'."""
    small = st.integers(1, 3)
    one_each = st.tuples(*[small] * len(names))
    kernel, stride, dilation, groups = draw(one_each), draw(one_each), draw(one_each), draw(small)
    margin = st.integers(0, 2)
    padding = draw(margin | st.tuples(margin, margin) if names == "HW" else margin)
    around = padding if isinstance(padding, tuple) else (padding,) * len(names)
    sizes = {"CG": draw(small), "F": groups * draw(st.integers(1, 2)), "N": draw(st.integers(1, 2))}
    for axis, k, s, d, p in zip(names, kernel, stride, dilation, around, strict=True):
        extent = d * (k - 1) + 1 - 2 * p
        size = draw(st.integers(max(1, extent), max(1, extent) + 2))
        sizes |= {axis: size, f"K{axis}": k, f"O{axis}": (size - extent) // s + 1}
    sizes |= {"C": sizes["CG"] * groups, "padding": padding, "groups": groups}
    return sizes | {"stride": stride, "dilation": dilation}


#: Arguments that may be absent together, by the names of operations that allow it.
ABSENT = {
    "conv2d_forward_batch": [(), ("bias",)],
    "conv2d_backward_batch": [
        (),
        ("in_deltas",),
        ("bias_deltas",),
        ("weight_deltas",),
        ("inputs", "weight_deltas", "bias_deltas"),
        ("in_deltas", "weight_deltas"),
    ],
    "conv3d_forward_batch": [()],
    "conv3d_backward_batch": [(), ("in_deltas",)],
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), handler=st.sampled_from(HANDLERS + PLAIN))
def test_convolutions(name, data, seed, handler):
    sizes = data.draw(convolution_sizes("HW" if "2d" in name else "DHW"))
    call = Call(name, handler, seed, sizes=sizes)
    for argument in data.draw(st.sampled_from(ABSENT[name])):
        call.host[argument] = None
        call.given[argument] = data.draw(st.sampled_from([None, handler.EMPTY]))
    call.check(CONVOLUTIONS[name](**call.host))


@pytest.mark.parametrize("name", POOLING)
@settings(max_examples=50, deadline=None)
@given(
    sizes=pooling_sizes(),
    seed=st.integers(0, 2**32 - 1),
    handler=st.sampled_from(HANDLERS + PLAIN),
    ties=st.booleans(),
)
def test_pooling(name, sizes, seed, handler, ties):
    call = Call(name, handler, seed, sizes=sizes)
    if ties:  # equal maxima, also of -inf's neighbours
        call.host["inputs"] = np.sign(call.host["inputs"])
        handler.set_from_numpy(call.given["inputs"], call.host["inputs"])
    if name == "maxpool2d_backward_batch":
        # Indices that a forward pass can give; with overlapping windows they repeat.
        _, call.host["argmax"] = max_forward(
            **{
                k: call.host[k]
                for k in ("inputs", "window", "outputs", "padding", "stride", "argmax")
            }
        )
        handler.set_from_numpy(call.given["argmax"], call.host["argmax"])
    call.check(POOLING[name](**call.host))


def test_large_windows_and_indices_that_float32_cannot_hold():
    handler = PLAIN[0]
    inputs = np.random.default_rng(1).permutation(18 * 17).reshape(1, 18, 17, 1).astype(float)
    sizes = {
        "N": 1,
        "H": 18,
        "W": 17,
        "C": 1,
        "OH": 2,
        "OW": 1,
        "window": (17, 17),
        "padding": 0,
        "stride": (1, 1),
    }
    call = Call("maxpool2d_forward_batch", handler, 1, sizes=sizes)
    call.host["inputs"] = inputs
    handler.set_from_numpy(call.given["inputs"], inputs)
    call.check(max_forward(**call.host))
    huge = np.broadcast_to(np.float32(0), (1, 4097, 4096, 1))
    with pytest.raises(ValueError, match=r"'inputs': expected at most 2\*\*24 elements per image"):
        handler.maxpool2d_forward_batch(huge, (1, 1), huge, 0, (1, 1), huge)
