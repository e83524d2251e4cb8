"""Scaling of deltas in the backward pass."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import number
from brainstorm.structure import BufferView, ConstructionWrapper


def DeltasScaling(factor: float, name: str | None = None) -> ConstructionWrapper:
    """Add a layer that copies its input, and scales the deltas in the backward pass: factor * dy.

    A negative factor makes the layers before it increase the loss after it: the gradient reversal
    of Ganin and Lempitsky (2015), for adversarial branches. A factor of 0 stops the gradient.

    Args:
        factor: Factor of the deltas.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(DeltasScalingLayerImpl, name=name, factor=factor)


class DeltasScalingLayerImpl(CopyingLayer):
    """Implements `DeltasScaling`; on purpose, deltas are not the derivative of the output."""

    is_traceable = True
    expected_kwargs = {"factor": number().required()}
    changeable_kwargs = ("factor",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.factor = kwargs["factor"]
        return super().setup(kwargs, in_shapes)

    def backward_pass(self, buffers: BufferView) -> None:
        dx, dy = buffers.input_deltas.default, buffers.output_deltas.default
        overwrite = self.overwrites("input_deltas.default")
        scale = self.handler.mult_st if overwrite else self.handler.mult_add_st
        scale(self.factor, dy, dx)
