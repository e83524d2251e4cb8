"""Checks of the whole graph of layers: is everything reachable, and is everything trained?

Things that are not errors but probably mistakes are warned of, once per network; the warning names
the layer, the line that corrects it, and how to state that it is intended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError, see
from brainstorm.network.prediction import TARGETS
from brainstorm.structure.architecture import INPUT
from brainstorm.structure.construction import RECTIFIED, Default
from brainstorm.utils import warn_once

Layers = Mapping[str, Any]

#: From this many steps on, they might be rows.
_MANY_STEPS = 10


def check_topology(layers: Layers) -> None:
    """Check a network's layers, given in topological order.

    It warns of layers with parameters that lead to no loss, while others do: they are never
    trained; of losses that train nothing; and of layers that lead directly into a loss and are
    rectified by default.

    Raises:
        NetworkValidationError: A layer cannot be reached from the Input, or there are losses but
            no parameter leads to any.
    """
    reachable = _reach(layers, [INPUT], forward=True, by_deltas=False)
    lost = [name for name, la in layers.items() if name not in reachable and la.in_shapes]
    if lost:
        raise NetworkValidationError(
            f"no path leads from the Input to {_names(lost)}. Connect them, or remove them."
        )
    idle, are_all = find_idle(layers)
    because = _why_idle(layers, idle) if idle else ""
    if are_all:
        raise NetworkValidationError(
            f"no path leads from a parameter to a loss: {_names(idle)} cannot be trained{because}. "
            f"{'Use another one, or connect' if because else 'Connect'} an output 'loss' to a Loss "
            f"layer: out - 'loss' >> Loss()."
        )
    if idle:
        warn_once(
            layers[INPUT],
            f"no path leads from {_names(idle)} to a loss: never trained{because}. "
            f"{see('layers-that-are-never-trained')}",
        )
    trainable = _find_trainable(layers)
    trained = _reach(layers, trainable, forward=True)
    vain = [name for name, layer in layers.items() if layer.has_loss and name not in trained]
    if trainable and vain:
        warn_once(
            layers[INPUT],
            f"no gradient of {_names(vain)} reaches a parameter: it trains nothing. "
            f"{see('layers-that-are-never-trained')}",
        )
    _warn_of_rectified_predictions(layers)


def _find_trainable(layers: Layers) -> list[str]:
    """Return the layers with parameters that get gradients."""
    return [
        n for n, la in layers.items() if {*la.parameter_shapes} - {*la.computes_no_gradients_for}
    ]


def _find_losses(layers: Layers) -> list[str]:
    return [name for name, layer in layers.items() if layer.has_loss]


def _why_idle(layers: Layers, idle: Iterable[str]) -> str:
    """Return the layers that pass no deltas between idle ones and losses, as part of a sentence."""
    reached = _reach(layers, idle, forward=True)
    leading = _reach(layers, _find_losses(layers), forward=False, by_deltas=False)
    found = set()
    for c in (c for name in reached for c in layers[name].outgoing if c.end_layer in leading):
        start, end = layers[c.start_layer], layers[c.end_layer]
        if c.input_name in end.computes_no_input_deltas_for:
            what = f"has no derivative by its input {c.input_name!r}"
            found.add(f"{end.name!r} ({end.type_name}) {what}")
        elif c.output_name in start.takes_no_output_deltas_from:
            what = f"takes no deltas from its output {c.output_name!r}"
            found.add(f"{start.name!r} ({start.type_name}) {what}")
    return f", because {', and '.join(sorted(found))}" if found else ""


def find_idle(layers: Layers) -> tuple[list[str], bool]:
    """Return the layers with parameters that lead to none of the losses, and if all are so."""
    losses = _find_losses(layers)
    trainable = _find_trainable(layers) if losses else []
    leading = _reach(layers, losses, forward=False)
    idle = [name for name in trainable if name not in leading]
    return idle, bool(idle) and idle == trainable


def _warn_of_rectified_predictions(layers: Layers) -> None:
    for name, loss in layers.items():
        if not TARGETS & set(loss.in_shapes) or "default" in loss.computes_no_input_deltas_for:
            continue
        for connection in sorted(loss.incoming):
            source = layers[connection.start_layer]
            if connection.input_name == "default" and _is_rectified_by_default(source):
                warn_once(
                    source,
                    f"layer {source.name!r} ({source.type_name}) is rectified and leads directly "
                    f"into {name!r} ({loss.type_name}): its predictions are never below 0, and it "
                    f"does not learn where they are 0. Write {source.type_name}(..., "
                    f"activation='linear'); if this is intended, activation='rel'. "
                    f"{see('predictions-are-never-below-0')}",
                )


def _is_rectified_by_default(layer: Any) -> bool:
    """Return whether a layer is rectified, but not because the user chose it."""
    default = layer.kwargs.get("activation", RECTIFIED)
    return isinstance(default, Default) and getattr(layer, "activation", "") == RECTIFIED


def warn_of_one_sequence(layers: Layers, T: int, B: int) -> None:
    """Warn if all data of a training are one sequence, and the network ignores time.

    Then they probably are rows that were given as steps. T and B are those of the only batch of an
    epoch.
    """
    if B == 1 and T >= _MANY_STEPS and not any(la.time_coupled for la in layers.values()):
        warn_once(
            layers[INPUT],
            f"layer {INPUT!r}: all data are one sequence of {T} steps, but no layer connects "
            f"steps. If they are {T} rows, use the shape (1, {T}, ...): data.swapaxes(0, 1). Then "
            f"the loss is the mean over the rows; now it is their sum. If they are a sequence, use "
            f"SequenceChunks({T}, ...). {see('rows-given-as-time-steps')}",
        )


def warn_of_single_steps(layers: Layers, T: int) -> None:
    """Warn if layers compute over time, but all data of a training have a single step."""
    timed = [la for la in layers.values() if la.time_coupled and not la.is_over_source]
    if T == 1 and timed:
        names = ", ".join(f"{layer.name!r} ({layer.type_name})" for layer in timed)
        verb = "computes" if len(timed) == 1 else "compute"
        images = (
            "If the columns of images are the steps, use (columns, B, rows, channels): "
            "data[0].transpose(2, 0, 1, 3). "
        )
        has_images = any(len(s.feature_shape) == 3 for s in layers[INPUT].out_shapes.values())
        warn_once(
            layers[INPUT],
            f"layer {INPUT!r}: all data have one time step, but {names} {verb} over time. If the "
            f"rows are the steps of one sequence, use the shape (steps, 1, ...): "
            f"data.swapaxes(0, 1). {images * has_images}{see('steps-given-as-rows')}",
        )


def warn_of_parts(layers: Layers, is_intended: bool = True, missing: Collection[str] = ()) -> None:
    """Warn if state is carried on in sequences whose parts give other outputs than the whole.

    Parts without any state to carry may be intended. Nothing is expected of layers that read
    `missing` data, such as the loss of `CTC` without labels.
    """
    timed = [la for la in layers.values() if la.time_coupled and not la.is_over_source]
    lacking = {c.end_layer for c in layers[INPUT].outgoing if c.output_name in missing}
    others = [la for la in timed if not (la.is_continued or la.name in lacking)]
    if others and (len(others) < len(timed) or not is_intended):
        names = ", ".join(f"{layer.name!r} ({layer.type_name})" for layer in others)
        warn_once(
            layers[INPUT],
            f"the state of recurrent layers is carried from part to part of sequences, but in "
            f"{names} each part is on its own: the outputs are not those for whole sequences. "
            f"{see('parts-of-sequences')}",
        )


def _reach(layers: Layers, start: Iterable[str], forward: bool, by_deltas: bool = True) -> set[str]:
    """Return all layers that can be reached along the connections (of deltas), or against them."""
    reached = set(start)
    names = list(layers) if forward else list(layers)[::-1]
    for name in names:
        layer = layers[name]
        connections = layer.incoming if forward else layer.outgoing
        if by_deltas:
            connections = {c for c in connections if _passes_deltas(layers, c)}
        neighbours = {c.start_layer if forward else c.end_layer for c in connections}
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
