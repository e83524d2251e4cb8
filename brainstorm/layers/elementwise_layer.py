"""Elementwise layer: only an activation function."""

from __future__ import annotations

import functools
from typing import Any

from brainstorm.layers._writing import compute_into
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import activation as activation_name
from brainstorm.layers.constraints import one_of
from brainstorm.optree import Formula
from brainstorm.optree.activations import activation as activation_of
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper

__all__ = ["Elementwise", "ElementwiseLayerImpl"]


def Elementwise(
    activation: str = "rel", name: str | None = None, inplace: bool = False
) -> ConstructionWrapper:
    """Add a layer that applies a function to every element: ``y = act(x)``.

    Args:
        activation: One of `Handler.activations`.
        name: Layer name; made unique within the network.
        inplace: Whether the output overwrites the memory of the input; an error if the input is
            needed elsewhere.

    Inputs: default ('T', 'B', ...)          Outputs: default, of the same shape
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(ElementwiseLayerImpl, **locals())


@functools.cache
def _formulas(name: str) -> tuple[Formula, Formula]:
    """Return the formulas x -> y and (x or y, whichever is needed, dy) -> dx."""
    act = activation_of(name)
    deltas = Formula(lambda known, dy: dy * act.slope(known, known), f"{name}_deriv")
    return Formula(lambda x: act(x), name), deltas


class ElementwiseLayerImpl(Layer):
    """Implements `Elementwise`."""

    is_traceable = True
    expected_kwargs = {"activation": activation_name(), "inplace": one_of(True, False)}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        self.is_inplace = kwargs.get("inplace", False)
        self.activation = kwargs.get("activation", "rel")
        needs_input = activation_of(self.activation).needs_input
        self.needs_in_backward = ("inputs",) if needs_input else ("outputs",)
        return {"default": BufferStructure(*in_shapes["default"].shape)}, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        value, _ = _formulas(self.activation)
        self.handler.compute(value, [buffers.inputs.default], [buffers.outputs.default])

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            (needed,) = self.needs_in_backward
            known = getattr(buffers, needed).default
            outputs = {"input_deltas.default": buffers.input_deltas.default}
            _, deltas = _formulas(self.activation)
            compute_into(self, deltas, [known, buffers.output_deltas.default], outputs)
