"""Batch normalization: every channel gets mean 0 and variance 1 over the batch."""

from __future__ import annotations

import functools
from typing import Any

from brainstorm.layers._normalizing import Mean, uncorrelated
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.construction import ConstructionWrapper

__all__ = ["BatchNorm", "BatchNormLayerImpl"]


def BatchNorm(
    name: str | None = None, decay: float = 0.9, epsilon: float = 1e-5
) -> ConstructionWrapper:
    """Add batch normalization (Ioffe & Szegedy 2015) over everything but the last dimension C.

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta. In training, mean and var are those of the
    batch, and the running ones follow: ``running <- decay * running + (1 - decay) * batch``.
    Otherwise the running ones are used, and in training too where a group of the stepper says
    so (`ParameterGroup`, ``keep_statistics``): then they stay. Both variances are biased (divided
    by m, not m - 1).

    Args:
        name: Layer name; made unique within the network.
        decay: How much of the running statistics each training pass keeps, in [0, 1].
        epsilon: Added to the variance, > 0.

    Inputs: default ('T', 'B', ..., C)       Outputs: default, of the same shape
    Parameters: gamma (C,), beta (C,)
    Internals: running_mean (C,) from 0 and running_var (C,) from 1, both saved with the network;
        sigma_b (C,) = sqrt(var + epsilon), centered = x - mean and x_hat = centered / sigma_b of
        the input's shape; share (1,) = 1 / m, or 0 outside training
    """
    return ConstructionWrapper.create(BatchNormLayerImpl, name=name, decay=decay, epsilon=epsilon)


@functools.cache
def batch_norm(decay: float, epsilon: float) -> Formula:
    """Return the formula of a training pass: output, internals and running statistics."""

    @formula
    def values(
        x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any, share: Any
    ) -> list[Any]:
        mean = _mean_over_channels(share)
        # One pass gives mean and variance, as moments around an element of the channel: those
        # around 0 would cancel where the mean is large. (Chan, Golub and LeVeque, The American
        # Statistician 37, 1983.)
        origin = x[(0,) * (x.ndim - 1)]
        shifted = x - origin
        shift = mean(shifted)
        var = fn.maximum(mean(fn.square(shifted)) - fn.square(shift), 0)
        followed = [
            decay * running + (1 - decay) * new
            for running, new in ((running_mean, origin + shift), (running_var, var))
        ]
        return [*_scaled(shifted - shift, var + epsilon, gamma, beta), *followed]

    return values


@functools.cache
def batch_norm_outside_training(epsilon: float) -> Formula:
    """Return the formula of output and internals by the running statistics."""
    return formula(lambda x, gamma, beta, mean, var: _scaled(x - mean, var + epsilon, gamma, beta))


def _scaled(centered: Any, square: Any, gamma: Any, beta: Any) -> list[Any]:
    """Return output, centered, x_hat and sigma."""
    sigma = fn.sqrt(square)
    x_hat = centered / sigma
    return [x_hat * gamma + beta, centered, x_hat, sigma]


@formula
def batch_norm_gradients(dy: Any, x_hat: Any) -> list[Any]:
    """The gradients of gamma and beta."""
    total = _mean_over_channels(1)
    return [total(dy * x_hat), total(dy)]


@formula
def batch_norm_deltas(dy: Any, x_hat: Any, sigma: Any, gamma: Any, share: Any) -> list[Any]:
    """The gradients of gamma and beta, and from the same sums the delta of the input."""
    error = uncorrelated(dy, x_hat, _mean_over_channels(share), centers=True)
    return [*batch_norm_gradients(dy, x_hat), error * (gamma / sigma)]


def _mean_over_channels(share: Any) -> Mean:
    """Return what builds the mean for each channel, (C,), given 1 / m."""
    return lambda tree: fn.sum(tree, tuple(range(tree.ndim - 1)), keepdims=False) * share


class BatchNormLayerImpl(Layer):
    """Implements `BatchNorm`; statistics that are not of the batch have no derivative.

    Attributes:
        keeps_statistics: Whether training passes use the running statistics, and leave them as they
            are; set by the stepper.
        synchronizer: Does the passes of a training instead, with ``forward(layer, buffers)`` and
            ``backward(layer, buffers)``, where the batch is one of several processes.
    """

    is_traceable = True
    keeps_statistics: bool = False
    synchronizer: Any = None

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
            "share": BufferStructure(1),
        }
        parameters = {"gamma": BufferStructure(channels), "beta": BufferStructure(channels)}
        return {"default": BufferStructure(*shape)}, parameters, internals

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        follows = training_pass and not self.keeps_statistics
        if follows and self.synchronizer is not None:
            self.synchronizer.forward(self, buffers)
            return
        internals, x, y = buffers.internals, buffers.inputs.default, buffers.outputs.default
        running = [internals.running_mean, internals.running_var]
        inputs = [x, *buffers.parameters, *running]
        outputs = [y, internals.centered, internals.x_hat, internals.sigma_b]
        # In memory, since a constant would become part of a kernel, for every T and B anew. 0 makes
        # what the backward pass owes to the statistics of the batch vanish.
        share = running[0].size / x.size if follows else 0.0
        self.handler.fill(internals.share, share)
        if follows:
            values = batch_norm(self.decay, self.epsilon)
            self.handler.compute(values, [*inputs, internals.share], [*outputs, *running])
        else:
            self.handler.compute(batch_norm_outside_training(self.epsilon), inputs, outputs)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.synchronizer is not None and not self.keeps_statistics:
            self.synchronizer.backward(self, buffers)
            return
        internals, dy = buffers.internals, buffers.output_deltas.default
        outputs = {f"gradients.{name}": array for name, array in buffers.gradients.items()}
        if self.needs_delta("default"):
            outputs["input_deltas.default"] = buffers.input_deltas.default
            gamma = buffers.parameters.gamma
            inputs = [dy, internals.x_hat, internals.sigma_b, gamma, internals.share]
            compute_into(self, batch_norm_deltas, inputs, outputs)
        else:
            compute_into(self, batch_norm_gradients, [dy, internals.x_hat], outputs)
