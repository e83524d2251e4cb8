"""L2 decay: a penalty that keeps numbers, such as activations or weights, small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.layers._formula import FormulaLayer, summed_features
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import formula
from brainstorm.optree import functions as fn
from brainstorm.structure import BufferStructure, ConstructionWrapper, StructureTemplate


def L2Decay(name: str | None = None) -> ConstructionWrapper:
    """Add a penalty: loss = 0.5 * sum(x**2) over the features. Wire `loss` to a `Loss`.

    For weights: ``layer - '..parameters.W' >> L2Decay() - 'loss' >> Loss(importance=1e-4)``.

    Args:
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ...), ('B', ...) or of constant size
    Outputs: loss ('T', 'B', 1), ('B', 1) or (1,)
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(L2DecayLayerImpl, name=name)


@formula
def summed(x: Any, *, penalty: Callable[[Any], Any], scaling_dims: int) -> Any:
    """Return the sum of all penalties over all but the first axes."""
    return summed_features(penalty(x), scaling_dims)


class L2DecayLayerImpl(FormulaLayer):
    """Implements `L2Decay`."""

    is_traceable = True
    expected_inputs = {"default": StructureTemplate("...")}

    @staticmethod
    def penalty(x: Any) -> Any:
        """Return the tree of each element's penalty."""
        return 0.5 * fn.square(x)

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        scaling = in_shapes["default"].scaling_shape
        self.formula = summed.given(penalty=type(self).penalty, scaling_dims=len(scaling))
        return {"loss": BufferStructure(*scaling, 1)}, {}, {}
