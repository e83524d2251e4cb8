"""Batch normalization: every channel gets mean 0 and variance 1 over the batch."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["BatchNorm", "BatchNormLayerImpl"]


def BatchNorm(
    name: str | None = None, decay: float = 0.9, epsilon: float = 1e-5
) -> ConstructionWrapper:
    """Add batch normalization (Ioffe & Szegedy 2015) over everything but the last dimension C.

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta. In training, mean and var are those of the
    batch, and the running ones follow: ``running <- decay * running + (1 - decay) * batch``.
    Otherwise the running ones are used. Both variances are biased (divided by m, not m - 1).

    Args:
        name: Layer name; made unique within the network.
        decay: How much of the running statistics each training pass keeps, in [0, 1].
        epsilon: Added to the variance, > 0.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: gamma (C,), beta (C,)
    Internals: running_mean (C,) from 0 and running_var (C,) from 1, both saved with the network;
        sigma_b (C,) = sqrt(var + epsilon), centered = x - mean (scratch in the backward pass) and
        x_hat = centered / sigma_b of the input's shape; mean_b, and sums of the backward pass
    """
    return ConstructionWrapper.create(BatchNormLayerImpl, name=name, decay=decay, epsilon=epsilon)


class BatchNormLayerImpl(Layer):
    """Implements `BatchNorm`; the backward pass belongs to a forward with training_pass=True."""

    expected_kwargs = {"decay": number(0, 1), "epsilon": number(0, low_open=True)}
    accepts_null_deltas = True
    needs_in_backward = ("internals",)
    depends_on_mode = True
    can_overwrite = ("input_deltas", "gradients")

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        self.decay = kwargs.get("decay", 0.9)
        self.epsilon = kwargs.get("epsilon", 1e-5)
        shape = in_shapes["default"].shape
        channels = shape[-1]
        internals = {
            "sigma_b": BufferStructure(channels),
            "centered": BufferStructure(*shape),
            "x_hat": BufferStructure(*shape),
            "running_mean": BufferStructure(channels, persistent=True),
            "running_var": BufferStructure(channels, persistent=True, initial_value=1.0),
            "mean_b": BufferStructure(channels),
            "sum_dy": BufferStructure(channels, is_backward_only=True),
            "sum_dy_x_hat": BufferStructure(channels, is_backward_only=True),
        }
        parameters = {"gamma": BufferStructure(channels), "beta": BufferStructure(channels)}
        return {"default": BufferStructure(*shape)}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y, centered, x_hat = self._matrices(buffers)
        internals = buffers.internals
        mean, sigma = internals.mean_b, internals.sigma_b
        if training_pass:
            self._mean(x, mean)
            self._follow(mean, internals.running_mean)
            self.handler.subtract_mv(x, _row(mean), centered)
            self.handler.mult_tt(centered, centered, x_hat)
            self._mean(x_hat, sigma)
            self._follow(sigma, internals.running_var)
        else:
            self.handler.subtract_mv(x, _row(internals.running_mean), centered)
            self.handler.copy_to(internals.running_var, sigma)
        self.handler.add_st(self.epsilon, sigma, sigma)
        self.handler.sqrt_t(sigma, sigma)
        self.handler.divide_mv(centered, _row(sigma), x_hat)
        self.handler.mult_mv(x_hat, _row(buffers.parameters.gamma), y)
        self.handler.add_mv(y, _row(buffers.parameters.beta), y)

    def backward_pass(self, buffers: BufferView) -> None:
        _, _, scratch, x_hat = self._matrices(buffers)
        dy = flatten_all_but_last(buffers.output_deltas.default)
        sum_dy, sum_dy_x_hat = buffers.internals.sum_dy, buffers.internals.sum_dy_x_hat
        self.handler.mult_tt(dy, x_hat, scratch)
        self.handler.sum_t(scratch, 0, sum_dy_x_hat)
        self.handler.sum_t(dy, 0, sum_dy)
        for name, total in (("gamma", sum_dy_x_hat), ("beta", sum_dy)):
            self._write(f"gradients.{name}", total, buffers.gradients[name])
        if not self.needs_delta("default"):
            return
        # dx += gamma / sigma_b * (dy - x_hat * mean(dy * x_hat) - mean(dy))
        for total in (sum_dy, sum_dy_x_hat):
            self.handler.mult_st(1.0 / x_hat.shape[0], total, total)
        self.handler.mult_mv(x_hat, _row(sum_dy_x_hat), scratch)
        self.handler.subtract_tt(dy, scratch, dy)
        self.handler.subtract_mv(dy, _row(sum_dy), dy)
        self.handler.mult_mv(dy, _row(buffers.parameters.gamma), dy)
        self.handler.divide_mv(dy, _row(buffers.internals.sigma_b), dy)
        dx = flatten_all_but_last(buffers.input_deltas.default)
        self._write("input_deltas.default", dy, dx)

    @staticmethod
    def _matrices(buffers: BufferView) -> tuple[Array, Array, Array, Array]:
        """Return input, output, centered and x_hat as (m, C)."""
        internals = buffers.internals
        arrays = buffers.inputs.default, buffers.outputs.default, internals.centered
        x, y, centered = map(flatten_all_but_last, arrays)
        return x, y, centered, flatten_all_but_last(internals.x_hat)

    def _mean(self, matrix: Array, out: Array) -> None:
        self.handler.sum_t(matrix, 0, out)
        self.handler.mult_st(1.0 / matrix.shape[0], out, out)

    def _follow(self, batch: Array, running: Array) -> None:
        self.handler.mult_st(self.decay, running, running)
        self.handler.mult_add_st(1.0 - self.decay, batch, running)

    def _write(self, path: str, value: Array, out: Array) -> None:
        if self.overwrites(path):
            self.handler.copy_to(value, out)
        else:
            self.handler.add_tt(value, out, out)


def _row(vector: Array) -> Array:
    return vector.reshape((1, vector.shape[0]))
