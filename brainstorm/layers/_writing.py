"""Writing several gradients with one operation."""

from __future__ import annotations

from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_views import BufferView

__all__ = ["overwrites_all"]


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
