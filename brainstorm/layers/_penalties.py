"""Common parts of penalties on the size of numbers: L1Decay and L2Decay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from brainstorm.layers._formula import FormulaLayer, summed_features
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.optree import Formula, formula
from brainstorm.structure import BufferStructure, StructureTemplate


@functools.cache
def summed(penalty: Callable[[Any], Any], scaling_dims: int) -> Formula:
    """Return the formula of the sum of all penalties over all but the first axes."""
    return formula(lambda x: summed_features(penalty(x), scaling_dims))


class PenaltyLayer(FormulaLayer):
    """Base of penalties: `loss` is the sum of a penalty per element over the features.

    The input may be time sized, batch sized or constant (such as ``'..parameters.W'``).
    """

    expected_inputs = {"default": StructureTemplate("...")}

    @staticmethod
    def penalty(x: Any) -> Any:
        """Return the tree of each element's penalty."""
        raise NotImplementedError

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        scaling = in_shapes["default"].scaling_shape
        self.scaling_dims = len(scaling)
        return {"loss": BufferStructure(*scaling, 1)}, {}, {}

    def formula(self) -> Formula:
        return summed(type(self).penalty, self.scaling_dims)
