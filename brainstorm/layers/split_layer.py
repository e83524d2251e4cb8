"""Split layer: cuts its input into several outputs, the reverse of Merge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from brainstorm.layers._writing import write
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import shape
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper
from brainstorm.utils import Array, flatten_all_but_last

__all__ = ["Split", "SplitLayerImpl"]


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


class SplitLayerImpl(Layer):
    """Implements `Split`."""

    is_traceable = True
    expected_kwargs = {"sizes": shape().required()}
    accepts_null_deltas = True
    can_overwrite = ("input_deltas",)
    needs_in_backward = ()

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        sizes = kwargs["sizes"]
        self.sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
        *rest, last = in_shapes["default"].shape
        if sum(self.sizes) != last:
            raise self.misfit(
                "default", f"(T, B, ..., {sum(self.sizes)}), the sum of sizes={self.sizes}"
            )
        return (
            {f"outputs_{i}": BufferStructure(*rest, s) for i, s in enumerate(self.sizes, 1)},
            {},
            {},
        )

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        for part, output in self._parts(buffers.inputs.default, buffers.outputs):
            self.handler.copy_to(part, output)

    def backward_pass(self, buffers: BufferView) -> None:
        if self.needs_delta("default"):
            for part, deltas in self._parts(buffers.input_deltas.default, buffers.output_deltas):
                write(self, "input_deltas.default", deltas, part)

    def _parts(self, whole: Array, outputs: BufferView) -> Iterator[tuple[Array, Array]]:
        """Yield each part of `whole` with the output it belongs to, as matrices."""
        matrix, start = flatten_all_but_last(whole), 0
        for i, size in enumerate(self.sizes, 1):
            yield matrix[:, start : start + size], flatten_all_but_last(outputs[f"outputs_{i}"])
            start += size
