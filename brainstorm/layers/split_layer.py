"""Split layer: cuts its input into several outputs, the reverse of Merge."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brainstorm.layers._copying import CopyingLayer
from brainstorm.layers.base_layer import Declared, Structures
from brainstorm.layers.constraints import shape
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last


def Split(sizes: tuple[int, ...], name: str | None = None) -> ConstructionWrapper:
    """Add a layer that cuts its input on the last dimension (features, or channels of images).

    To send a whole output to several layers, connect it to each: that needs no layer.

    Args:
        sizes: Size of each part; their sum is the size of the last dimension.
        name: Layer name; made unique within the network.

    Inputs: default ('T', 'B', ..., C)
    Outputs: outputs_1, outputs_2, ...: ('T', 'B', ..., size), one per size
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(SplitLayerImpl, name=name, sizes=sizes)


class SplitLayerImpl(CopyingLayer):
    """Implements `Split`."""

    is_traceable = True
    expected_kwargs = {"sizes": shape().required()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        sizes = kwargs["sizes"]
        self.sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
        *rest, last = in_shapes["default"].shape
        if sum(self.sizes) != last:
            raise self.misfit(
                "default", f"(T, B, ..., {sum(self.sizes)}), the sum of sizes={self.sizes}"
            )
        sizes = enumerate(self.sizes, 1)
        return {f"outputs_{i}": BufferStructure(*rest, size) for i, size in sizes}, {}, {}

    def pairs(self, inputs: BufferView, outputs: BufferView) -> Iterable[tuple[Array, Array]]:
        matrix, start = flatten_all_but_last(inputs.default), 0
        for i, size in enumerate(self.sizes, 1):
            yield matrix[:, start : start + size], flatten_all_but_last(outputs[f"outputs_{i}"])
            start += size
