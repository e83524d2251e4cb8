"""Group normalization: each group of channels of an image gets mean 0 and variance 1."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import integer, number
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last, flatten_time, product

__all__ = ["GroupNorm", "GroupNormLayerImpl"]


def GroupNorm(
    num_groups: int, epsilon: float = 1e-5, name: str | None = None
) -> ConstructionWrapper:
    """Add group normalization (Wu & He 2018), for each time step of each sequence on its own.

    ``y = gamma * (x - mean) / sqrt(var + epsilon) + beta``, with mean and biased variance over one
    group of consecutive channels and all positions of the image. ``num_groups=1`` normalizes all
    channels together, ``num_groups=C`` each one alone (instance normalization).

    Args:
        num_groups: Number of groups; divides C.
        epsilon: Added to the variance, > 0.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: gamma (C,), beta (C,)
    Internals: x_hat = (x - mean) / sigma of the input's shape, sigma ('T', 'B', num_groups, 1) =
        sqrt(var + epsilon), mean; channels and spread (scratch)
    """
    return ConstructionWrapper.create(
        GroupNormLayerImpl, name=name, num_groups=num_groups, epsilon=epsilon
    )


class GroupNormLayerImpl(Layer):
    """Implements `GroupNorm` on arrays (N, S, C): T*B images of S positions."""

    expected_kwargs = {
        "num_groups": integer(minimum=1).required(),
        "epsilon": number(0, low_open=True),
    }
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")
    needs_in_backward = ("internals",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.epsilon, groups = kwargs.get("epsilon", 1e-5), kwargs["num_groups"]
        shape = in_shapes["default"].shape
        *image, channels = in_shapes["default"].feature_shape
        if channels % groups:
            raise self.misfit("default", f"(T, B, ..., C) with C a multiple of {groups}")
        internals = {
            "x_hat": BufferStructure(*shape),
            "sigma": BufferStructure("T", "B", groups, 1),
            "mean": BufferStructure("T", "B", groups, 1),
            "channels": BufferStructure("T", "B", 1, channels),
            "spread": BufferStructure("T", "B", product(image), channels),
        }
        parameters = {"gamma": BufferStructure(channels), "beta": BufferStructure(channels)}
        return {"default": BufferStructure(*shape)}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = _as_lists(buffers.inputs.default), buffers.outputs.default
        x_hat, spread = _as_lists(buffers.internals.x_hat), _as_lists(buffers.internals.spread)
        mean, sigma = buffers.internals.mean, buffers.internals.sigma
        self._mean(x, mean, buffers)
        self._spread(mean, buffers)
        self.handler.subtract_tt(x, spread, x_hat)
        self.handler.mult_tt(x_hat, x_hat, spread)
        self._mean(spread, sigma, buffers)
        self.handler.add_st(self.epsilon, sigma, sigma)
        self.handler.sqrt_t(sigma, sigma)
        self._spread(sigma, buffers)
        self.handler.divide_tt(x_hat, spread, x_hat)
        gamma, beta = map(_row, buffers.parameters)
        y, x_hat = flatten_all_but_last(y), flatten_all_but_last(x_hat)
        self.handler.mult_mv(x_hat, gamma, y)
        self.handler.add_mv(y, beta, y)

    def backward_pass(self, buffers: BufferView) -> None:
        mean, sigma = buffers.internals.mean, buffers.internals.sigma
        arrays = buffers.output_deltas.default, buffers.internals.x_hat, buffers.internals.spread
        dy, x_hat, spread = map(flatten_all_but_last, arrays)
        dgamma, dbeta = buffers.gradients
        self.handler.mult_tt(dy, x_hat, spread)
        self.sum_op("gradients.gamma")(spread, 0, dgamma)
        self.sum_op("gradients.beta")(dy, 0, dbeta)
        if not self.needs_delta("default"):
            return
        # dx += (g - x_hat * mean(g * x_hat) - mean(g)) / sigma with g = gamma * dy
        gamma = _row(buffers.parameters.gamma)
        self.handler.mult_mv(dy, gamma, dy)
        self.handler.mult_mv(spread, gamma, spread)
        self._mean(_as_lists(buffers.internals.spread), mean, buffers)
        self._spread(mean, buffers)
        self._mean(_as_lists(buffers.output_deltas.default), mean, buffers)
        self.handler.mult_tt(x_hat, spread, spread)
        self.handler.subtract_tt(dy, spread, dy)
        for statistic, operation in (
            (mean, self.handler.subtract_tt),
            (sigma, self.handler.divide_tt),
        ):
            self._spread(statistic, buffers)
            operation(dy, spread, dy)
        write(self, "input_deltas.default", dy, flatten_all_but_last(buffers.input_deltas.default))

    def _mean(self, lists: Array, out: Array, buffers: BufferView) -> None:
        """Write the mean over each group of channels and all positions."""
        channels = flatten_time(buffers.internals.channels)
        self.handler.sum_t(lists, 1, channels)
        column = flatten_all_but_last(out)
        members = channels.reshape((column.shape[0], channels.size // column.shape[0]))
        self.handler.sum_t(members, 1, column)
        count = lists.size // column.shape[0]
        self.handler.mult_st(1.0 / count, column, column)

    def _spread(self, statistic: Array, buffers: BufferView) -> None:
        """Repeat numbers, one per group, over channels and positions into ``spread``."""
        column, channels = flatten_all_but_last(statistic), flatten_time(buffers.internals.channels)
        members = channels.reshape((column.shape[0], channels.size // column.shape[0]))
        self.handler.broadcast_t(column, 1, members)
        self.handler.broadcast_t(channels, 1, flatten_time(buffers.internals.spread))


def _as_lists(array: Array) -> Array:
    """Return (N, S, C) of (T, B, ..., C)."""
    flat = flatten_time(array)
    return flat.reshape((flat.shape[0], product(flat.shape[1:-1]), flat.shape[-1]))


def _row(vector: Array) -> Array:
    return vector.reshape((1, vector.shape[0]))
