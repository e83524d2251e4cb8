"""Which output of a network is meant by its prediction, and which layers that output needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError, UnknownPathError, unknown
from brainstorm.structure.architecture import INPUT

__all__ = ["find_ancestors", "find_prediction"]


def find_prediction(layers: Mapping[str, Any], wanted: str | None) -> str:
    """Return the path of the output that a user means.

    Args:
        layers: Name to layer.
        wanted: A dotted path, which is checked; `None` takes the only output called
            ``predictions``, or else the only output that nothing is connected to.

    Raises:
        UnknownPathError: The path names no layer.
        LayerValidationError: The layer has no such output.
        NetworkValidationError: Several outputs could be meant.
    """
    if wanted:
        layer, _, rest = wanted.partition(".")
        if layer not in layers:
            raise UnknownPathError(f"output {wanted!r}: {unknown('layer', layer, layers)}")
        layers[layer].get_shape(rest)
        return wanted
    outputs = [(n, output) for n, layer in layers.items() for output in layer.out_shapes]
    candidates = [(n, output) for n, output in outputs if output == "predictions"] or [
        (n, output)
        for n, output in outputs
        if n != INPUT and output != "loss" and not layers[n].outgoing
    ]
    if len(candidates) != 1:
        paths = [f"{n}.outputs.{output}" for n, output in candidates or outputs]
        raise NetworkValidationError(
            f"which output is the prediction? Pass output_name or set net.output_name to one of: "
            f"{', '.join(paths)}."
        )
    return f"{candidates[0][0]}.outputs.{candidates[0][1]}"


def find_ancestors(layers: Mapping[str, Any], name: str) -> list[str]:
    """Return the layer and all that it depends on, in the order of `layers` (topological)."""
    wanted = {name}
    for candidate in reversed(list(layers)):
        if candidate in wanted:
            wanted.update(c.start_layer for c in layers[candidate].incoming)
    return [candidate for candidate in layers if candidate in wanted]
