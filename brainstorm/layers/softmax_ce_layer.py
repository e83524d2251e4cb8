"""Softmax and cross-entropy: the loss of classification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers._losses import ClassLossLayer, no_class, no_class_deltas
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import Constraint, number
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import ConstructionWrapper
from brainstorm.structure.buffer_structure import format_shape
from brainstorm.utils import is_number

_REMEDY = (
    " Of one-hot vectors take the class numbers, array.argmax(-1)[..., None]; for probabilities "
    "use Expression('-sum(targets * log_softmax(x), axis=-1, keepdims=True)')."
)


def SoftmaxCE(
    name: str | None = None,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
) -> ConstructionWrapper:
    """Add a softmax over the last dimension with the cross-entropy against class indices.

    predictions = softmax(x) and loss = -ln(softmax(x)[target]), computed from x, so it is exact if
    the prediction is rounded to 0. Wire `loss` to a `Loss`.

    With weights w and smoothing s, loss = -sum over k of w[k] * ((1 - s) * (k == target) + s / K) *
    ln(softmax(x)[k]), as in PyTorch (Szegedy et al. 2016).

    Args:
        name: Layer name; made unique within the network.
        class_weights: One number >= 0 for each class; `None`: 1 for all.
        label_smoothing: Fraction of each target that is spread over all classes, in [0, 1].

    Inputs: default ('T', 'B', ..., K), targets ('T', 'B', ..., 1): whole numbers in [0, K)
    Outputs: predictions ('T', 'B', ..., K), loss ('T', 'B', ..., 1)
    Parameters: none                         Internals: none
    """
    has_axis = not isinstance(class_weights, np.ndarray) or class_weights.ndim > 0
    if isinstance(class_weights, (list, tuple, np.ndarray)) and has_axis:
        class_weights = [float(w) if is_number(w) else w for w in class_weights]
    weights = {} if class_weights is None else {"class_weights": class_weights}
    is_zero = is_number(label_smoothing) and label_smoothing == 0
    smoothing = {} if is_zero else {"label_smoothing": label_smoothing}
    return ConstructionWrapper.create(SoftmaxCELayerImpl, name=name, **weights, **smoothing)


@formula
def softmax_ce(x: Any, targets: Any, classes: Any, *weights: Any, smoothing: float) -> list[Any]:
    """Return predictions and loss."""
    shares, logs = _shares(targets, classes, weights, smoothing), fn.log_softmax(x)
    if weights or smoothing:
        logs = shares * logs
    terms = fn.where(shares, logs, 0.0)  # avoids 0 * -inf
    return [fn.softmax(x), no_class(targets, classes) - fn.sum(terms, -1)]


@formula
def softmax_ce_deltas(
    p: Any, targets: Any, dloss: Any, classes: Any, *weights: Any, smoothing: float
) -> Any:
    """Return the delta."""
    shares = _shares(targets, classes, weights, smoothing)
    if weights or smoothing:
        p = p * fn.sum(shares, -1)
    return (p - shares) * dloss + no_class_deltas(targets, classes, dloss)


def _shares(targets: Any, classes: Any, weights: Sequence[Any], smoothing: float) -> Any:
    """Return the factors of the logarithms: 1 for the target if there are no weights."""
    shares = classes == targets
    if smoothing:
        shares = shares * (1 - smoothing) + smoothing / classes.size
    return weights[0] * shares if weights else shares


class SoftmaxCELayerImpl(ClassLossLayer):
    """Implements `SoftmaxCE`; no delta for the targets, none from the predictions."""

    is_traceable = True
    expected_kwargs = {
        "class_weights": Constraint(
            "a list of numbers >= 0",
            lambda v: isinstance(v, (list, tuple)) and all(map(number(0).accepts, v)),
        ).or_none(),
        "label_smoothing": number(0, 1),
    }
    needs_in_backward = ("inputs", "outputs")
    delta_operands = ("outputs.predictions", "inputs.targets", "output_deltas.loss")

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        if in_shapes["targets"].shape == shape != self.target_shape(shape):
            raise self.misfit("targets", format_shape(self.target_shape(shape)), _REMEDY)
        count = shape[-1]
        weights, smoothing = kwargs.get("class_weights"), kwargs.get("label_smoothing", 0.0)
        if weights is not None and len(weights) != count:
            raise self.fail(
                f"expected one number for each of {count} classes, got {len(weights)}.",
                option="class_weights",
            )
        self.formula = softmax_ce.given(smoothing=smoothing)
        self.delta = softmax_ce_deltas.given(smoothing=smoothing)
        return super().setup(kwargs, in_shapes)

    def set_handler(self, handler: Handler) -> None:
        super().set_handler(handler)
        weights = self.kwargs.get("class_weights")
        if weights is not None:
            weights = np.array(weights, handler.dtype)
            self.constants = [*self.constants, handler.create_from_numpy(weights)]
