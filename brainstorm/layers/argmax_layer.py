"""Argmax: the index of the largest feature."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._formula import FormulaLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import Formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper


def Argmax(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that computes the index of the largest element on the last dimension.

    outputs.default[..., 0] = argmax_k inputs.default[..., k] as a float, the first one for ties.
    It has no derivative, so it propagates no deltas.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., K)       Outputs: default ('T', 'B', ..., 1)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(ArgmaxLayerImpl, name=name)


argmax = Formula(lambda x: fn.argmax(x, -1), "argmax")


class ArgmaxLayerImpl(FormulaLayer):
    """Implements `Argmax`."""

    is_traceable = True
    formula = argmax
    computes_no_input_deltas_for = ("default",)
    takes_no_output_deltas_from = ("default",)
    needs_in_backward = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        return {"default": BufferStructure(*in_shapes["default"].shape[:-1], 1)}, {}, {}
