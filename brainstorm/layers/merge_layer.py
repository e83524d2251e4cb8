"""Merge layer: joins two inputs on their last dimension (features, or channels of images)."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate


def Merge(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that concatenates two inputs on the last dimension.

    Layers that are connected to one input of another are concatenated, too, any number of them, in
    alphabetical order if possible.

    Args:
        name: Layer name; made unique within the network.

    Inputs: inputs_1 and inputs_2, of any shape, equal except for the last dimension
    Outputs: default, last dimension = the sum of the inputs' last dimensions
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(MergeLayerImpl, name=name)


class MergeLayerImpl(Layer):
    """Implements `Merge`."""

    is_traceable = True
    expected_inputs = {"inputs_1": StructureTemplate("..."), "inputs_2": StructureTemplate("...")}
    needs_in_backward = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        first, second = in_shapes["inputs_1"].shape, in_shapes["inputs_2"].shape
        require_shape(self, "inputs_2", (*first[:-1], second[-1]))
        return {"default": BufferStructure(*first[:-1], first[-1] + second[-1])}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        first, second = buffers.inputs
        self.handler.merge_tt(first, second, buffers.outputs.default)

    def backward_pass(self, buffers: BufferView) -> None:
        first, second = buffers.input_deltas
        self.handler.split_add_tt(buffers.output_deltas.default, first, second)
