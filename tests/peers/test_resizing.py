"""Images of another size: interpolation, padding, channels as pixels."""

import pytest
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import compare, drawn, numbers, on_images

small = st.integers(1, 4)
pair = st.tuples(small, small)


@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
@pytest.mark.parametrize("option", ["scale", "size"])
@drawn(data=st.data(), shape=st.tuples(*[small] * 5))
def test_upsampling(kind, option, data, shape, seed):
    wanted = data.draw(small | pair if option == "scale" else st.tuples(*[st.integers(1, 9)] * 2))
    words = {"scale_factor" if option == "scale" else "size": wanted, "mode": kind}
    if kind == "bilinear":
        words["align_corners"] = False
    peer = on_images(lambda x: functional.interpolate(x, **words))
    compare(bl.Upsampling2D(type=kind, **{option: wanted}), numbers(shape, seed), peer, seed=seed)


@drawn(data=st.data(), axes=st.integers(1, 3), value=st.floats(-2, 2))
def test_padding(data, axes, value, seed):
    side = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = data.draw(st.tuples(*[side] * axes))
    shape = data.draw(st.tuples(*[small] * (axes + 3)))
    around = [cells for ends in padding[::-1] for cells in ends]
    layer = bl.Padding(padding if axes > 1 else padding[0], value)
    peer = on_images(lambda x: functional.pad(x, around, value=value))
    compare(layer, numbers(shape, seed), peer, seed=seed)


@drawn(shape=st.tuples(*[small] * 5), block=st.integers(1, 3))
def test_channels_as_pixels_and_back(shape, block, seed):
    t, b, rows, columns, last = shape
    x = numbers((t, b, rows, columns, last * block**2), seed)
    pixels = on_images(lambda x: functional.pixel_shuffle(x, block))
    compare(bl.DepthToSpace(block), x, pixels, seed=seed)
    x = numbers((t, b, rows * block, columns * block, last), seed)
    channels = on_images(lambda x: functional.pixel_unshuffle(x, block))
    compare(bl.SpaceToDepth(block), x, channels, seed=seed)
