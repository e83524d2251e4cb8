"""Convolutions, plain and transposed."""

import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn, numbers, on_images

KINDS = {
    1: (bl.Convolution1D, functional.conv1d),
    2: (bl.Convolution2D, functional.conv2d),
    3: (bl.Convolution3D, functional.conv3d),
}
small = st.integers(1, 3)


@pytest.mark.parametrize("axes", KINDS)
@drawn(data=st.data())
def test_convolution(axes, data, seed):
    create, operation = KINDS[axes]
    kernel, stride, dilation = (data.draw(st.tuples(*[small] * axes)) for _ in range(3))
    side = st.tuples(st.integers(0, 2), st.integers(0, 2))
    padding, groups, filters = map(data.draw, (st.tuples(*[side] * axes), small, small))
    extents = [d * (k - 1) + 1 - sum(p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [max(1, extent) + data.draw(st.integers(0, 3)) for extent in extents]
    channels = groups * data.draw(small)

    def peer(x, W, bias):
        x = functional.pad(x, [cells for ends in padding[::-1] for cells in ends])
        return torch.tanh(operation(x, W.movedim(-1, 1), bias, stride, 0, dilation, groups))

    def option(value):
        return value if axes > 1 else value[0]

    options = {"dilation": option(dilation), "groups": groups}
    layer = create(filters * groups, *map(option, (kernel, stride, padding)), "tanh", **options)
    x = numbers((*data.draw(st.tuples(small, small)), *size, channels), seed)
    compare(layer, x, on_images(peer), seed=seed)


@drawn(data=st.data())
def test_transposed_convolution(data, seed):
    pair = st.tuples(small, small)
    kernel, stride, size = data.draw(pair), data.draw(pair), data.draw(pair)
    padding = data.draw(st.integers(0, (min(kernel) - 1) // 2))
    extra = data.draw(st.integers(0, min(stride) - 1))

    def peer(x, W, bias):
        W = W.movedim(-1, 1)
        return torch.tanh(functional.conv_transpose2d(x, W, bias, stride, padding, extra))

    layer = bl.ConvolutionTranspose2D(data.draw(small), kernel, stride, padding, extra, "tanh")
    x = numbers((*data.draw(pair), *size, data.draw(small)), seed)
    compare(layer, x, on_images(peer), seed=seed)
