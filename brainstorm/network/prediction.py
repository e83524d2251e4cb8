"""Which output of a network is its prediction, and which layers are needed for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from brainstorm.errors import (
    MissingDataError,
    NetworkValidationError,
    UnknownPathError,
    shown,
    unknown,
)
from brainstorm.structure.architecture import INPUT, Connection
from brainstorm.structure.buffer_structure import BufferStructure


class Prediction(NamedTuple):
    """How to compute outputs from some of the inputs.

    Attributes:
        outputs: Path of each output to its structure.
        needed: Names of the layers to run.
        given: Names of the inputs with data.
        missing: Names of the other inputs, which are set to zero.
    """

    outputs: dict[str, BufferStructure]
    needed: list[str]
    given: list[str]
    missing: tuple[str, ...]

    @classmethod
    def of(
        cls, layers: Mapping[str, Any], wanted: Sequence[str | None], names: Sequence[str]
    ) -> Prediction:
        """Return the prediction for outputs (see `find_prediction`) and the names of the data.

        Raises:
            UnknownPathError: None of the names is an input, or the path names no layer.
            MissingDataError: An input or a mask that an output depends on is missing.
        """
        paths = [find_prediction(layers, each) for each in wanted]
        places = {path: path.split(".", 1) for path in paths}
        inputs = list(layers[INPUT].out_shapes)
        given = [name for name in inputs if name in names]
        if not given:
            if not names:
                raise MissingDataError(f"expected data for {', '.join(inputs)}, got none.")
            what = unknown("input", names[0], inputs)
            raise UnknownPathError(f"{what} Pass a dict from names of inputs to arrays.")
        missing = tuple(name for name in inputs if name not in given)
        needed = find_ancestors(layers, (layer for layer, _ in places.values()))
        _check_missing(layers, places, missing)
        outputs = {path: layers[layer].get_shape(port) for path, (layer, port) in places.items()}
        return cls(outputs, needed, given, missing)

    @property
    def path(self) -> str:
        """The path of the only output."""
        (path,) = self.outputs
        return path

    @property
    def structure(self) -> BufferStructure:
        """The structure of the only output."""
        return self.outputs[self.path]


def check_output_name(wanted: Any) -> str | None:
    """Return `wanted`; an error if it is neither a text nor `None`."""
    if wanted is None or isinstance(wanted, str):
        return wanted
    raise NetworkValidationError(
        f"output_name: expected a path such as 'Output.outputs.predictions' or None, got "
        f"{shown(wanted)}."
    )


def find_prediction(layers: Mapping[str, Any], wanted: str | None) -> str:
    """Return the path of the wanted output.

    Args:
        layers: Name to layer.
        wanted: A dotted path, which is checked; `None`: the only output called ``predictions``,
            or else the only output that is not connected.

    Raises:
        UnknownPathError: The path names no layer, or nothing but a layer.
        LayerValidationError: The layer has no such output.
        NetworkValidationError: There are several candidates.
    """
    wanted = check_output_name(wanted)
    if wanted:
        layer, _, rest = wanted.partition(".")
        if layer not in layers:
            raise UnknownPathError(f"output {wanted!r}: {unknown('layer', layer, layers)}")
        if not rest:
            paths = [f"{layer}.outputs.{output}" for output in layers[layer].out_shapes]
            raise UnknownPathError(
                f"output {wanted!r}: expected the path of an output, such as {', '.join(paths)}."
            )
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


def find_ancestors(layers: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the layers and all their ancestors, in the order of `layers` (topological)."""
    wanted = set(names)
    for candidate in reversed(list(layers)):
        if candidate in wanted:
            wanted.update(c.start_layer for c in layers[candidate].incoming)
    return [candidate for candidate in layers if candidate in wanted]


def _check_missing(
    layers: Mapping[str, Any], wanted: Collection[str], missing: Collection[str]
) -> None:
    """Check that the paths do not depend on missing data, which will be set to zero."""
    used: set[Connection] = set()
    for name in missing:
        if f"{INPUT}.outputs.{name}" in wanted:
            raise _missing(name, layers[INPUT], f"output {name!r}")
    pending = [tuple(path.split(".", 1)) for path in wanted]
    while pending:
        name, output = pending.pop()
        for connection in layers[name].incoming - used:
            if depends_on(layers[name], output, connection.input_name):
                used.add(connection)
                pending.append((connection.start_layer, f"outputs.{connection.output_name}"))
    for connection in sorted(used & layers[INPUT].outgoing):
        if connection.output_name in missing:
            layer, port = layers[connection.end_layer], connection.input_name
            raise _missing(connection.output_name, layer, f"input {port!r}")


def _missing(name: str, layer: Any, port: str) -> MissingDataError:
    return MissingDataError(
        f"data for {name!r} is missing: it is {port} of layer {layer.name!r} ({layer.type_name}). "
        f"Pass a dict with all that the prediction depends on."
    )


#: Inputs that layers with an output ``loss`` use for that alone.
TARGETS = frozenset(("targets", "labels"))


def depends_on(layer: Any, output: str, port: str) -> bool:
    """Whether a buffer of a layer may be another for other data of an input."""
    category, _, name = output.partition(".")
    if category == "inputs":
        return name == port
    is_of_loss = category != "outputs" or name == "loss" or "loss" not in layer.out_shapes
    is_target = port in TARGETS and port in layer.computes_no_input_deltas_for
    return is_of_loss or not is_target
