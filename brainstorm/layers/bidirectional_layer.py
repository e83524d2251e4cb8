"""Both directions of time around any layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brainstorm.errors import NetworkValidationError, shown
from brainstorm.layers.merge_layer import Merge
from brainstorm.layers.reverse_layer import Reverse
from brainstorm.structure import ConstructionWrapper


def BidirectionalWrapper(
    layer_function: Callable[..., ConstructionWrapper],
    *args: Any,
    name: str | None = None,
    **kwargs: Any,
) -> ConstructionWrapper:
    """Add a layer twice, once forward and once backward in time, and merge the outputs.

        Input(...) >> BidirectionalWrapper(Lstm, 100) >> FullyConnected(10)

    is equivalent to these layers:

        x >> <name>_forward >> 'inputs_1' - <name>
        x >> <name>_reversed >> <name>_backward >> <name>_restored >> 'inputs_2' - <name>

    Args:
        layer_function: Creates the layer, e.g. `Lstm`.
        *args: For `layer_function`.
        name: Name of the merging layer and prefix of the others; ``'Bidirectional'`` if `None`.
        **kwargs: For `layer_function`.

    Inputs: default; optional mask ('T', 'B', 1), if the layer has one: sequences of different
        lengths are padded at their ends, and each is reversed within its own length
    Outputs: default, the outputs of the forward and the backward layer, concatenated

    Raises:
        NetworkValidationError: `layer_function` is no function.
    """
    if not callable(layer_function):
        raise NetworkValidationError(
            f"BidirectionalWrapper: expected a function that creates a layer, and its arguments, "
            f"as in BidirectionalWrapper(Lstm, 100), got {shown(layer_function)}."
        )
    name = name or "Bidirectional"
    forward = layer_function(*args, name=f"{name}_forward", **kwargs)
    backward = layer_function(*args, name=f"{name}_backward", **kwargs)
    reverse, restore, merge = Reverse(f"{name}_reversed"), Reverse(f"{name}_restored"), Merge(name)
    forward >> "inputs_1" - merge
    reverse >> backward >> restore >> "inputs_2" - merge
    masked = ["mask" - layer for layer in (forward, backward, reverse, restore)]
    return ConstructionWrapper(merge.layer, entries={"default": [forward, reverse], "mask": masked})
