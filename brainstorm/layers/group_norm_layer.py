"""Group normalization: each group of channels of an image gets mean 0 and variance 1."""

from __future__ import annotations

import functools
from typing import Any

from brainstorm.layers._normalizing import FeatureNormLayer, Mean
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import integer
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper
from brainstorm.utils import Array, product


def GroupNorm(
    num_groups: int, epsilon: float = 1e-5, name: str | None = None
) -> ConstructionWrapper:
    """Add group normalization (Wu & He 2018), for each time step of each sequence separately.

    ``y = gamma * (x - mean) / sqrt(var + epsilon) + beta``, with mean and biased variance over one
    group of consecutive channels and all positions of the image. ``num_groups=1`` normalizes all
    channels together, ``num_groups=C`` each one alone (instance normalization).

    Args:
        num_groups: Number of groups; divides C.
        epsilon: Added to the variance, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: gamma (C,), beta (C,)
    Internals: x_hat = (x - mean) / sigma of the input's shape, sigma ('T', 'B', 1, C) =
        sqrt(var + epsilon), the same for the channels of a group
    """
    return ConstructionWrapper.create(
        GroupNormLayerImpl, name=name, num_groups=num_groups, epsilon=epsilon
    )


@functools.cache
def over_group(groups: int) -> Mean:
    """Return a function that builds the mean over a group and all positions, from (T, B, S, C)."""

    def mean(tree: Any) -> Any:
        positions, channels = tree.shape[2:]
        sums = fn.sum(tree, 2)
        parts = fn.reshape(sums, (*sums.shape[:3], groups, channels // groups))
        total = fn.sum(parts, 4) * (groups / (positions * channels))
        return fn.reshape(fn.broadcast_to(total, parts.shape), sums.shape)

    return mean


class GroupNormLayerImpl(FeatureNormLayer):
    """Implements `GroupNorm` on arrays (T, B, S, C) of images with S positions."""

    is_traceable = True
    expected_kwargs = {
        **FeatureNormLayer.expected_kwargs,
        "num_groups": integer(minimum=1).required(),
    }

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        outputs, _, internals = super().setup(kwargs, in_shapes)
        groups, channels = kwargs["num_groups"], in_shapes["default"].shape[-1]
        if channels % groups:
            raise self.misfit("default", f"(T, B, ..., C) with C a multiple of {groups}")
        self.mean = over_group(groups)
        parameters = {"gamma": BufferStructure(channels), "beta": BufferStructure(channels)}
        sigma = BufferStructure("T", "B", 1, channels)
        return outputs, parameters, {**internals, "sigma": sigma}

    def split(self, array: Array) -> Array:
        time, batch, *image, channels = array.shape
        return array.reshape((time, batch, product(image), channels))
