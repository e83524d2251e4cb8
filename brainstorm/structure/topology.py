"""Checks on the graph of layers as a whole: can everything be reached, can anything be trained.

What is no error and yet hardly meant is a warning, given once for a network; it names the layer and
the line that mends it. Whoever means it says so in the way that the warning tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError, see
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.construction import RECTIFIED, Default
from brainstorm.utils import warn_once

__all__ = ["check_topology", "warn_of_one_sequence"]

Layers = Mapping[str, Any]

#: Names of the inputs with what a loss compares its predictions with.
_TARGETS = frozenset(("targets", "labels"))

#: From so many steps on it is asked whether they are rows.
_MANY_STEPS = 10


def check_topology(layers: Layers) -> None:
    """Check a network's layers, given in topological order.

    Layers with parameters that lead to no loss, while others do, are logged as a warning: they are
    never trained. So are layers that lead straight into a loss and are rectified by default.

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
        warn_once(
            layers[INPUT],
            f"no path leads from {_names(idle)} to a loss: never trained. "
            f"{see('layers-that-are-never-trained')}",
        )
    _warn_of_rectified_predictions(layers)


def _warn_of_rectified_predictions(layers: Layers) -> None:
    for name, loss in layers.items():
        if not _TARGETS & set(loss.in_shapes) or "default" in loss.computes_no_input_deltas_for:
            continue
        for connection in sorted(loss.incoming):
            source = layers[connection.start_layer]
            if connection.input_name == "default" and _is_rectified_by_default(source):
                warn_once(
                    source,
                    f"layer {source.name!r} ({source.type_name}) is rectified and leads straight "
                    f"into {name!r} ({loss.type_name}): it predicts nothing below 0, and learns "
                    f"nothing where it gives 0. Write {source.type_name}(..., "
                    f"activation='linear'); if it is meant so, activation='rel'. "
                    f"{see('predictions-are-never-below-0')}",
                )


def _is_rectified_by_default(layer: Any) -> bool:
    """Return whether a layer is, and nobody has asked for it."""
    default = layer.kwargs.get("activation", RECTIFIED)
    return isinstance(default, Default) and getattr(layer, "activation", "") == RECTIFIED


def warn_of_one_sequence(layers: Layers, T: int, B: int) -> None:
    """Warn if all data of a training are one sequence, and nothing in the network cares for time.

    They are rows, then, that were given as steps.

    Args:
        layers: The layers of the network.
        T: The length of the only batch of an epoch.
        B: Its number of sequences.
    """
    if B == 1 and T >= _MANY_STEPS and not any(la.time_coupled for la in layers.values()):
        warn_once(
            layers[INPUT],
            f"layer {INPUT!r}: all data are one sequence of {T} steps, but no layer couples steps. "
            f"If they are {T} rows, give them as (1, {T}, ...): data.swapaxes(0, 1). All else "
            f"being equal, the loss is their mean then, and now their sum. If they are a sequence, "
            f"give them by SequenceChunks({T}, ...). {see('rows-given-as-time-steps')}",
        )


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
