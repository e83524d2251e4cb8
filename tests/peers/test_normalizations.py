"""Normalization over batches, features, groups and neighbouring channels."""

import numpy as np
import pytest
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn, numbers, on_images

small = st.integers(1, 3)
#: T, B, and up to three feature dimensions.
shapes = st.tuples(small, small, st.lists(st.integers(1, 4), min_size=1, max_size=3)).map(
    lambda parts: (*parts[:2], *parts[2])
)
epsilons = st.sampled_from([1e-5, 0.1])


def data(shape, seed):
    return 0.5 + 2 * numbers(shape, seed)


@drawn(shape=shapes, epsilon=epsilons, decay=st.sampled_from([0.0, 0.9]))
def test_batch_norm_in_training(shape, epsilon, decay, seed):
    shape = (shape[0] + 1, *shape[1:])  # PyTorch refuses the variance of a single value
    running = []

    def peer(x, gamma, beta, running_mean, running_var):
        running[:] = running_mean.detach().clone(), running_var.detach().clone()
        options = {"training": True, "momentum": 1 - decay, "eps": epsilon}
        return functional.batch_norm(x, *running, gamma, beta, **options)

    x, layer = data(shape, seed), bl.BatchNorm(decay=decay, epsilon=epsilon)
    harness = compare(layer, x, on_images(peer), seed=seed)
    mean, var = (tensor.numpy() for tensor in running)
    np.testing.assert_allclose(harness.get("internals.running_mean"), mean, 1e-5, 1e-9)
    # PyTorch lets the running variance follow the unbiased one.
    axes = tuple(range(len(shape) - 1))
    var += (1 - decay) * (x.var(axes) - x.var(axes, ddof=1))
    np.testing.assert_allclose(harness.get("internals.running_var"), var, 1e-5, 1e-9)


@drawn(shape=shapes, epsilon=epsilons)
def test_batch_norm_with_running_statistics(shape, epsilon, seed):
    def peer(x, gamma, beta, running_mean, running_var):
        return functional.batch_norm(x, running_mean, running_var, gamma, beta, eps=epsilon)

    layer, x = bl.BatchNorm(epsilon=epsilon), data(shape, seed)
    compare(layer, x, on_images(peer), training_pass=False, backward=False, seed=seed)


@drawn(shape=shapes, epsilon=epsilons)
def test_layer_norm(shape, epsilon, seed):
    def peer(default, gamma, beta):
        return functional.layer_norm(default, shape[2:], gamma, beta, epsilon)

    compare(bl.LayerNorm(epsilon), data(shape, seed), peer, seed=seed)


@drawn(shape=shapes, epsilon=epsilons)
def test_rms_norm(shape, epsilon, seed):
    def peer(default, gamma):
        return functional.rms_norm(default, shape[2:], gamma, epsilon)

    compare(bl.RMSNorm(epsilon), data(shape, seed), peer, seed=seed)


@drawn(shape=shapes, groups=small, epsilon=epsilons)
def test_group_norm(shape, groups, epsilon, seed):
    # PyTorch refuses to normalize a single value.
    shape = (shape[0] + 1, *shape[1:-1], shape[-1] * groups)

    def peer(x, gamma, beta):
        return functional.group_norm(x, groups, gamma, beta, epsilon)

    compare(bl.GroupNorm(groups, epsilon), data(shape, seed), on_images(peer), seed=seed)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@drawn(10, shape=shapes, channels=st.integers(1, 7))
def test_local_response_normalization(size, shape, channels, seed):
    def peer(default):
        y = functional.local_response_norm(default.flatten(0, -2)[:, :, None], size, 0.5, 0.6, 2.0)
        return y[:, :, 0].reshape(default.shape)

    layer = bl.LocalResponseNormalization(size, 0.5, 0.6, 2.0)
    compare(layer, data((*shape[:-1], channels), seed), peer, seed=seed)
