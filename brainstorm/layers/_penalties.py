"""What penalties on the size of numbers have in common: L1Decay and L2Decay."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Layer, Structures
from brainstorm.structure.buffer_structure import BufferStructure, StructureTemplate
from brainstorm.structure.buffer_views import BufferView
from brainstorm.utils import Array, product

__all__ = ["PenaltyLayer"]


class PenaltyLayer(Layer):
    """Base of penalties: `loss` is a sum over the features of something per element.

    The input may be time sized, batch sized or constant (such as ``'..parameters.W'``).
    """

    expected_inputs = {"default": StructureTemplate("...")}
    accepts_null_deltas = True
    needs_in_backward = ("inputs",)
    can_overwrite = ("input_deltas",)

    def setup(
        self, kwargs: dict[str, Any], in_shapes: Structures
    ) -> tuple[Structures, Structures, Structures]:
        structure = in_shapes["default"]
        self.scaling_dims = len(structure.scaling_shape)
        loss = BufferStructure(*structure.scaling_shape, 1)
        return {"loss": loss}, {}, {"tmp": BufferStructure(*structure.shape)}

    def rows(self, array: Array) -> Array:
        """Return the array as a matrix, with one row for each penalty."""
        count = product(array.shape[: self.scaling_dims])
        return array.reshape((count, array.size // count))

    def backward_from(self, buffers: BufferView, slopes: Array) -> None:
        """Write the input deltas that follow from the derivative of each element's penalty."""
        overwrite = self.overwrites("input_deltas.default")
        multiply = self.handler.mult_mv if overwrite else self.handler.mult_add_mv
        dloss, dx = buffers.output_deltas.loss, buffers.input_deltas.default
        multiply(self.rows(slopes), self.rows(dloss), self.rows(dx))
