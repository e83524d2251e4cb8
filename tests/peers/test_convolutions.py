"""Convolutions, plain and transposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import channels_first, channels_last, compare

KINDS = {
    1: (bl.Convolution1D, functional.conv1d),
    2: (bl.Convolution2D, functional.conv2d),
    3: (bl.Convolution3D, functional.conv3d),
}
small = st.integers(1, 3)


@pytest.mark.parametrize("axes", KINDS)
@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_convolution(axes: int, data: st.DataObject, seed: int) -> None:
    create, operation = KINDS[axes]
    kernel, stride, dilation = (data.draw(st.tuples(*[small] * axes)) for _ in range(3))
    side = st.tuples(st.integers(0, 2), st.integers(0, 2))
    padding, groups, filters = (
        data.draw(st.tuples(*[side] * axes)),
        data.draw(small),
        data.draw(small),
    )
    extents = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, extent) + data.draw(st.integers(0, 3)) for extent in extents]
    channels = groups * data.draw(small)
    x = np.random.RandomState(seed).normal(
        size=(*data.draw(st.tuples(small, small)), *size, channels)
    )

    def peer(default: Any, W: Any, bias: Any) -> Any:
        last_axis_first = [cells for ends in padding[::-1] for cells in ends]
        x = functional.pad(channels_first(default), last_axis_first)
        y = operation(x, W.movedim(-1, 1), bias, stride, 0, dilation, groups)
        return torch.tanh(channels_last(y, default))

    def option(value: tuple[int, ...]) -> Any:
        return value if axes > 1 else value[0]

    layer = create(
        filters * groups,
        option(kernel),
        option(stride),
        option(padding),
        "tanh",
        dilation=option(dilation),
        groups=groups,
    )
    compare(layer, {"default": x}, peer, seed=seed)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_transposed_convolution(data: st.DataObject, seed: int) -> None:
    pair = st.tuples(small, small)
    kernel, stride, size = data.draw(pair), data.draw(pair), data.draw(pair)
    padding = data.draw(st.integers(0, (min(kernel) - 1) // 2))
    extra = data.draw(st.integers(0, min(stride) - 1))
    x = np.random.RandomState(seed).normal(size=(*data.draw(pair), *size, data.draw(small)))

    def peer(default: Any, W: Any, bias: Any) -> Any:
        y = functional.conv_transpose2d(
            channels_first(default), W.movedim(-1, 1), bias, stride, padding, extra
        )
        return torch.tanh(channels_last(y, default))

    layer = bl.ConvolutionTranspose2D(data.draw(small), kernel, stride, padding, extra, "tanh")
    compare(layer, {"default": x}, peer, seed=seed)
