"""The architecture: a network as a dictionary for JSON, its checks, order and layer objects.

{'Hidden': {'@type': 'FullyConnected', '@outgoing_connections': {'default': ['Out.default']},
            'size': 100, 'activation': 'rel'}, ...}
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from brainstorm.errors import LayerValidationError, NetworkValidationError, ValidationError, unknown
from brainstorm.randomness import RandomState
from brainstorm.registry import Registry
from brainstorm.structure.buffer_structure import BufferStructure, combine_buffer_structures
from brainstorm.structure.construction import ConstructionWrapper, LayerDetails
from brainstorm.utils import check_nesting, copy_containers, is_valid_layer_name

Architecture = Mapping[str, Mapping[str, Any]]

#: Layer types by name; layer classes register themselves.
layer_registry: Registry[Any] = Registry(
    "layer type", "A layer of your own must be imported (or defined) before it is used."
)

INPUT = "Input"

#: The keys of an entry other than options.
MARKS = ("@type", "@outgoing_connections", "@shared_parameters")

#: The children of ``net.buffer`` other than layers.
FLAT_ARRAYS = ("parameters", "gradients")

#: Arguments that every layer gets in addition to its options.
RESERVED = frozenset(
    ("self", "name", "in_shapes", "incoming_connections", "outgoing_connections", "rnd",
     "shared_structures")
)  # fmt: skip


class Connection(NamedTuple):
    """One connection between two layers."""

    start_layer: str
    output_name: str
    end_layer: str
    input_name: str

    def __str__(self) -> str:
        return f"{self.start_layer}.{self.output_name} -> {self.end_layer}.{self.input_name}"


# -- from wiring --------------------------------------------------------------------------------


def get_layer_description(layer: LayerDetails) -> dict[str, Any]:
    """Return the architecture entry of one wired layer."""
    outgoing: dict[str, set[str]] = {}
    for output_name, input_name, target in layer.outgoing:
        outgoing.setdefault(output_name, set()).add(f"{target.name}.{input_name}")
    shared = layer.shared_parameters
    if isinstance(shared, LayerDetails):
        sharing: dict[str, Any] = {"@shared_parameters": shared.name}
    else:
        paths = {ours: f"{owner.name}.{theirs}" for ours, (owner, theirs) in (shared or {}).items()}
        sharing = {"@shared_parameters": paths} if paths else {}
    return {
        "@type": layer.layer_type,
        "@outgoing_connections": {name: sorted(ends) for name, ends in sorted(outgoing.items())},
        **sharing,
        **layer.layer_kwargs,
    }


def generate_architecture(some_layer: ConstructionWrapper | LayerDetails) -> dict[str, Any]:
    """Return the architecture of all layers that are connected with `some_layer`.

    Raises:
        NetworkValidationError: It is not a layer.
    """
    layer = some_layer.layer if isinstance(some_layer, ConstructionWrapper) else some_layer
    if not isinstance(layer, LayerDetails):
        raise NetworkValidationError(
            f"expected a layer, as FullyConnected(100) returns one, got {some_layer!r}."
        )
    connected = sorted(layer.collect_connected_layers(), key=lambda la: la.name)
    return {member.name: get_layer_description(member) for member in connected}


# -- connections --------------------------------------------------------------------------------


def parse_connection(target: str) -> tuple[str, str]:
    """Split ``'layer.input'`` into layer and input; without a dot the input is ``'default'``."""
    end_layer, _, input_name = target.partition(".")
    return end_layer, input_name or "default"


def collect_all_outgoing_connections(layer: Mapping[str, Any], name: str) -> list[Connection]:
    """Return the connections that start at one layer of an architecture."""
    outgoing = layer.get("@outgoing_connections", {})
    if not isinstance(outgoing, Mapping):
        outgoing = {"default": outgoing}
    return [
        Connection(name, output_name, *parse_connection(target))
        for output_name, targets in outgoing.items()
        for target in targets
    ]


def collect_all_connections(architecture: Architecture) -> list[Connection]:
    """Return all connections of an architecture, sorted, each once."""
    outgoing = (collect_all_outgoing_connections(la, name) for name, la in architecture.items())
    return sorted(set().union(*outgoing))


# -- checks -------------------------------------------------------------------------------------


def validate_architecture(architecture: Architecture) -> bool:
    """Check everything that does not depend on the layer types; return True.

    Raises:
        NetworkValidationError: Names, types, connections or the Input layer are not valid,
            or the connections form a loop.
        LayerValidationError: A layer that parameters are shared with does not exist.
        ValidationError: Options are nested infinitely.
    """
    if not isinstance(architecture, Mapping) or not architecture:
        got = "an empty one" if isinstance(architecture, Mapping) else type(architecture).__name__
        raise NetworkValidationError(f"architecture: expected a dict of layers, got {got}.")
    check_nesting("architecture", architecture)
    for name, layer in architecture.items():
        _validate_entry(name, layer, architecture)
    for connection in collect_all_connections(architecture):
        if connection.end_layer not in architecture:
            what = unknown("layer", connection.end_layer, sorted(architecture))
            raise NetworkValidationError(f"connection {connection}: {what}")
        if connection.end_layer == INPUT:
            raise NetworkValidationError(
                f"connection {connection}: the Input layer takes data from outside, nothing can "
                f"be connected to it."
            )
    inputs = [name for name, layer in architecture.items() if layer["@type"] == INPUT]
    if inputs != [INPUT]:
        raise NetworkValidationError(
            f"architecture: expected exactly one layer of type Input, called 'Input', got "
            f"{inputs or 'none'}. One Input can have any number of outputs: "
            f"Input(out_shapes={{'default': ..., 'targets': ...}})."
        )
    get_canonical_layer_order(architecture)
    return True


def _validate_entry(name: Any, layer: Any, architecture: Architecture) -> None:
    def fail(what: str) -> NetworkValidationError:
        return NetworkValidationError(f"layer {name!r}{what}")

    if not isinstance(name, str) or not is_valid_layer_name(name):
        raise NetworkValidationError(
            f"layer name {name!r}: expected an identifier in ASCII other than 'default' and "
            f"'fallback'."
        )
    if name in FLAT_ARRAYS:
        raise fail(f": the name is taken by net.buffer.{name}. Choose another one.")
    if not isinstance(layer, Mapping) or not isinstance(layer.get("@type"), str):
        raise fail(": expected a dict whose '@type' is the name of a layer type.")
    if not all(isinstance(key, str) for key in layer):
        raise fail(f": expected texts as keys, got {list(layer)}.")
    for key in layer:
        if key.startswith("@") and key not in MARKS:
            raise fail(f": {unknown('key', key, MARKS)}")
    if taken := sorted(RESERVED.intersection(layer)):
        raise fail(f": no option can be called {' or '.join(map(repr, taken))}.")
    shared = layer.get("@shared_parameters", {})
    paths = shared.values() if isinstance(shared, Mapping) else [shared]
    if not all(isinstance(path, str) for path in paths):
        raise fail(
            f", '@shared_parameters': expected the name of a layer, or a dict from parameter names "
            f"to 'layer.parameter', got {shared!r}."
        )
    for owner in (path.partition(".")[0] for path in paths):
        if owner not in architecture:
            what = unknown("layer", owner, architecture)
            raise LayerValidationError(f"layer {name!r}, '@shared_parameters': {what}")
    outgoing = layer.get("@outgoing_connections", {})
    outputs = outgoing if isinstance(outgoing, Mapping) else {"default": outgoing}
    if not all(
        isinstance(output, str)
        and isinstance(ends, (list, tuple))
        and all(isinstance(end, str) for end in ends)
        for output, ends in outputs.items()
    ):
        raise fail(
            f", '@outgoing_connections': expected a list of 'layer.input' strings, or a dict from "
            f"output names to such lists, got {outgoing!r}."
        )


# -- order --------------------------------------------------------------------------------------


def get_canonical_layer_order(architecture: Architecture) -> list[str]:
    """Return a topological order, by distance to the outputs and then by name.

    Raises:
        NetworkValidationError: There is a loop; the message names its layers.
    """
    sorter = TopologicalSorter(dict.fromkeys(architecture, ()))
    for connection in collect_all_connections(architecture):
        sorter.add(connection.start_layer, connection.end_layer)  # from the outputs on
    try:
        sorter.prepare()
    except CycleError as error:
        loop = error.args[1][::-1]
        raise NetworkValidationError(
            f"the connections form a loop: {' -> '.join(loop)}. A network must be acyclic; "
            f"recurrence over time lives inside layers such as Recurrent and Lstm."
        ) from None
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), reverse=True)
        order.extend(ready)
        sorter.done(*ready)
    return order[::-1]


# -- layer objects ------------------------------------------------------------------------------


def get_kwargs(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in an architecture entry: everything that does not start with ``@``."""
    return {key: copy_containers(v) for key, v in layer.items() if not key.startswith("@")}


def instantiate_layers_from_architecture(
    architecture: Architecture, rnd: RandomState | None = None
) -> OrderedDict[str, Any]:
    """Validate an architecture and create its layer objects, in canonical order.

    Args:
        architecture: The architecture.
        rnd: Root of the layers' random numbers: each gets the child ``'layers/<name>'``.

    Returns:
        Layer name to layer.

    Raises:
        NetworkValidationError: See `validate_architecture`.
        UnknownTypeError: A layer type is not registered.
        LayerValidationError: Options or shapes do not fit a layer's declarations.
    """
    validate_architecture(architecture)
    rnd = RandomState() if rnd is None else rnd
    incoming: dict[str, set[Connection]] = {name: set() for name in architecture}
    outgoing: dict[str, set[Connection]] = {name: set() for name in architecture}
    for connection in collect_all_connections(architecture):
        incoming[connection.end_layer].add(connection)
        outgoing[connection.start_layer].add(connection)
    classes = {name: layer_registry.get(entry["@type"]) for name, entry in architecture.items()}
    layers: OrderedDict[str, Any] = OrderedDict()
    for name in get_canonical_layer_order(architecture):
        shared = architecture[name].get("@shared_parameters", {})
        layers[name] = classes[name](
            name,
            _joined_structures(layers, incoming[name]),
            incoming[name],
            outgoing[name],
            rnd=partial(rnd.child, f"layers/{name}"),
            shared_structures=_shared_structures(layers, shared),
            **get_kwargs(architecture[name]),
        )
        if isinstance(shared, str):
            shared = {
                parameter: f"{shared}.{parameter}" for parameter in layers[name].parameter_shapes
            }
        layers[name].shared_parameters = dict(shared)
    return layers


def _shared_structures(
    layers: Mapping[str, Any], shared: str | Mapping[str, str]
) -> dict[str, BufferStructure]:
    """Return the structures of shared parameters whose owners are among `layers`."""
    if isinstance(shared, str):
        return dict(layers[shared].parameter_shapes) if shared in layers else {}
    owners = {ours: path.partition(".") for ours, path in shared.items()}
    return {
        ours: layers[owner].parameter_shapes[theirs]
        for ours, (owner, _, theirs) in owners.items()
        if owner in layers and theirs in layers[owner].parameter_shapes
    }


def _joined_structures(
    layers: Mapping[str, Any], incoming: set[Connection]
) -> dict[str, BufferStructure]:
    """Return input name to the structure of all outputs that are connected to it."""
    ports: dict[str, list[Connection]] = {}
    for connection in sorted(incoming):
        ports.setdefault(connection.input_name, []).append(connection)
    return {port: _joined_structure(layers, port, ports[port]) for port in sorted(ports)}


def _joined_structure(
    layers: Mapping[str, Any], port: str, sources: Sequence[Connection]
) -> BufferStructure:
    structures = [
        layers[c.start_layer].get_shape(
            c.output_name[2:] if c.output_name.startswith("..") else f"outputs.{c.output_name}"
        )
        for c in sources
    ]
    try:
        return combine_buffer_structures(structures)
    except ValidationError as error:
        names = ", ".join(f"{c.start_layer}.{c.output_name}" for c in sources)
        raise NetworkValidationError(
            f"layer {sources[0].end_layer!r}, input {port!r}, joined from {names}: {error}."
        ) from None
