"""Images of another size: interpolation, padding, channels as pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from brainstorm import layers as bl
from tests.peers.comparing import channels_first, channels_last, compare

small = st.integers(1, 4)
pair = st.tuples(small, small)
seeds = st.integers(0, 1000)


def images(shape: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    return {"default": np.random.RandomState(seed).normal(size=shape)}


@pytest.mark.parametrize("kind", ["nearest", "bilinear"])
@pytest.mark.parametrize("option", ["scale", "size"])
@settings(max_examples=25, deadline=None)
@given(data=st.data(), shape=st.tuples(*[small] * 5), seed=seeds)
def test_upsampling(
    kind: str, option: str, data: st.DataObject, shape: tuple[int, ...], seed: int
) -> None:
    wanted = data.draw(
        st.one_of(small, pair) if option == "scale" else st.tuples(*[st.integers(1, 9)] * 2)
    )
    words: dict[str, Any] = {"scale_factor" if option == "scale" else "size": wanted, "mode": kind}
    if kind == "bilinear":
        words["align_corners"] = False

    def peer(default: Any) -> Any:
        return channels_last(functional.interpolate(channels_first(default), **words), default)

    compare(bl.Upsampling2D(type=kind, **{option: wanted}), images(shape, seed), peer, seed=seed)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), axes=st.integers(1, 3), value=st.floats(-2, 2), seed=seeds)
def test_padding(data: st.DataObject, axes: int, value: float, seed: int) -> None:
    side = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = data.draw(st.tuples(*[side] * axes))
    shape = data.draw(st.tuples(*[small] * (axes + 3)))

    def peer(default: Any) -> Any:
        around = [cells for ends in padding[::-1] for cells in ends]
        return channels_last(functional.pad(channels_first(default), around, value=value), default)

    layer = bl.Padding(padding if axes > 1 else padding[0], value)
    compare(layer, images(shape, seed), peer, seed=seed)


@settings(max_examples=20, deadline=None)
@given(shape=st.tuples(*[small] * 5), block=st.integers(1, 3), seed=seeds)
def test_channels_as_pixels_and_back(shape: tuple[int, ...], block: int, seed: int) -> None:
    def pixels(default: Any) -> Any:
        return channels_last(functional.pixel_shuffle(channels_first(default), block), default)

    def channels(default: Any) -> Any:
        return channels_last(functional.pixel_unshuffle(channels_first(default), block), default)

    *rest, last = shape
    compare(bl.DepthToSpace(block), images((*rest, last * block**2), seed), pixels, seed=seed)
    t, b, rows, columns, _ = shape
    size = (t, b, rows * block, columns * block, last)
    compare(bl.SpaceToDepth(block), images(size, seed), channels, seed=seed)
