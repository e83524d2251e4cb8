"""What layers compute, written out in NumPy; `test_properties` derives the deltas from it."""

import itertools
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from brainstorm.testing import LayerHarness, build_layer
from tests.handlers.test_against_reference import (
    REFERENCE,
    activated,
    avg_forward,
    conv_forward,
    max_forward,
)
from tests.layers.cases import CASES


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def normalized(x, epsilon, centers=True):
    axes = tuple(range(2, x.ndim))
    centered = x - x.mean(axes, keepdims=True) if centers else x
    return centered / np.sqrt((centered**2).mean(axes, keepdims=True) + epsilon)


def over_groups(c):
    parts = np.split(c.x, c.num_groups, axis=-1)
    return np.concatenate([normalized(part, c.epsilon) for part in parts], axis=-1)


def batch_norm(c):
    """Normalize all steps with the statistics of those that count, and move the running ones."""
    counted = c.x[c.mask[..., 0] != 0] if hasattr(c, "mask") else c.x
    axes = tuple(range(counted.ndim - 1))
    mean, var = counted.mean(axes), counted.var(axes)
    sigma = np.sqrt(var + c.epsilon)
    x_hat = (c.x - mean) / sigma
    return {
        "default": c.gamma * x_hat + c.beta,
        "sigma_b": sigma,
        "centered": c.x - mean,
        "x_hat": x_hat,
        "running_mean": c.decay * c.running_mean + (1 - c.decay) * mean,
        "running_var": c.decay * c.running_var + (1 - c.decay) * var,
    }


def over_neighbours(c):
    y = np.empty_like(c.x)
    for i in range(c.x.shape[-1]):
        near = c.x[..., max(0, i - c.size // 2) : i + (c.size - 1) // 2 + 1]
        y[..., i] = c.x[..., i] / (c.k + c.alpha / c.size * (near**2).sum(-1)) ** c.beta
    return y


def positions(c):
    t, _, i = np.indices(c.x.shape)
    angle = t / 10000 ** (2 * (i // 2) / c.x.shape[-1])
    return c.x + np.where(i % 2, np.cos(angle), np.sin(angle))


def is_target(c):
    return np.arange(c.x.shape[-1]) == c.targets


def softmax_ce(c):
    smoothing = getattr(c, "label_smoothing", 0)
    shares = (1 - smoothing) * is_target(c) + smoothing / c.x.shape[-1]
    terms = getattr(c, "class_weights", 1) * shares * np.log(softmax(c.x))
    return {"predictions": softmax(c.x), "loss": -terms.sum(-1, keepdims=True)}


def sigmoid_ce(c):
    p = sigmoid(c.x)
    loss = -(c.targets * np.log(p) + (1 - c.targets) * np.log(1 - p))
    return {"predictions": p, "loss": loss}


def binomial_ce(c):
    terms = c.targets * np.log(c.x) + (1 - c.targets) * np.log(1 - c.x)
    return -terms.sum(tuple(range(2, c.x.ndim)))[..., None]


def huber(c):
    error = np.abs(c.x - c.targets)
    loss = np.where(error < c.delta, 0.5 * error**2, c.delta * (error - 0.5 * c.delta))
    return {"predictions": c.x, "loss": loss}


def hinge(c):
    others = np.where(is_target(c), -np.inf, c.x).max(-1, keepdims=True)
    target = c.x[is_target(c)].reshape(others.shape)
    return {"predictions": c.x, "loss": np.maximum(0, c.margin + others - target)}


def connected(c, weights):
    size = c.x.shape[2:] if c.size is None else np.atleast_1d(c.size)
    y = activated(c.activation, c.x.reshape(*c.x.shape[:2], -1) @ weights + c.bias)
    return y.reshape(*c.x.shape[:2], *size)


def glu(c):
    values, gates = np.split(c.x, 2, axis=-1)
    return values * activated(c.activation, gates)


def masked(c):
    return c.x * c.mask.reshape(c.mask.shape + (1,) * (c.x.ndim - c.mask.ndim))


def moved(c, from_depth):
    """Move features to pixels of blocks, or pixels to features."""
    *_, features = c.x.shape
    rows, columns = c.x.shape[2:4] if from_depth else (n // c.block for n in c.x.shape[2:4])
    count = features // c.block**2 if from_depth else features
    y = np.empty(c.out_shape)
    for p, q, i, j, k in np.ndindex(rows, columns, c.block, c.block, count):
        feature = (
            (k * c.block + i) * c.block + j if c.order == "CRD" else (i * c.block + j) * count + k
        )
        deep, wide = np.s_[:, :, p, q, feature], np.s_[:, :, p * c.block + i, q * c.block + j, k]
        y[wide if from_depth else deep] = c.x[deep if from_depth else wide]
    return y


def nearest(c):
    (_, _, *image, _), cells = c.x.shape, c.out_shape[2:4]
    rows, columns = (np.arange(m) * n // m for n, m in zip(image, cells, strict=True))
    return c.x[:, :, rows][:, :, :, columns]


def cropped(c):
    wanted = np.broadcast_to(c.size, 2)
    centre = [(n - m) // 2 for n, m in zip(c.x.shape[2:4], wanted, strict=True)]
    row, column = np.broadcast_to(centre if c.offset is None else c.offset, 2)
    return c.x[:, :, row : row + wanted[0], column : column + wanted[1]]


def sides(padding, axes):
    """Return how much is put before and behind each axis."""
    each = (padding,) * axes if isinstance(padding, int) or axes == 1 else padding
    return tuple((p, p) if isinstance(p, int) else tuple(p) for p in each)


def each(option, axes):
    return tuple(np.broadcast_to(option, axes))


def convolution(c):
    x, axes = c.x.reshape(-1, *c.x.shape[2:]), c.x.ndim - 3
    options = sides(c.padding, axes), each(c.stride, axes), each(c.dilation, axes)
    zeros = np.zeros((len(x), *c.out_shape[2:]))
    y = conv_forward(x, c.W, c.bias, zeros, *options, c.groups, c.activation)
    return y.reshape(c.out_shape)


def transposed_convolution(c):
    (_, *kernel, filters), image = c.W.shape, c.x.shape[2:4]
    steps, padding = each(c.stride, 2), sides(c.padding, 2)
    sizes = [
        (n - 1) * s + k + c.output_padding for n, s, k in zip(image, steps, kernel, strict=True)
    ]
    full = np.zeros((*c.x.shape[:2], *sizes, filters))
    for p, q, i, j in itertools.product(*map(range, (*image, *kernel))):
        full[:, :, p * steps[0] + i, q * steps[1] + j] += c.x[:, :, p, q] @ c.W[:, i, j]
    rows, columns = (slice(a, n - b) for (a, b), n in zip(padding, sizes, strict=True))
    return activated(c.activation, full[:, :, rows, columns] + c.bias)


def pooling(c):
    x, axes = c.x.reshape(-1, *c.x.shape[2:]), c.x.ndim - 3
    window, stride = each(c.kernel_size, axes), each(c.stride, axes)
    steps = zip(sides(c.padding, axes), stride, strict=True)
    options = tuple((a, b + (s - 1) * c.ceil_mode) for (a, b), s in steps), stride
    zeros = np.zeros((len(x), *c.out_shape[2:]))
    if c.type == "avg":
        return avg_forward(x, window, zeros, *options).reshape(c.out_shape)
    return max_forward(x, window, zeros, *options, zeros)[0].reshape(c.out_shape)


def expression(c):
    """Compute the formula with NumPy; features are aligned behind T and B."""
    rank = max(a.ndim for a in c.inputs)
    arrays = {
        name: a.reshape(*a.shape[:2], *(1,) * (rank - a.ndim), *a.shape[2:])
        for name, a in vars(c).items()
        if any(a is given for given in c.inputs)
    }
    return eval(c.formula, NUMPY, {**vars(c), **arrays})


NUMPY = {
    **{name: getattr(np, name) for name in ("tanh", "sqrt", "where")},
    **{name: partial(getattr(np, name), keepdims=True) for name in ("mean", "var", "max", "min")},
    "sig": sigmoid,
    "exp": np.exp,
    "lgamma": np.vectorize(math.lgamma),
    "softmax": lambda x, axis: softmax(x),
    "logsumexp": lambda x, axis: np.log(np.exp(x).sum(axis, keepdims=True)),
    "gather": lambda x, i, axis: np.take_along_axis(x, i.astype(int), axis),
    "take": lambda x, indices, axis: x.take(np.asarray(indices).astype(int), axis),
}


def penalty(function):
    def loss(c):
        leading = c.out_shape[:-1]
        return {"loss": function(c.x).reshape(*leading, -1).sum(-1, keepdims=True)}

    return loss


def rotated(vectors):
    """Rotate pairs of features by angles that grow with the time step."""
    steps, size = np.arange(len(vectors)), vectors.shape[-1]
    turns = np.exp(1j * np.outer(steps, 10000 ** (-np.arange(0, size, 2) / size)))
    points = (vectors[..., ::2] + 1j * vectors[..., 1::2]) * turns[:, None, None]
    return np.stack([points.real, points.imag], axis=-1).reshape(vectors.shape)


def attention(c):
    def projected(name, x):
        y = x.reshape(*x.shape[:2], -1) @ getattr(c, f"W{name}").T + getattr(c, f"b{name}")
        return y.reshape(*x.shape[:2], c.num_heads, -1)

    memory = getattr(c, "memory", c.x)
    q, k, v = projected("q", c.x), projected("k", memory), projected("v", memory)
    if c.rotary:
        q, k = rotated(q), rotated(k)
    powers = np.exp(np.einsum("tbhd,sbhd->tbhs", q, k) / np.sqrt(q.shape[-1]))
    if c.causal:
        powers *= np.tri(len(q))[:, None, None]
    if hasattr(c, "mask"):
        powers *= np.moveaxis(c.mask != 0, 0, 2)
    weights = powers / np.maximum(powers.sum(-1, keepdims=True), 1e-300)
    heads = np.einsum("tbhs,sbhd->tbhd", weights, v)
    return {"default": heads.reshape(*c.x.shape[:2], -1) @ c.Wo.T + c.bo, "P": weights}


REDUCE = {"max": np.max, "avg": np.mean}

#: The type of a layer to its output `default`, or all outputs and perhaps internals. The argument
#: has inputs (that called default as x), parameters and options by their names, and the shape of
#: the output.
FORMULAS = {
    "NoOp": lambda c: c.x,
    "DeltasScaling": lambda c: c.x,
    "Elementwise": lambda c: activated(c.activation, c.x),
    "FullyConnected": lambda c: connected(c, c.W.T),
    "TiedFullyConnected": lambda c: connected(c, c.W),
    "SoftmaxCE": softmax_ce,
    "SigmoidCE": sigmoid_ce,
    "SquaredError": lambda c: {"predictions": c.x, "loss": 0.5 * (c.x - c.targets) ** 2},
    "HuberLoss": huber,
    "HingeLoss": hinge,
    "BinomialCrossEntropy": binomial_ce,
    "SquaredDifference": lambda c: (c.inputs_1 - c.inputs_2) ** 2,
    "L1Decay": penalty(np.abs),
    "L2Decay": penalty(lambda x: x**2 / 2),
    "Mask": masked,
    "Merge": lambda c: np.concatenate([c.inputs_1, c.inputs_2], axis=-1),
    "Add": lambda c: sum(c.inputs),
    "Multiply": lambda c: np.prod(c.inputs, axis=0),
    "Highway": lambda c: c.T * c.H + (1 - c.T) * c.x,
    "Power": lambda c: (c.scale * c.x + c.shift) ** c.power,
    "PReLU": lambda c: np.where(c.x > 0, c.x, c.slope * c.x),
    "GLU": glu,
    "Reverse": lambda c: REFERENCE["reverse_time"](c.x, getattr(c, "mask", None), 0 * c.x, False),
    "Argmax": lambda c: c.x.argmax(-1)[..., None],
    "Crop": cropped,
    "Slice": lambda c: c.x.take(range(c.start, c.stop), c.axis if c.axis < 0 else c.axis + 2),
    "Split": lambda c: {
        f"outputs_{i}": part
        for i, part in enumerate(np.split(c.x, np.cumsum(c.sizes)[:-1], axis=-1), 1)
    },
    "Reshape": lambda c: c.x.reshape(*c.x.shape[:2], *np.atleast_1d(c.shape)),
    "Padding": lambda c: np.pad(
        c.x, ((0, 0), (0, 0), *sides(c.padding, c.x.ndim - 3), (0, 0)), constant_values=c.value
    ),
    "DepthToSpace": lambda c: moved(c, from_depth=True),
    "SpaceToDepth": lambda c: moved(c, from_depth=False),
    "Upsampling2D": nearest,
    "GlobalPooling2D": lambda c: REDUCE[c.type](c.x, axis=(2, 3)),
    "ChannelPooling": lambda c: REDUCE[c.type](
        c.x.reshape(*c.x.shape[:-1], -1, c.group_size), axis=-1
    ),
    "LayerNorm": lambda c: c.gamma * normalized(c.x, c.epsilon) + c.beta,
    "RMSNorm": lambda c: c.gamma * normalized(c.x, c.epsilon, centers=False),
    "GroupNorm": lambda c: c.gamma * over_groups(c) + c.beta,
    "BatchNorm": batch_norm,
    "LocalResponseNormalization": over_neighbours,
    "PositionalEncoding": positions,
    "LearnedPositionalEncoding": lambda c: c.x + c.W[: len(c.x), None],
    "Embedding": lambda c: c.W[c.x.astype(int)].reshape(c.out_shape),
    **dict.fromkeys(("Convolution1D", "Convolution2D", "Convolution3D"), convolution),
    "ConvolutionTranspose2D": transposed_convolution,
    "Expression": expression,
    **dict.fromkeys(("Pooling1D", "Pooling2D", "Pooling3D"), pooling),
    **dict.fromkeys(("MultiHeadAttention", "MultiHeadSelfAttention"), attention),
}


#: Types that other tests compute.
ELSEWHERE = {
    *("Accuracy", "BinaryAccuracy", "Clockwork", "ClockworkLstm", "CTC", "Dropout"),
    *("Gru", "Loss", "Lstm", "Recurrent", "RepeatOverTime", "TimePooling"),
}


def test_every_layer_is_written_out():
    kinds = {case.create().layer.layer_type for case in CASES}
    assert kinds == FORMULAS.keys() | ELSEWHERE


WRITTEN_OUT = [
    case
    for case in CASES
    if case.create().layer.layer_type in FORMULAS
    and "bilinear" not in case.name
    and not case.name.endswith(", B")
]


@pytest.mark.parametrize("case", WRITTEN_OUT, ids=lambda case: case.name)
def test_a_layer_computes_its_formula(case):
    harness = LayerHarness(build_layer(case.create(), case.in_shapes), inputs=case.inputs)
    harness.resize(4, 3)
    values = harness.sample(np.random.RandomState(0))
    harness.spoil(harness.paths("outputs", "internals"), 0.5)
    harness.forward(values)
    layer, arrays = harness.layer, {path.partition(".")[2]: a for path, a in values.items()}
    found = {output: harness.get(f"outputs.{output}") for output in layer.out_shapes}
    given = {"inputs": [arrays[port] for port in case.in_shapes], "x": arrays.get("default")}
    shape = next(iter(found.values())).shape
    expected = FORMULAS[layer.type_name](
        SimpleNamespace(**{**layer.kwargs, **given, **arrays}, out_shape=shape)
    )
    expected = expected if isinstance(expected, dict) else {"default": expected}
    found |= {name: harness.get(f"internals.{name}") for name in expected.keys() - found.keys()}
    assert {output: a.shape for output, a in expected.items()} == {
        output: a.shape for output, a in found.items()
    }
    for output, array in expected.items():
        np.testing.assert_allclose(found[output], array, atol=1e-12, err_msg=output)
