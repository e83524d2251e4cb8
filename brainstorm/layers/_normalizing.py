"""Common parts of layers that normalize the features of each time step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView
from brainstorm.utils import Array, flatten_features

#: Maps a tree to its mean over some axes, which broadcasts with the tree.
Mean: TypeAlias = Callable[[Any], Any]


def uncorrelated(error: Any, x_hat: Any, mean: Mean, centers: bool) -> Any:
    """Return the tree of the delta of x times sigma, where `error` is the delta of x_hat.

    It is the error without its mean and its component along x_hat, to which the output is
    invariant. `gradients` would need a further pass for the sum over the centered x, which is 0
    except for rounding errors. (Ioffe and Szegedy, arXiv:1502.03167, section 3.) The mean is that
    over all elements with the same sigma; `centers` says whether x was centered.
    """
    rest = error - x_hat * mean(error * x_hat)
    return rest - mean(error) if centers else rest


def over_features(tree: Any) -> Any:
    """Return the mean over the features, the last axis."""
    return fn.mean(tree, -1)


@formula
def normalization(x: Any, gamma: Any, *beta: Any, mean: Mean, epsilon: float) -> list[Any]:
    """Return y, x_hat and sigma; if there is a beta, x is centered."""
    centered = x - mean(x) if beta else x
    sigma = fn.sqrt(mean(fn.square(centered)) + epsilon)
    x_hat = centered / sigma
    y = x_hat * gamma
    return [y + beta[0] if beta else y, x_hat, sigma]


@formula
def normalization_deltas(
    dy: Any, x_hat: Any, sigma: Any, gamma: Any, *, mean: Mean, centers: bool, with_input: bool
) -> list[Any]:
    """Return the gradients of gamma and, if it centers, beta, and perhaps the delta of x."""
    factors = [dy * x_hat, dy] if centers else [dy * x_hat]
    found = [fn.sum(factor, tuple(range(dy.ndim - 1)), keepdims=False) for factor in factors]
    of_input = uncorrelated(dy * gamma, x_hat, mean, centers) / sigma
    return [*found, of_input] if with_input else found


class FeatureNormLayer(Layer):
    """Base of `LayerNorm`, `RMSNorm` and `GroupNorm`.

    Attributes:
        centers: Whether the mean is subtracted, and beta added.
        mean: Builds the mean over all elements with the same sigma, for trees of the shape that
            `split` gives the input.
    """

    expected_kwargs = {"epsilon": number(0, low_open=True)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas", "gradients")
    needs_in_backward = ("internals",)
    centers = True
    mean: Mean = staticmethod(over_features)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.epsilon = kwargs.get("epsilon", 1e-5)
        whole, features = in_shapes["default"].shape, in_shapes["default"].feature_shape
        names = ("gamma", "beta") if self.centers else ("gamma",)
        parameters = {name: BufferStructure(*features) for name in names}
        internals = {"x_hat": BufferStructure(*whole), "sigma": BufferStructure("T", "B", 1)}
        return {"default": BufferStructure(*whole)}, parameters, internals

    def split(self, array: Array) -> Array:
        """Return an array (T, B, ...) with the features in one axis."""
        return flatten_features(array)

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        internals = buffers.internals
        parameters = [flatten_features(array, 0) for array in buffers.parameters]
        x, y, x_hat = map(
            self.split, (buffers.inputs.default, buffers.outputs.default, internals.x_hat)
        )
        values = normalization.given(mean=self.mean, epsilon=self.epsilon)
        self.handler.compute(values, [x, *parameters], [y, x_hat, internals.sigma])

    def backward_pass(self, buffers: BufferView) -> None:
        dy, x_hat = map(self.split, (buffers.output_deltas.default, buffers.internals.x_hat))
        gamma = flatten_features(buffers.parameters.gamma, 0)
        outputs = {
            f"gradients.{name}": flatten_features(g, 0) for name, g in buffers.gradients.items()
        }
        if with_input := self.needs_delta("default"):
            outputs["input_deltas.default"] = self.split(buffers.input_deltas.default)
        deltas = normalization_deltas.given(
            mean=self.mean, centers=self.centers, with_input=with_input
        )
        compute_into(self, deltas, [dy, x_hat, buffers.internals.sigma, gamma], outputs)
