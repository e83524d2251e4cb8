"""Fully connected layers, activations, and losses with targets."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn, numbers

ACTIVATIONS = {
    "sigmoid": torch.sigmoid,
    "rel": torch.relu,
    "tanh": torch.tanh,
    "linear": lambda x: x,
    "el": functional.elu,
    "softplus": functional.softplus,
    "leaky_rel": functional.leaky_relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "hard_sigmoid": functional.hardsigmoid,
    "exp": torch.exp,
    "selu": functional.selu,
    "mish": functional.mish,
    "hard_swish": functional.hardswish,
}
small = st.integers(1, 4)
shapes = st.lists(small, min_size=3, max_size=5).map(tuple)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@drawn(10, shape=shapes, size=small)
def test_fully_connected(activation, shape, size, seed):
    def peer(default, W, bias):
        return ACTIVATIONS[activation](functional.linear(default.flatten(2), W, bias))

    compare(bl.FullyConnected(size, activation), numbers(shape, seed), peer, seed=seed)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@drawn(5, shape=shapes)
def test_elementwise(activation, shape, seed):
    function = ACTIVATIONS[activation]
    layer, x = bl.Elementwise(activation), numbers(shape, seed)
    compare(layer, x, lambda default: function(default), seed=seed)


@drawn(15, shape=shapes, smoothing=st.sampled_from([0.0, 0.1, 1.0]), is_weighted=st.booleans())
def test_softmax_cross_entropy(shape, smoothing, is_weighted, seed):
    weights = np.random.RandomState(seed).uniform(0, 2, shape[-1]) if is_weighted else None
    weight = None if weights is None else torch.tensor(weights)
    targets = np.random.RandomState(seed).randint(0, shape[-1], size=(*shape[:-1], 1))

    def peer(default, targets):
        flat, indices = default.flatten(0, -2), targets.detach().long().flatten()
        loss = functional.cross_entropy(
            flat, indices, weight, reduction="none", label_smoothing=smoothing
        )
        return {"loss": loss.reshape(targets.shape)}

    inputs = {"default": numbers(shape, seed), "targets": targets.astype(float)}
    compare(bl.SoftmaxCE(None, weights, smoothing), inputs, peer, seed=seed)


def test_hopeless_predictions_cost_what_they_do_there():
    def softmax(default, targets):
        indices = targets.detach().long().flatten()
        loss = functional.cross_entropy(default[0], indices, reduction="none")
        return {"loss": loss.reshape(targets.shape)}

    def sigmoid(default, targets):
        loss = functional.binary_cross_entropy_with_logits(default, targets, reduction="none")
        return {"loss": loss}

    x = np.array([[[500.0, -300.0, 0.0], [-40.0, 0.0, 40.0]]])
    compare(bl.SoftmaxCE(), {"default": x, "targets": np.array([[[1.0], [0.0]]])}, softmax)
    compare(bl.SigmoidCE(), {"default": x, "targets": (x < 0).astype(float)}, sigmoid)


@pytest.mark.parametrize(
    ("create", "operation"),
    [
        (bl.SigmoidCE, functional.binary_cross_entropy_with_logits),
        (bl.SquaredError, lambda *args, **options: functional.mse_loss(*args, **options) / 2),
        (bl.HuberLoss, functional.huber_loss),
        (lambda: bl.HuberLoss(0.3), functools.partial(functional.huber_loss, delta=0.3)),
    ],
)
@drawn(15, shape=shapes)
def test_losses(create, operation, shape, seed):
    def peer(default, targets):
        return {"loss": operation(default, targets, reduction="none")}

    targets = np.random.RandomState(seed + 1).uniform(size=shape)
    compare(create(), {"default": numbers(shape, seed), "targets": targets}, peer, seed=seed)


@drawn(10, shape=shapes, shared=st.booleans())
def test_parametric_rectifier(shape, shared, seed):
    def peer(default, slope):
        return functional.prelu(default.flatten(0, -2), slope).reshape(default.shape)

    compare(bl.PReLU(shared), numbers(shape, seed), peer, seed=seed)


@drawn(10, shape=shapes)
def test_gated_linear_units(shape, seed):
    x = numbers((*shape[:-1], 2 * shape[-1]), seed)
    compare(bl.GLU(), x, lambda default: functional.glu(default), seed=seed)


@drawn(10, shape=shapes)
def test_binomial_cross_entropy(shape, seed):
    rnd = np.random.RandomState(seed)
    y, t = rnd.uniform(0.01, 0.99, size=shape), rnd.uniform(size=shape)

    def peer(default, targets):
        loss = functional.binary_cross_entropy(default, targets.detach(), reduction="none")
        return loss.flatten(2).sum(-1, keepdim=True)

    compare(bl.BinomialCrossEntropy(), {"default": y, "targets": t}, peer, seed=seed)
