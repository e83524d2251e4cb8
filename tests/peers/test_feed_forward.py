"""Fully connected layers, activations, and losses with targets."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare

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
seeds = st.integers(0, 1000)


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(size=shape)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=10, deadline=None)
@given(shape=shapes, size=small, seed=seeds)
def test_fully_connected(activation: str, shape: tuple[int, ...], size: int, seed: int) -> None:
    def peer(default: Any, W: Any, bias: Any) -> Any:
        return ACTIVATIONS[activation](functional.linear(default.flatten(2), W, bias))

    layer = bl.FullyConnected(size, activation)
    compare(layer, {"default": numbers(shape, seed)}, peer, seed=seed)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@settings(max_examples=5, deadline=None)
@given(shape=shapes, seed=seeds)
def test_elementwise(activation: str, shape: tuple[int, ...], seed: int) -> None:
    def peer(default: Any) -> Any:
        return ACTIVATIONS[activation](default)

    compare(bl.Elementwise(activation), {"default": numbers(shape, seed)}, peer, seed=seed)


@settings(max_examples=15, deadline=None)
@given(
    shape=shapes,
    seed=seeds,
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    is_weighted=st.booleans(),
)
def test_softmax_cross_entropy(
    shape: tuple[int, ...], seed: int, smoothing: float, is_weighted: bool
) -> None:
    weights = np.random.RandomState(seed).uniform(0, 2, shape[-1]) if is_weighted else None
    options = {
        "weight": None if weights is None else torch.tensor(weights),
        "label_smoothing": smoothing,
    }
    targets = np.random.RandomState(seed).randint(0, shape[-1], size=(*shape[:-1], 1))

    def peer(default: Any, targets: Any) -> Any:
        flat, indices = default.flatten(0, -2), targets.detach().long().flatten()
        loss = functional.cross_entropy(flat, indices, reduction="none", **options)
        return {"loss": loss.reshape(targets.shape)}

    inputs = {"default": numbers(shape, seed), "targets": targets.astype(float)}
    compare(bl.SoftmaxCE(None, weights, smoothing), inputs, peer, seed=seed)


def test_hopeless_predictions_cost_what_they_do_there() -> None:
    def softmax(default: Any, targets: Any) -> Any:
        loss = functional.cross_entropy(
            default[0], targets.detach().long().flatten(), reduction="none"
        )
        return {"loss": loss.reshape(targets.shape)}

    def sigmoid(default: Any, targets: Any) -> Any:
        loss = functional.binary_cross_entropy_with_logits(default, targets, reduction="none")
        return {"loss": loss}

    x = np.array([[[500.0, -300.0, 0.0], [-40.0, 0.0, 40.0]]])
    compare(bl.SoftmaxCE(), {"default": x, "targets": np.array([[[1.0], [0.0]]])}, softmax)
    compare(bl.SigmoidCE(), {"default": x, "targets": (x < 0).astype(float)}, sigmoid)


@pytest.mark.parametrize(
    ("create", "operation"),
    [
        (bl.SigmoidCE, functional.binary_cross_entropy_with_logits),
        (
            bl.SquaredError,
            lambda x, t, reduction: functional.mse_loss(x, t, reduction=reduction) / 2,
        ),
        (bl.HuberLoss, functional.huber_loss),
        (lambda: bl.HuberLoss(0.3), functools.partial(functional.huber_loss, delta=0.3)),
    ],
)
@settings(max_examples=15, deadline=None)
@given(shape=shapes, seed=seeds)
def test_losses(create: Any, operation: Any, shape: tuple[int, ...], seed: int) -> None:
    def peer(default: Any, targets: Any) -> Any:
        return {"loss": operation(default, targets, reduction="none")}

    targets = np.random.RandomState(seed + 1).uniform(size=shape)
    compare(create(), {"default": numbers(shape, seed), "targets": targets}, peer, seed=seed)


@settings(max_examples=10, deadline=None)
@given(shape=shapes, seed=seeds, shared=st.booleans())
def test_parametric_rectifier(shape: tuple[int, ...], seed: int, shared: bool) -> None:
    def peer(default: Any, slope: Any) -> Any:
        return functional.prelu(default.flatten(0, -2), slope).reshape(default.shape)

    compare(bl.PReLU(shared), {"default": numbers(shape, seed)}, peer, seed=seed)


@settings(max_examples=10, deadline=None)
@given(shape=shapes, seed=seeds)
def test_gated_linear_units(shape: tuple[int, ...], seed: int) -> None:
    data = {"default": numbers((*shape[:-1], 2 * shape[-1]), seed)}
    compare(bl.GLU(), data, lambda default: functional.glu(default), seed=seed)


@settings(max_examples=10, deadline=None)
@given(shape=shapes, seed=seeds)
def test_binomial_cross_entropy(shape: tuple[int, ...], seed: int) -> None:
    rnd = np.random.RandomState(seed)
    y, t = rnd.uniform(0.01, 0.99, size=shape), rnd.uniform(size=shape)

    def peer(default: Any, targets: Any) -> Any:
        loss = functional.binary_cross_entropy(default, targets.detach(), reduction="none")
        return loss.flatten(2).sum(-1, keepdim=True)

    compare(bl.BinomialCrossEntropy(), {"default": y, "targets": t}, peer, seed=seed)
