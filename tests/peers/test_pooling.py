"""Pooling of windows, of whole images and of channels."""

import pytest
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn, numbers, on_images

small = st.integers(1, 3)
pair = st.tuples(small, small)


KINDS = {
    1: (bl.Pooling1D, functional.max_pool1d, functional.avg_pool1d),
    2: (bl.Pooling2D, functional.max_pool2d, functional.avg_pool2d),
    3: (bl.Pooling3D, functional.max_pool3d, functional.avg_pool3d),
}


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("axes", KINDS)
@drawn(data=st.data(), up=st.booleans())
def test_pooling(axes, kind, data, up, seed):
    create, maximum, average = KINDS[axes]
    window, stride = (data.draw(st.tuples(*[small] * axes)) for _ in range(2))
    padding = data.draw(st.integers(0, min(window) // 2))
    least = [k if axes == 3 else max(1, k - 2 * padding) for k in window]  # PyTorch refuses less
    size = [n + data.draw(st.integers(0, 4)) for n in least]
    x = numbers((*data.draw(pair), *size, data.draw(small)), seed)

    def peer(x):
        if kind == "max":
            return maximum(x, window, stride, padding, ceil_mode=up)
        return average(x, window, stride, padding, ceil_mode=up, count_include_pad=False)

    options = (window, stride) if axes > 1 else (window[0], stride[0])
    layer = create(options[0], kind, options[1], padding, ceil_mode=up)
    compare(layer, x, on_images(peer), seed=seed)


@pytest.mark.parametrize("kind", ["max", "avg"])
@drawn(10, sizes=st.tuples(*[small] * 5))
def test_global_pooling(kind, sizes, seed):
    pool = functional.adaptive_max_pool2d if kind == "max" else functional.adaptive_avg_pool2d
    peer = on_images(lambda x: pool(x, 1))
    layer, x = bl.GlobalPooling2D(kind), numbers(sizes, seed)
    compare(layer, x, lambda default: peer(default)[:, :, 0, 0], seed=seed)


@pytest.mark.parametrize("kind", ["max", "avg"])
@drawn(10, sizes=st.lists(small, min_size=3, max_size=5), size=small)
def test_channel_pooling(kind, sizes, size, seed):
    x = numbers((*sizes[:-1], sizes[-1] * size), seed)
    pool = functional.max_pool1d if kind == "max" else functional.avg_pool1d

    def peer(default):
        return pool(default.flatten(0, -2)[None], size)[0].reshape(*default.shape[:-1], -1)

    compare(bl.ChannelPooling(size, kind), x, peer, seed=seed)
