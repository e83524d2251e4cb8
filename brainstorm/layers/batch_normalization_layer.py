"""Batch normalization: every channel gets mean 0 and variance 1 over the batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from brainstorm.layers._formula import in_shape
from brainstorm.layers._masked import MaskedLayer
from brainstorm.layers._normalizing import Mean, uncorrelated
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import product


def BatchNorm(
    name: str | None = None, decay: float = 0.9, epsilon: float = 1e-5
) -> ConstructionWrapper:
    """Add batch normalization (Ioffe & Szegedy 2015) over everything but the last dimension C.

    y = gamma * (x - mean) / sqrt(var + epsilon) + beta. In training, mean and var are those of the
    batch, and the running ones are updated: ``running <- decay * running + (1 - decay) * batch``.
    Otherwise the running ones are used, also in training if a group of the stepper says so
    (`ParameterGroup`, ``keep_statistics``), without an update. Both variances are biased (divided
    by m, not m - 1). A training pass with a single value per channel is an error, also if only one
    is left by a mask that is data.

    Args:
        name: Layer name; made unique within the network.
        decay: Fraction of the running statistics that each training pass keeps, in [0, 1].
        epsilon: Added to the variance, > 0.

    Inputs: default ('T', 'B', ..., C); optional mask ('T', 'B', 1): the statistics of the batch are
        those of the time steps where it is not 0; all steps are normalized
    Outputs: default, of the same shape
    Parameters: gamma (C,), beta (C,)
    Internals: running_mean (C,) from 0 and running_var (C,) from 1, both saved with the network;
        sigma_b (C,) = sqrt(var + epsilon), centered = x - mean and x_hat = centered / sigma_b of
        the input's shape; share (1,) = 1 / m, or 0 outside training and if the mask is all 0
    """
    return ConstructionWrapper.create(BatchNormLayerImpl, name=name, decay=decay, epsilon=epsilon)


@formula
def batch_norm(
    x: Any, gamma: Any, beta: Any, *others: Any, decay: float, epsilon: float
) -> list[Any]:
    """Return output, internals and running statistics, given these, 1 / m, and perhaps a mask."""
    mean, var, share, *mask = others
    centered, *found = moments(x, share, mask)
    followed = follow((mean, var), found, share > 0, decay)
    return [*scaled(centered, found[1] + epsilon, gamma, beta), *followed]


def moments(x: Any, share: Any, mask: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return x without its mean, the mean and the variance of each channel, given 1 / m."""
    mean = _mean_over_channels(share, mask)
    # Centered on a first mean: moments around 0 would cancel if the mean is large, those around
    # one of the values if it is an outlier. (Chan, Golub and LeVeque, The American Statistician
    # 37, 1983.)
    origin = mean(x)
    shifted = x - origin
    rest = mean(shifted)
    var = fn.maximum(mean(fn.square(shifted)) - fn.square(rest), 0)
    return shifted - rest, origin + rest, var


def follow(running: Sequence[Any], found: Sequence[Any], is_any: Any, decay: float) -> list[Any]:
    """Return the running statistics after a batch, changed only if it has any cases."""
    step = is_any * (1 - decay)
    return [old + step * (new - old) for old, new in zip(running, found, strict=True)]


@formula
def share_of_cases(mask: Any, *, values_per_case: int) -> Any:
    """Return 1 / m; 0 if no cases are left."""
    cases = fn.sum(mask != 0) * values_per_case
    return in_shape(fn.where(cases > 0, 1 / fn.maximum(cases, 1), 0), (1,))


@formula
def batch_norm_outside_training(
    x: Any, gamma: Any, beta: Any, mean: Any, var: Any, *, epsilon: float
) -> list[Any]:
    """Return output and internals with the running statistics."""
    return scaled(x - mean, var + epsilon, gamma, beta)


def scaled(centered: Any, square: Any, gamma: Any, beta: Any) -> list[Any]:
    """Return output, centered, x_hat and sigma."""
    sigma = fn.sqrt(square)
    x_hat = centered / sigma
    return [x_hat * gamma + beta, centered, x_hat, sigma]


@formula
def batch_norm_gradients(dy: Any, x_hat: Any) -> list[Any]:
    """Return the gradients of gamma and beta."""
    total = _mean_over_channels(1)
    return [total(dy * x_hat), total(dy)]


@formula
def batch_norm_deltas(
    dy: Any, x_hat: Any, sigma: Any, gamma: Any, share: Any, *mask: Any
) -> list[Any]:
    """Return the gradients of gamma and beta, and from the same sums the delta of the input."""
    total = _mean_over_channels(share)

    def owed(tree: Any) -> Any:
        return counted(total(tree), dy, mask)  # the batch statistics exclude masked cases

    error = uncorrelated(dy, x_hat, owed, centers=True)
    return [*batch_norm_gradients(dy, x_hat), error * (gamma / sigma)]


def _mean_over_channels(share: Any, mask: Sequence[Any] = ()) -> Mean:
    """Return a function that builds the mean of each channel, (C,), given 1 / m."""
    return lambda tree: (
        fn.sum(counted(tree, tree, mask), tuple(range(tree.ndim - 1)), keepdims=False) * share
    )


def counted(tree: Any, x: Any, mask: Sequence[Any]) -> Any:
    """Return the tree, or 0 where the mask (T, B, 1) for x, if any, is 0."""
    for m in mask:
        tree = fn.where(in_shape(m, (*m.shape[:2], *(1,) * (x.ndim - 2))) != 0, tree, 0)
    return tree


class BatchNormLayerImpl(MaskedLayer):
    """Implements `BatchNorm`; statistics that are not those of the batch have no derivative.

    Attributes:
        keeps_statistics: Whether training passes use the running statistics and do not change them;
            set by the stepper.
        synchronizer: Replaces the training passes by ``forward(layer, buffers)`` and
            ``backward(layer, buffers)``, if the batch is divided among several processes. Other
            forward passes call ``leave_out()``: then the backward pass is one of this process.
    """

    is_traceable = True
    keeps_statistics: bool = False
    synchronizer: Any = None
    _counted: int = 0  # time steps where the mask is not 0, if it is data

    expected_kwargs = {"decay": number(0, 1), "epsilon": number(0, low_open=True)}
    changeable_kwargs = ("decay", "epsilon")
    accepts_null_deltas = True
    needs_in_backward: Collection[str] = ("internals",)
    depends_on_mode = True
    can_overwrite = ("input_deltas", "gradients")

    def decides_operations(self, name: str) -> bool:
        """Leave out what a stepper sets, whose traces know it: so steppers may alternate."""
        return name != "keeps_statistics" and super().decides_operations(name)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.decay = kwargs.get("decay", 0.9)
        self.epsilon = kwargs.get("epsilon", 1e-5)
        if "mask" in in_shapes:
            self.needs_in_backward = ("inputs", "internals")
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
        self._write_share(buffers, follows)
        if follows and self.synchronizer is not None:
            self.synchronizer.forward(self, buffers)
            return
        if self.synchronizer is not None:
            self.handler.call(self.synchronizer.leave_out)
        internals, x, y = buffers.internals, buffers.inputs.default, buffers.outputs.default
        running = [internals.running_mean, internals.running_var]
        inputs = [x, *buffers.parameters, *running]
        outputs = [y, internals.centered, internals.x_hat, internals.sigma_b]
        if follows:
            self.check_cases(x.size // running[0].size)
            if "mask" in self.in_shapes:
                self.handler.call(lambda: self.check_cases(self._counted * product(x.shape[2:-1])))
            values = batch_norm.given(decay=self.decay, epsilon=self.epsilon)
            inputs += [internals.share, *self.mask(buffers)]
            self.handler.compute(values, inputs, [*outputs, *running])
        else:
            values = batch_norm_outside_training.given(epsilon=self.epsilon)
            self.handler.compute(values, inputs, outputs)

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        super().validate_data(input_name, array)
        if input_name == "mask":  # here, because passes do not read values back
            self._counted = int(np.count_nonzero(array))
        elif input_name == "internals.running_var" and (negative := array[array < 0]).size:
            raise self.fail(f"running_var: expected variances >= 0, got {negative[0]}.")

    def check_cases(self, count: int) -> None:
        """Check that there is a variance, unless the pass only measures time.

        Raises:
            LayerValidationError: The batch has a single value per channel.
        """
        if count == 1:
            self.handler.call(self._refuse)

    def _refuse(self) -> None:
        raise self.fail(
            "expected more than one value per channel in a training pass, got 1: it has no "
            "variance. Avoid batches of one sequence (drop_last=True, another batch_size), or let "
            "training use the running statistics (ParameterGroup, keep_statistics=True)."
        )

    def _write_share(self, buffers: BufferView, follows: bool) -> None:
        # In memory, because a constant would be compiled into kernels for every T and B. With 0,
        # the terms of the backward pass for the statistics of the batch vanish.
        x, share = buffers.inputs.default, buffers.internals.share
        channels, mask = x.shape[-1], self.mask(buffers)
        if follows and mask:
            found = share_of_cases.given(values_per_case=product(x.shape[2:-1]))
            self.handler.compute(found, mask, [share])
        else:
            self.handler.fill(share, channels / x.size if follows else 0.0)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.synchronizer is not None:
            self.synchronizer.backward(self, buffers)
            return
        internals, dy = buffers.internals, buffers.output_deltas.default
        outputs = {f"gradients.{name}": array for name, array in buffers.gradients.items()}
        if self.needs_delta("default"):
            outputs["input_deltas.default"] = buffers.input_deltas.default
            gamma = buffers.parameters.gamma
            inputs = [dy, internals.x_hat, internals.sigma_b, gamma, internals.share]
            inputs += self.mask(buffers)
            compute_into(self, batch_norm_deltas, inputs, outputs)
        else:
            compute_into(self, batch_norm_gradients, [dy, internals.x_hat], outputs)
