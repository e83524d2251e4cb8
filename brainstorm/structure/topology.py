"""Checks on the graph of layers as a whole: can everything be reached, can anything be trained."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError
from brainstorm.structure.architecture import INPUT

__all__ = ["check_topology"]

Layers = Mapping[str, Any]

logger = logging.getLogger(__name__)


def check_topology(layers: Layers) -> None:
    """Check a network's layers, given in topological order.

    Layers with parameters that lead to no loss, while others do, are logged as a warning: they are
    never trained.

    Raises:
        NetworkValidationError: A layer cannot be reached from the Input, or there are losses but
            no parameter leads to any.
    """
    reachable = _reach(layers, [INPUT], forward=True)
    lost = [name for name, la in layers.items() if name not in reachable and la.in_shapes]
    if lost:
        raise NetworkValidationError(
            f"no path leads from the Input to {_names(lost)}. Connect them, or remove them."
        )
    losses = [name for name, layer in layers.items() if layer.has_loss]
    trainable = [
        name
        for name, layer in layers.items()
        if set(layer.parameter_shapes) - set(layer.computes_no_gradients_for)
    ]
    leading = _reach(layers, losses, forward=False)
    idle = [name for name in trainable if name not in leading]
    if losses and trainable and len(idle) == len(trainable):
        raise NetworkValidationError(
            f"no path leads from a parameter to a loss: {_names(idle)} cannot be trained. Connect "
            f"an output 'loss' to a Loss layer: out - 'loss' >> Loss()."
        )
    if losses and idle:
        logger.warning("no path leads from %s to a loss: never trained.", _names(idle))


def _reach(layers: Layers, start: Iterable[str], forward: bool) -> set[str]:
    """Return what can be reached along the connections, or against them."""
    reached = set(start)
    names = list(layers) if forward else list(layers)[::-1]
    for name in names:
        layer = layers[name]
        if forward:
            neighbours = {c.start_layer for c in layer.incoming}
        else:
            neighbours = {c.end_layer for c in layer.outgoing if _passes_deltas(layers, c)}
        if neighbours & reached:
            reached.add(name)
    return reached


def _passes_deltas(layers: Layers, connection: Any) -> bool:
    start, end = layers[connection.start_layer], layers[connection.end_layer]
    return (
        connection.output_name not in start.takes_no_output_deltas_from
        and connection.input_name not in end.computes_no_input_deltas_for
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)
