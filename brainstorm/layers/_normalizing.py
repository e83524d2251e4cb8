"""What layers that normalize the features of one time step of one sequence have in common."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array, flatten_time, flatten_time_and_features

__all__ = ["FeatureNormLayer"]


class FeatureNormLayer(Layer):
    """Base of `LayerNorm` and `RMSNorm`.

    Attributes:
        centers: Whether the mean is subtracted, and beta added.
    """

    expected_kwargs = {"epsilon": number(0, low_open=True)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")
    needs_in_backward = ("internals",)
    centers = True

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.epsilon = kwargs.get("epsilon", 1e-5)
        whole, features = in_shapes["default"].shape, in_shapes["default"].feature_shape
        names = ("gamma", "beta") if self.centers else ("gamma",)
        internals = {
            "x_hat": BufferStructure(*whole),
            "sigma": BufferStructure("T", "B", 1),
            "mean": BufferStructure("T", "B", 1),
            "scratch": BufferStructure(*whole, is_backward_only=True),
        }
        parameters = {name: BufferStructure(*features) for name in names}
        return {"default": BufferStructure(*whole)}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x = flatten_time_and_features(buffers.inputs.default)
        y = flatten_time_and_features(buffers.outputs.default)
        x_hat, sigma, mean = self._internals(buffers)
        if self.centers:
            self._mean(x, mean)
            self.handler.subtract_mv(x, mean, x_hat)
            x = x_hat
        self.handler.mult_tt(x, x, y)
        self._mean(y, sigma)
        self.handler.add_st(self.epsilon, sigma, sigma)
        self.handler.sqrt_t(sigma, sigma)
        self.handler.divide_mv(x, sigma, x_hat)
        self.handler.mult_mv(x_hat, _row(buffers.parameters.gamma), y)
        if self.centers:
            self.handler.add_mv(y, _row(buffers.parameters.beta), y)

    def backward_pass(self, buffers: BufferView) -> None:
        dy = flatten_time_and_features(buffers.output_deltas.default)
        x_hat, sigma, mean = self._internals(buffers)
        scratch = flatten_time_and_features(buffers.internals.scratch)
        self.handler.mult_tt(dy, x_hat, scratch)
        self.sum_op("gradients.gamma")(scratch, 0, _row(buffers.gradients.gamma))
        if self.centers:
            self.sum_op("gradients.beta")(dy, 0, _row(buffers.gradients.beta))
        if not self.needs_delta("default"):
            return
        # dx += (g - x_hat * mean(g * x_hat) - mean(g)) / sigma with g = gamma * dy
        gamma = _row(buffers.parameters.gamma)
        self.handler.mult_mv(dy, gamma, dy)
        self.handler.mult_mv(scratch, gamma, scratch)
        self._mean(scratch, mean)
        self.handler.mult_mv(x_hat, mean, scratch)
        if self.centers:
            self._mean(dy, mean)
            self.handler.subtract_mv(dy, mean, dy)
        self.handler.subtract_tt(dy, scratch, dy)
        self.handler.divide_mv(dy, sigma, dy)
        dx = flatten_time_and_features(buffers.input_deltas.default)
        write(self, "input_deltas.default", dy, dx)

    @staticmethod
    def _internals(buffers: BufferView) -> tuple[Array, Array, Array]:
        """Return x_hat as (T*B, n), sigma and mean as (T*B, 1)."""
        x_hat, sigma, mean = (buffers.internals[name] for name in ("x_hat", "sigma", "mean"))
        return flatten_time_and_features(x_hat), flatten_time(sigma), flatten_time(mean)

    def _mean(self, matrix: Array, out: Array) -> None:
        self.handler.sum_t(matrix, 1, out)
        self.handler.mult_st(1.0 / matrix.shape[1], out, out)


def _row(parameter: Array) -> Array:
    return parameter.reshape((1, parameter.size))
