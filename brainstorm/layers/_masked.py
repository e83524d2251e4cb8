"""Layers with an optional mask of time steps."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from brainstorm.layers._checks import require
from brainstorm.layers.base_layer import Layer
from brainstorm.structure import BufferView, StructureTemplate
from brainstorm.utils import Array


class MaskedLayer(Layer):
    """Base of layers with an optional input ``mask`` ('T', 'B', 1), which gets no delta."""

    expected_inputs = {
        "default": StructureTemplate("T", "B", "..."),
        "mask": StructureTemplate("T", "B", 1),
    }
    optional_inputs: Collection[str] = ("mask",)
    computes_no_input_deltas_for: Collection[str] = ("mask",)

    def mask(self, buffers: BufferView) -> list[Array]:
        """Return the mask, if there is one."""
        return [buffers.inputs.mask] if "mask" in self.in_shapes else []

    def validate_data(self, input_name: str, array: np.ndarray) -> None:
        if input_name == "mask":
            remedy = "A mask is 0 at steps that do not count."
            require(self, input_name, array, np.isfinite(array), "finite numbers", remedy)
