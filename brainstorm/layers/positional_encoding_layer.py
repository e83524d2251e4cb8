"""Positional encoding: adds the time step to vectors, for layers that ignore order."""

from __future__ import annotations

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Structures
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper, StructureTemplate
from brainstorm.utils import flatten_time


def PositionalEncoding(name: str | None = None) -> ConstructionWrapper:
    """Add sines and cosines of the time step (Vaswani et al. 2017, section 3.5).

        y[t, b, 2i] = x[t, b, 2i] + sin(t / 10000 ** (2i / n))
        y[t, b, 2i + 1] = x[t, b, 2i + 1] + cos(t / 10000 ** (2i / n))

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', n)            Outputs: default ('T', 'B', n)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(PositionalEncodingLayerImpl, name=name)


class PositionalEncodingLayerImpl(CopyingLayer):
    """Implements `PositionalEncoding`."""

    is_traceable = True
    time_coupled = True
    expected_inputs = {"default": StructureTemplate("T", "B", "F")}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        self.handler.add_sinusoids(buffers.inputs.default, buffers.outputs.default)

    def remembered(self, steps: int) -> Structures:
        return {"encoding": BufferStructure(*self.in_shapes["default"].shape)}

    def remember(self, buffers: BufferView, past: BufferView) -> None:
        self.handler.add_sinusoids(past.encoding, past.encoding)

    def forward_step(self, buffers: BufferView, past: BufferView) -> None:
        x, y = flatten_time(buffers.inputs.default), flatten_time(buffers.outputs.default)
        self.handler.take_rows_mv(past.encoding[:, 0], past.position, y)
        self.handler.add_tt(x, y, y)
