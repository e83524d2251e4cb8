"""The place of a failed operation: layer, pass, and the buffer that the error is about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from brainstorm.errors import HandlerValidationError
from brainstorm.structure.buffer_views import BufferView
from brainstorm.structure.layout import VIEWS
from brainstorm.structure.null_buffers import NullBuffer


def place_of(layer: Any, method: str) -> str:
    """Return the layer and the pass (a method) for messages."""
    return f"layer {layer.name!r} ({layer.type_name}), {method.replace('_', ' ')}"


@contextlib.contextmanager
def naming_places(layer: Any, method: str, views: BufferView) -> Iterator[None]:
    """Prefix errors of operations with the layer, the pass and the buffer."""
    try:
        yield
    except HandlerValidationError as error:
        place = place_of(layer, method)
        if buffer := _find_buffer(error.array, layer, views):
            place += f", {buffer}"
        error.args = (f"{place}: {error}",)
        raise


def _find_buffer(array: Any, layer: Any, views: BufferView) -> str:
    """Return the name of the buffer (or context) that contains an array; '' if there is none."""
    for category, buffers in views.items():
        for name, buffer in buffers.items():
            bare = buffer if isinstance(buffer, NullBuffer) else getattr(buffer, "array", buffer)
            if not _shares(bare, array):
                continue
            path = f"{category}.{name}"
            context = getattr(layer, VIEWS[category])[name].context_size
            steps = len(bare) - context
            if not context or not _shares(bare[steps:], array):
                return path
            return (
                f"{path} with its context" if _shares(bare[:steps], array) else f"context of {path}"
            )
    return ""


def _shares(buffer: Any, array: Any) -> bool:
    return all(isinstance(a, np.ndarray) for a in (buffer, array)) and np.shares_memory(
        buffer, array
    )
