"""Batch normalization by the statistics of the batches of all ranks.

In the forward pass, the means and variances of the ranks' parts are combined; in the backward pass,
the sums for the dependence of the statistics on the input. Each is one small Allreduce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from brainstorm.layers._writing import compute_into, write
from brainstorm.layers.batch_normalization_layer import (
    BatchNormLayerImpl,
    batch_norm_gradients,
    counted,
    follow,
    moments,
    scaled,
)
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure.buffer_views import BufferView


def total(tree: Any) -> Any:
    """Return the sum over the ranks, the first axis."""
    return fn.sum(tree, 0, keepdims=False)


@formula
def own_moments(x: Any, share: Any, *mask: Any) -> list[Any]:
    """Return mean, variance and number of cases on this rank, given 1 / m (or 0)."""
    _, mean, var = moments(x, share, mask)
    return [mean, var, fn.where(share > 0, 1 / fn.where(share > 0, share, 1), 0)]


@formula
def normalized(
    x: Any, gamma: Any, beta: Any, running_mean: Any, running_var: Any,
    means: Any, variances: Any, cases: Any, *, decay: float, epsilon: float,
) -> list[Any]:  # fmt: skip
    """Return the results of a training pass, given the moments on all ranks."""
    share = cases / fn.maximum(total(cases), 1)
    mean = total(share * means)
    var = total(share * (variances + fn.square(means - mean)))
    followed = follow((running_mean, running_var), (mean, var), total(cases) > 0, decay)
    return [*scaled(x - mean, var + epsilon, gamma, beta), *followed]


@formula
def weighted(along: Any, across: Any, own: Any, values: Any) -> list[Any]:
    """Return the sums of this rank, weighted with its share of all values."""
    weight = own / total(values)
    return [along * weight, across * weight]


@formula
def delta(
    dy: Any, x_hat: Any, sigma: Any, gamma: Any, along: Any, across: Any, own: Any, values: Any,
    cases: Any, *mask: Any,
) -> Any:  # fmt: skip
    """Return the delta of the input, given the weighted sums over all ranks."""
    owed = (x_hat * along + across) * (total(values) / (own * fn.maximum(total(cases), 1)))
    return (dy - counted(owed, dy, mask)) * (gamma / sigma)


class Synchronizer:
    """Does the training passes of a layer over the batches of all ranks.

    The deltas of a rank are those of the mean loss over its own part. So its contribution to the
    sums is weighted with its share of all values, and the result is divided by this share.
    """

    def __init__(self, layer: BatchNormLayerImpl, reducer: Any) -> None:
        self.reducer = reducer
        self._is_left_out = False
        self._channels = channels = layer.parameter_shapes["gamma"].feature_shape[0]
        ranks, rank = reducer.world.size, reducer.world.rank
        self._sums = layer.handler.zeros((2 * channels,))
        self._own = layer.handler.ones((1,))
        # means, variances, cases and values (including masked ones) of each rank
        self._ranks = layer.handler.ones((ranks * (2 * channels + 2),))
        self._columns, self._places = [], []
        start = 0
        for size in (channels, channels, 1, 1):
            column = self._ranks[start : start + ranks * size]
            self._columns.append(column.reshape((ranks, size)))
            self._places.append(column[rank * size : (rank + 1) * size])
            start += ranks * size

    def forward(self, layer: BatchNormLayerImpl, buffers: BufferView) -> None:
        """Do the forward pass in training."""
        handler, internals, x = layer.handler, buffers.internals, buffers.inputs.default
        *moments_here, values_here = self._places
        *moments_of_all, _ = self._columns
        values = x.size // self._channels
        handler.fill(self._own, values)
        handler.fill(self._ranks, 0.0)
        handler.fill(values_here, values)
        handler.compute(own_moments, [x, internals.share, *layer.mask(buffers)], moments_here)
        handler.call(partial(self._exchange_moments, layer))
        running = [internals.running_mean, internals.running_var]
        outputs = [buffers.outputs.default, internals.centered, internals.x_hat]
        handler.compute(
            normalized.given(decay=layer.decay, epsilon=layer.epsilon),
            [x, *buffers.parameters, *running, *moments_of_all],
            [*outputs, internals.sigma_b, *running],
        )

    def leave_out(self) -> None:
        """Note that the last forward pass had the running statistics, which have no derivative."""
        self._is_left_out = True

    def backward(self, layer: BatchNormLayerImpl, buffers: BufferView) -> None:
        """Do the backward pass, by the statistics of the last forward pass."""
        handler, internals, dy = layer.handler, buffers.internals, buffers.output_deltas.default
        sums = [self._sums[: self._channels], self._sums[self._channels :]]
        *_, cases, values = self._columns
        handler.compute(batch_norm_gradients, [dy, internals.x_hat], sums)
        for name, own_sum in zip(("gamma", "beta"), sums, strict=True):
            write(layer, f"gradients.{name}", own_sum, buffers.gradients[name])
        if not layer.needs_delta("default"):
            return
        handler.compute(weighted, [*sums, self._own, values], sums)
        handler.call(partial(self._reduce, self._sums))
        inputs = [dy, internals.x_hat, internals.sigma_b, buffers.parameters.gamma, *sums]
        inputs += [self._own, values, cases, *layer.mask(buffers)]
        outputs = {"input_deltas.default": buffers.input_deltas.default}
        compute_into(layer, delta, inputs, outputs)

    def _reduce(self, array: Any) -> None:
        """Sum an array over the ranks; a rank without sequences contributes zeros."""
        if self.reducer.stepper.is_idle or self._is_left_out:
            self.reducer.stepper.handler.fill(array, 0.0)
        if not self._is_left_out:
            self.reducer.transport.sum(array)

    def _exchange_moments(self, layer: BatchNormLayerImpl) -> None:
        self._is_left_out = False
        self._reduce(self._ranks)
        cases = layer.handler.get_numpy_copy(self._columns[-2])
        layer.check_cases(round(float(cases.sum())))


@contextlib.contextmanager
def synchronized(net: Any, reducer: Any) -> Iterator[None]:
    """Synchronize all batch normalization layers of a network in a ``with`` block."""
    layers = [layer for layer in net.layers.values() if isinstance(layer, BatchNormLayerImpl)]
    for layer in layers:
        layer.synchronizer = Synchronizer(layer, reducer)
    try:
        yield
    finally:
        for layer in layers:
            layer.synchronizer = None
