"""Mask layer: sets parts of its input to zero, such as steps after the end of a sequence."""

from __future__ import annotations

from typing import Any

from brainstorm.layers._checks import require_shape
from brainstorm.layers._formula import FormulaLayer, in_shape
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper, StructureTemplate


def Mask(name: str | None = None) -> ConstructionWrapper:
    """Add a layer that multiplies its input by a mask: ``y = x * mask``, broadcast.

    Where the mask is 0, y is 0, even if x is NaN or infinite. But give finite data and targets
    there, such as 0: in the gradients of layers before this one, NaN times a delta of 0 is NaN.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), mask ('T', 'B', ...) whose features are (1,), those of default
        with 1 as the last dimension, or those of default
    Outputs: default, of the same shape as the input
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(MaskLayerImpl, name=name)


@formula
def masked(x: Any, mask: Any) -> Any:
    """Return the output; a mask with one feature is repeated for all."""
    mask = in_shape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
    return fn.where(mask, x * mask, 0.0)


class MaskLayerImpl(FormulaLayer):
    """Implements `Mask`; no delta for the mask."""

    is_traceable = True
    formula = masked
    expected_inputs = dict.fromkeys(("default", "mask"), StructureTemplate("T", "B", "..."))
    computes_no_input_deltas_for = ("mask",)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shape = in_shapes["default"].shape
        require_shape(self, "mask", ("T", "B", 1), (*shape[:-1], 1), shape)
        return {"default": BufferStructure(*shape)}, {}, {}
