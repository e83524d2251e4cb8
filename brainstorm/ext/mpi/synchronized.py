"""Batch normalization by the statistics of the batches of all ranks.

Forward, the sums over the ranks' parts are reduced; backward, those that the delta of the input
owes to the statistics. Each is one small Allreduce.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import Any

import numpy as np

from brainstorm.layers._writing import compute_into
from brainstorm.layers.batch_normalization_layer import BatchNormLayerImpl
from brainstorm.optree import Formula, formula
from brainstorm.optree import functions as fn
from brainstorm.structure.buffer_views import BufferView

__all__ = ["Synchronizer", "synchronize"]


def _total(tree: Any) -> Any:
    """Return the sum for each channel, (C,)."""
    return fn.sum(tree, tuple(range(tree.ndim - 1)), keepdims=False)


@formula
def moments(x: Any, origin: Any) -> list[Any]:
    """The sums of x and of its squares, around a point that all ranks have in common."""
    shifted = x - origin
    return [_total(shifted), _total(fn.square(shifted))]


@functools.cache
def normalized(decay: float, epsilon: float) -> Formula:
    """Return the formula of what a training pass writes, by the sums over all ranks."""

    @formula
    def values(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, *sums: Any) -> list[Any]:
        first, second, count = sums
        shift = first / count
        new = fn.maximum(second / count - fn.square(shift), 0)
        centered = x - mean - shift
        sigma = fn.sqrt(new + epsilon)
        x_hat = centered / sigma
        followed = [decay * mean + (1 - decay) * (mean + shift), decay * var + (1 - decay) * new]
        return [x_hat * gamma + beta, centered, x_hat, sigma, 1 / count, *followed]

    return values


@formula
def gradients(dy: Any, x_hat: Any) -> list[Any]:
    """The gradients of gamma and beta on this rank."""
    return [_total(dy * x_hat), _total(dy)]


@formula
def delta(dy: Any, x_hat: Any, sigma: Any, gamma: Any, along: Any, total: Any, own: Any) -> Any:
    """The delta of the input, given the sums over all ranks and the number of cases of this."""
    return (dy - (x_hat * along + total) / own) * (gamma / sigma)


class Synchronizer:
    """Does the training passes of a layer over the batches of all ranks.

    The deltas of a rank are those of the mean loss over its own part. So what it adds to the sums
    is weighted with its share of all cases, and what it gets is divided by it.

    Args:
        layer: The layer.
        reducer: Knows the ranks.
    """

    def __init__(self, layer: BatchNormLayerImpl, reducer: Any) -> None:
        self._share = 1.0
        self.reducer = reducer
        self._channels = layer.parameter_shapes["gamma"].feature_shape[0]
        self._sums = layer.handler.zeros((2 * self._channels + 1,))
        self._own = layer.handler.zeros((1,))

    @property
    def _parts(self) -> list[Any]:
        c = self._channels
        return [self._sums[:c], self._sums[c : 2 * c], self._sums[2 * c :]]

    def forward(self, layer: BatchNormLayerImpl, buffers: BufferView) -> None:
        """Do the forward pass of a training."""
        internals, x = buffers.internals, buffers.inputs.default
        first, second, _ = self._parts
        running = [internals.running_mean, internals.running_var]
        layer.handler.compute(moments, [x, internals.running_mean], [first, second])
        cases = x.size // self._channels
        layer.handler.call(partial(self._reduce_moments, cases))
        outputs = [buffers.outputs.default, internals.centered, internals.x_hat]
        layer.handler.compute(
            normalized(layer.decay, layer.epsilon),
            [x, *buffers.parameters, *running, *self._parts],
            [*outputs, internals.sigma_b, internals.share, *running],
        )

    def backward(self, layer: BatchNormLayerImpl, buffers: BufferView) -> None:
        """Do the backward pass that belongs to it."""
        internals, dy = buffers.internals, buffers.output_deltas.default
        first, second, _ = self._parts
        layer.handler.compute(gradients, [dy, internals.x_hat], [first, second])
        own = {f"gradients.{name}": array for name, array in buffers.gradients.items()}
        compute_into(layer, copied, [first, second], own)
        if not layer.needs_delta("default"):
            return
        layer.handler.call(self._reduce_deltas)
        inputs = [dy, internals.x_hat, internals.sigma_b, buffers.parameters.gamma]
        outputs = {"input_deltas.default": buffers.input_deltas.default}
        compute_into(layer, delta, [*inputs, first, second, self._own], outputs)

    def _reduce_moments(self, cases: int) -> None:
        handler, count = self.reducer.stepper.handler, self._parts[2]
        handler.set_from_numpy(count, np.array([cases]))
        handler.set_from_numpy(self._own, np.array([cases]))
        self._reduce()
        self._share = cases / float(handler.get_numpy_copy(count)[0])

    def _reduce_deltas(self) -> None:
        self.reducer.stepper.handler.mult_st(self._share, self._sums, self._sums)
        self._reduce()

    def _reduce(self) -> None:
        if self.reducer.stepper.is_idle:
            self.reducer.stepper.handler.fill(self._sums, 0.0)
        self.reducer.transport.sum(self._sums)


@formula
def copied(along: Any, total: Any) -> list[Any]:
    """The gradients as they are."""
    return [along, total]


def synchronize(net: Any, reducer: Any) -> None:
    """Let all batch normalization of a network use the sums over the ranks."""
    for layer in net.layers.values():
        if isinstance(layer, BatchNormLayerImpl):
            layer.synchronizer = Synchronizer(layer, reducer)
