"""Images of another size, by interpolation."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from brainstorm.handlers.base_handler import Handler
from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import on_each_axis, one_of, per_axis
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import Array, flatten_time

#: Maximum number of terms of a sum that are separate nodes in the formula.
MOST_TERMS = 8
#: Maximum number of rows, or columns, of an output, because they have a table.
MOST_CELLS = 2**20


def Upsampling2D(
    scale: int | tuple[int, int] | None = None,
    type: str = "nearest",
    size: int | tuple[int, int] | None = None,
    name: str | None = None,
) -> ConstructionWrapper:
    """Add a layer that resizes images, without parameters.

    On each axis with n input cells and m output cells, output i corresponds to input position s:

    * 'nearest': ``s = floor(i * n / m)``;
    * 'bilinear': ``s = max((i + 0.5) * n / m - 0.5, 0)``, interpolated between two cells.

    These are PyTorch's `interpolate` (with ``align_corners=False``) and ONNX's Resize ('asymmetric'
    with 'floor'; 'half_pixel' with 'linear').

    Args:
        scale: Factor of the numbers of rows and columns; one number for both.
        type: 'nearest' or 'bilinear'.
        size: Rows and columns of the output, instead of a scale.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', H, W, C)      Outputs: default ('T', 'B', rows, cols, C)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(
        Upsampling2DLayerImpl, name=name, scale=scale, type=type, size=size
    )


class Upsampling2DLayerImpl(Layer):
    """Implements `Upsampling2D`: on each axis an output is a weighted sum of few inputs.

    Likewise, an input delta is a weighted sum of output deltas, with the transposed weights.
    """

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("T", "B", "H", "W", "C")}
    expected_kwargs = {
        "scale": per_axis(2, 1).or_none(),
        "type": one_of("nearest", "bilinear"),
        "size": per_axis(2, 1).or_none(),
    }
    can_overwrite = ("input_deltas",)
    needs_in_backward = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        scale, size = kwargs.get("scale"), kwargs.get("size")
        if (scale is None) == (size is None):
            raise self.fail(f"expected a scale or a size, got scale={scale!r} and size={size!r}.")
        *image, channels = in_shapes["default"].feature_shape
        if size is None:
            wanted = [n * times for n, times in zip(image, on_each_axis(scale, 2), strict=True)]
        else:
            wanted = list(on_each_axis(size, 2))
        if max(wanted) > MOST_CELLS:
            raise self.fail(
                f"expected at most {MOST_CELLS} rows and columns of the output, got "
                f"{wanted[0]} and {wanted[1]}. Use a smaller scale or size."
            )
        self.sizes = list(zip(image, wanted, strict=True))
        return {"default": BufferStructure("T", "B", *wanted, channels)}, {}, {}

    def set_handler(self, handler: Handler) -> None:
        super().set_handler(handler)
        interpolated = _TYPES[self.kwargs.get("type", "nearest")]
        self._tables: list[Array] = []
        self._transposed: list[Array] = []
        for n, m in self.sizes:
            tables = interpolated(n, m)
            for kept, arrays in (
                (self._tables, tables),
                (self._transposed, _transposed(*tables, n)),
            ):
                kept += [handler.create_from_numpy(a.astype(handler.dtype)) for a in arrays]

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.compute(resampled, [x, *self._tables], [y])

    def backward_pass(self, buffers: BufferView) -> None:
        dx = flatten_time(buffers.input_deltas.default)
        dy = flatten_time(buffers.output_deltas.default)
        compute_into(self, resampled, [dy, *self._transposed], {"input_deltas.default": dx})


@formula
def resampled(x: Any, *tables: Any) -> Any:
    """Return resized images.

    The operands are images, and for each axis input indices (outputs, terms) and their weights.
    """
    for axis, (indices, weights) in enumerate(zip(tables[::2], tables[1::2], strict=True), 1):
        count = indices.shape[1]
        if count > MOST_TERMS:
            x = fn.sum(_terms(x, indices, weights, axis), axis + 1, keepdims=False)
        else:  # one after the other, which is faster
            terms = (_terms(x, indices[:, k], weights[:, k], axis) for k in range(count))
            x = functools.reduce(operator.add, terms)
    return x


def _terms(x: Any, indices: Any, weights: Any, axis: int) -> Any:
    """Return cells times their weights; where the weight is 0, the result is 0 for any cell."""
    weights = fn.reshape(weights, (*weights.shape, *(1,) * (x.ndim - axis - 1)))
    return fn.where(weights, weights * fn.take(x, indices, axis), 0)


def _nearest(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each of m cells, the indices of the n cells to sum, and weights: (m, terms)."""
    return (np.arange(m) * n // m)[:, None], np.ones((m, 1))


def _linear(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for linear interpolation between centres."""
    place = np.maximum((np.arange(m) + 0.5) * n / m - 0.5, 0)
    below = np.minimum(place.astype(int), n - 1)
    above = np.minimum(below + 1, n - 1)
    return np.stack([below, above], 1), np.stack([1 - (place - below), place - below], 1)


def _transposed(indices: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """Return the transposed tables, for each of the n cells; unused entries have weight 0."""
    cells, order = indices.ravel(), np.argsort(indices, axis=None, kind="stable")
    counts = np.bincount(cells, minlength=n)
    term = np.arange(len(cells)) - np.repeat(np.cumsum(counts) - counts, counts)
    tables = np.zeros((2, n, counts.max()))
    tables[:, cells[order], term] = order // indices.shape[1], weights.ravel()[order]
    return tables


_TYPES = {"nearest": _nearest, "bilinear": _linear}
