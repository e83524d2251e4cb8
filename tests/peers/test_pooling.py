"""Pooling of windows, of whole images and of channels."""

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
pair = st.tuples(small, small)


@pytest.mark.parametrize("kind", ["max", "avg"])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), window=pair, stride=pair, seed=st.integers(0, 1000))
def test_pooling(
    kind: str, data: st.DataObject, window: tuple[int, int], stride: tuple[int, int], seed: int
) -> None:
    padding = data.draw(st.integers(0, min(window) // 2))
    size = [max(1, k - 2 * padding) + data.draw(st.integers(0, 4)) for k in window]
    x = np.random.RandomState(seed).normal(size=(*data.draw(pair), *size, data.draw(small)))

    def peer(default: Any) -> Any:
        if kind == "max":
            y = functional.max_pool2d(channels_first(default), window, stride, padding)
        else:
            images = channels_first(default)
            y = functional.avg_pool2d(images, window, stride, padding, count_include_pad=False)
        return channels_last(y, default)

    compare(bl.Pooling2D(window, kind, stride, padding), {"default": x}, peer, seed=seed)


@pytest.mark.parametrize("kind", ["max", "avg"])
@settings(max_examples=10, deadline=None)
@given(sizes=st.tuples(*[small] * 5), seed=st.integers(0, 1000))
def test_global_pooling(kind: str, sizes: tuple[int, ...], seed: int) -> None:
    x = np.random.RandomState(seed).normal(size=sizes)
    pool = functional.adaptive_max_pool2d if kind == "max" else functional.adaptive_avg_pool2d

    def peer(default: Any) -> Any:
        return channels_last(pool(channels_first(default), 1), default)[:, :, 0, 0]

    compare(bl.GlobalPooling2D(kind), {"default": x}, peer, seed=seed)


@pytest.mark.parametrize("kind", ["max", "avg"])
@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(small, min_size=3, max_size=5), size=small, seed=st.integers(0, 1000))
def test_channel_pooling(kind: str, sizes: list[int], size: int, seed: int) -> None:
    x = np.random.RandomState(seed).normal(size=(*sizes[:-1], sizes[-1] * size))
    pool = functional.max_pool1d if kind == "max" else functional.avg_pool1d

    def peer(default: Any) -> Any:
        return pool(default.flatten(0, -2)[None], size)[0].reshape(*default.shape[:-1], -1)

    compare(bl.ChannelPooling(size, kind), {"default": x}, peer, seed=seed)
