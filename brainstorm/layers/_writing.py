"""Writing deltas and gradients: the first writer overwrites, later ones add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brainstorm.layers.base_layer import Layer
from brainstorm.optree import Formula
from brainstorm.structure import BufferView
from brainstorm.utils import Array


def compute_into(
    layer: Layer, formula: Formula, inputs: Sequence[Array], outputs: Mapping[str, Array]
) -> None:
    """Compute a formula into deltas and gradients, given by their paths in `layer`."""
    accumulate = [not layer.overwrites(path) for path in outputs]
    layer.handler.compute(formula, inputs, list(outputs.values()), accumulate)


def write(layer: Layer, path: str, value: Array, out: Array) -> None:
    """Write `value` into the delta or gradient `out`, whose path in `layer` is `path`."""
    if layer.overwrites(path):
        layer.handler.copy_to(value, out)
    else:
        layer.handler.add_tt(value, out, out)


def overwrites_all(layer: Layer, gradients: BufferView, *names: str) -> bool:
    """Return whether an operation that writes these gradients together must overwrite them.

    If only some are to be overwritten (a penalty has already added to the others), those are
    cleared, and the operation must add.
    """
    overwritten = [name for name in names if layer.overwrites(f"gradients.{name}")]
    if len(overwritten) < len(names):
        for name in overwritten:
            layer.handler.fill(gradients[name], 0.0)
        return False
    return True
