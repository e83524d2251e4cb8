"""Input layer: where data enters a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.errors import StructureValidationError
from brainstorm.layers.base_layer import Declared, Layer, Structures
from brainstorm.layers.constraints import any_value
from brainstorm.structure import BufferStructure, BufferView, ConstructionWrapper


def Input(out_shapes: Mapping[str, tuple[Any, ...]]) -> ConstructionWrapper:
    """Add the input layer, called ``Input``; every network has exactly one.

    Args:
        out_shapes: Name of each data item to its shape, e.g.
            ``{'default': ('T', 'B', 28, 28, 1), 'targets': ('T', 'B', 1)}``. In place of T there
            may be S, the length of second sequences, or nothing.

    Inputs: none                             Outputs: one per entry of `out_shapes`
    Parameters: none                         Internals: none
    """
    return ConstructionWrapper.create(InputLayerImpl, name="Input", out_shapes=out_shapes)


class InputLayerImpl(Layer):
    """Holds external data in its outputs; computes nothing."""

    is_traceable = True
    expected_inputs = {}
    expected_kwargs = {"out_shapes": any_value()}

    def setup(self, kwargs: dict[str, Any], in_shapes: Structures) -> Declared:
        shapes = kwargs.get("out_shapes")
        if not isinstance(shapes, Mapping) or not shapes:
            raise self.fail(
                f"expected a dict such as {{'default': ('T', 'B', 784)}}, got {shapes!r}.",
                option="out_shapes",
            )
        outputs = {}
        for name, shape in shapes.items():
            try:
                outputs[name] = BufferStructure(*shape)
            except (StructureValidationError, TypeError) as error:
                raise self.fail(
                    f"expected a shape such as ('T', 'B', 784) for {name!r}, got {shape!r}: "
                    f"{error}",
                    option="out_shapes",
                ) from None
        return outputs, {}, {}

    def forward_pass(self, buffers: BufferView, training_pass: bool = True) -> None:
        pass

    def backward_pass(self, buffers: BufferView) -> None:
        pass
