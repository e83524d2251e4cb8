"""Normalization over batches, features, groups and neighbouring channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import channels_first, channels_last, compare

small = st.integers(1, 3)
#: T, B, and up to three feature dimensions.
shapes = st.tuples(small, small, st.lists(st.integers(1, 4), min_size=1, max_size=3)).map(
    lambda parts: (*parts[:2], *parts[2])
)
seeds = st.integers(0, 1000)
epsilons = st.sampled_from([1e-5, 0.1])


def numbers(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.RandomState(seed).normal(0.5, 2.0, size=shape)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=seeds, epsilon=epsilons, decay=st.sampled_from([0.0, 0.9]))
def test_batch_norm_in_training(
    shape: tuple[int, ...], seed: int, epsilon: float, decay: float
) -> None:
    shape = (shape[0] + 1, *shape[1:])  # PyTorch refuses the variance of a single value
    count = int(np.prod(shape[:-1]))
    running: list[Any] = []

    def peer(default: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        running[:] = running_mean.detach().clone(), running_var.detach().clone()
        options = {"training": True, "momentum": 1 - decay, "eps": epsilon}
        y = functional.batch_norm(channels_first(default), *running, gamma, beta, **options)
        return channels_last(y, default)

    x = numbers(shape, seed)
    harness = compare(bl.BatchNorm(decay=decay, epsilon=epsilon), {"default": x}, peer, seed=seed)
    mean, var = (tensor.numpy() for tensor in running)
    np.testing.assert_allclose(harness.get("internals.running_mean"), mean, 1e-5, 1e-9)
    # PyTorch lets the running variance follow the unbiased one.
    axes = tuple(range(len(shape) - 1))
    var += (1 - decay) * (x.var(axes) - x.var(axes, ddof=1))
    assert count > 1
    np.testing.assert_allclose(harness.get("internals.running_var"), var, 1e-5, 1e-9)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=seeds, epsilon=epsilons)
def test_batch_norm_with_running_statistics(
    shape: tuple[int, ...], seed: int, epsilon: float
) -> None:
    def peer(default: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any) -> Any:
        images = channels_first(default)
        y = functional.batch_norm(images, running_mean, running_var, gamma, beta, eps=epsilon)
        return channels_last(y, default)

    layer, x = bl.BatchNorm(epsilon=epsilon), numbers(shape, seed)
    compare(layer, {"default": x}, peer, training_pass=False, backward=False, seed=seed)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=seeds, epsilon=epsilons)
def test_layer_norm(shape: tuple[int, ...], seed: int, epsilon: float) -> None:
    def peer(default: Any, gamma: Any, beta: Any) -> Any:
        return functional.layer_norm(default, shape[2:], gamma, beta, epsilon)

    compare(bl.LayerNorm(epsilon), {"default": numbers(shape, seed)}, peer, seed=seed)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, seed=seeds, epsilon=epsilons)
def test_rms_norm(shape: tuple[int, ...], seed: int, epsilon: float) -> None:
    def peer(default: Any, gamma: Any) -> Any:
        return functional.rms_norm(default, shape[2:], gamma, epsilon)

    compare(bl.RMSNorm(epsilon), {"default": numbers(shape, seed)}, peer, seed=seed)


@settings(max_examples=25, deadline=None)
@given(shape=shapes, groups=small, seed=seeds, epsilon=epsilons)
def test_group_norm(shape: tuple[int, ...], groups: int, seed: int, epsilon: float) -> None:
    # PyTorch refuses to normalize a single value.
    shape = (shape[0] + 1, *shape[1:-1], shape[-1] * groups)

    def peer(default: Any, gamma: Any, beta: Any) -> Any:
        y = functional.group_norm(channels_first(default), groups, gamma, beta, epsilon)
        return channels_last(y, default)

    compare(bl.GroupNorm(groups, epsilon), {"default": numbers(shape, seed)}, peer, seed=seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@settings(max_examples=10, deadline=None)
@given(shape=shapes, channels=st.integers(1, 7), seed=seeds)
def test_local_response_normalization(
    size: int, shape: tuple[int, ...], channels: int, seed: int
) -> None:
    def peer(default: Any) -> Any:
        y = functional.local_response_norm(default.flatten(0, -2)[:, :, None], size, 0.5, 0.6, 2.0)
        return y[:, :, 0].reshape(default.shape)

    layer = bl.LocalResponseNormalization(size, 0.5, 0.6, 2.0)
    compare(layer, {"default": numbers((*shape[:-1], channels), seed)}, peer, seed=seed)
