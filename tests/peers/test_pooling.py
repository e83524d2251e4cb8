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


KINDS = {
    1: (bl.Pooling1D, functional.max_pool1d, functional.avg_pool1d),
    2: (bl.Pooling2D, functional.max_pool2d, functional.avg_pool2d),
    3: (bl.Pooling3D, functional.max_pool3d, functional.avg_pool3d),
}


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("axes", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), up=st.booleans(), seed=st.integers(0, 1000))
def test_pooling(axes: int, kind: str, data: st.DataObject, up: bool, seed: int) -> None:
    create, maximum, average = KINDS[axes]
    window, stride = (data.draw(st.tuples(*[small] * axes)) for _ in range(2))
    padding = data.draw(st.integers(0, min(window) // 2))
    least = [k if axes == 3 else max(1, k - 2 * padding) for k in window]  # PyTorch refuses less
    size = [n + data.draw(st.integers(0, 4)) for n in least]
    x = np.random.RandomState(seed).normal(size=(*data.draw(pair), *size, data.draw(small)))

    def peer(default: Any) -> Any:
        images = channels_first(default)
        if kind == "max":
            y = maximum(images, window, stride, padding, ceil_mode=up)
        else:
            y = average(images, window, stride, padding, ceil_mode=up, count_include_pad=False)
        return channels_last(y, default)

    options = (window, stride) if axes > 1 else (window[0], stride[0])
    layer = create(options[0], kind, options[1], padding, ceil_mode=up)
    compare(layer, {"default": x}, peer, seed=seed)


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
