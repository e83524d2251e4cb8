"""Writing deltas and gradients: overwriting where this is the first writer, adding elsewhere."""

from __future__ import annotations

from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array

__all__ = ["overwrites_all", "write"]


def write(layer: Layer, path: str, value: Array, out: Array) -> None:
    """Write `value` into the delta or gradient `out`, which `layer` knows as `path`."""
    if layer.overwrites(path):
        layer.handler.copy_to(value, out)
    else:
        layer.handler.add_tt(value, out, out)


def overwrites_all(layer: Layer, gradients: BufferView, *names: str) -> bool:
    """Return whether an operation that writes these gradients together must overwrite them.

    Where only some are to be overwritten (a penalty has added to the others already), those are
    cleared, and the operation must add.
    """
    overwritten = [name for name in names if layer.overwrites(f"gradients.{name}")]
    if len(overwritten) < len(names):
        for name in overwritten:
            layer.handler.fill(gradients[name], 0.0)
        return False
    return True
