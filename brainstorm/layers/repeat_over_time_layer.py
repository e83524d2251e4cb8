"""Repetition over time: one vector becomes a sequence."""

from __future__ import annotations

from typing import Any

from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate


def RepeatOverTime(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that repeats the vector of each sequence at every step: ``y_t = x``.

    So a decoder reads what an encoder and `TimePooling` have made of a sequence, or a recurrent
    layer reads at every step what belongs to the whole sequence, such as an image (see `Merge`).

    T is that of the other data of the batch; 1 if none of them has time steps. In the parts of a
    longer sequence (see `SequenceChunks`), `TimePooling` in front of it gives each part what it has
    seen until then.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('B', ...)               Outputs: default ('T', 'B', ...)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(RepeatOverTimeLayerImpl, name=name)


class RepeatOverTimeLayerImpl(Layer):
    """Implements `RepeatOverTime`; the input delta is the sum over time."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("B", "...")}
    can_overwrite = ("input_deltas",)
    needs_in_backward = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        return {"default": BufferStructure("T", *in_shapes["default"].shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        x, y = buffers.inputs.default, buffers.outputs.default
        self.handler.broadcast_t(x.reshape((1, *x.shape)), 0, y)

    def backward_pass(self, buffers: BufferView) -> None:
        sum_t = self.sum_op("input_deltas.default")
        sum_t(buffers.output_deltas.default, 0, buffers.input_deltas.default)
