"""The layout: a tree of dicts with the position in memory of every buffer of a network.

View nodes have children, array nodes have a ``@shape``; both have an ``@index`` among their
siblings and, if contiguous, a ``@slice`` (start, stop) in feature units within the hub number
``@hub``. Further keys of array nodes:

* ``@context_size``: extra time steps at the end;
* ``@is_backward_only``: not used in a forward pass;
* ``@persistent`` and ``@initial_value``: running statistics;
* ``@null``: a delta that is not needed, and so cannot be read, with the reason; it has memory only
  as a part of a joined one;
* ``@needed``: of layers, those whose backward pass has to run;
* ``@sources``: for an input joined from several outputs, their paths in the joined order;
* ``@copy_of``: the same, if they cannot be adjacent and are copied in every pass;
* ``@lives``: the first and last step of the passes in which it owns its memory, if it is shared.

T and B are not known yet, so positions are relative. For example, ``{'@type': 'array', '@index': 0,
'@shape': ('T', 'B', 2), '@hub': 3, '@slice': (5, 7)}`` is the first child of its view, and consists
of the features 5 and 6 of hub 3: ``hub_array[..., 5:7]``, once that has its place (`placement`).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from brainstorm.errors import NetworkValidationError, unknown
from brainstorm.structure.aliases import find_aliases
from brainstorm.structure.architecture import FLAT_ARRAYS, Connection
from brainstorm.structure.buffer_structure import BufferStructure
from brainstorm.structure.hubs import Hub, arrange_sources, group_into_hubs
from brainstorm.structure.orders import (
    gather_array_nodes,
    get_all_sources,
    get_forced_orders,
    get_forward_closure,
    get_gradient_order,
    get_order,
    get_parameter_order,
    merge_connections,
)
from brainstorm.utils import get_normalized_path

Layers = Mapping[str, Any]
Node = dict[str, Any]
Sinks = dict[str, list[str]]

NULL_REASON = (
    "no parameter lies upstream, so this delta is not needed. "
    "Set net.keep_input_deltas = True to compute it."
)

#: The views of a layer, and its attribute with the structures of their arrays.
VIEWS = {
    "inputs": "in_shapes",
    "outputs": "out_shapes",
    "parameters": "parameter_shapes",
    "internals": "internal_shapes",
    "input_deltas": "in_shapes",
    "output_deltas": "out_shapes",
    "gradients": "parameter_shapes",
}
BACKWARD_VIEWS = ("input_deltas", "output_deltas", "gradients")


# -- the stub: names and shapes -----------------------------------------------------------------


def _view(index: int) -> Node:
    return {"@type": "BufferView", "@index": index}


def get_layout_stub_for_layer(layer: Any) -> Node:
    """Return the seven views of a layer with the shapes of their arrays, without slices."""
    stub = _view(0)
    for index, (category, shapes) in enumerate(VIEWS.items()):
        view = stub[category] = _view(index)
        for position, (name, structure) in enumerate(getattr(layer, shapes).items()):
            view[name] = structure.to_json(position)
            if category in BACKWARD_VIEWS:
                view[name]["@is_backward_only"] = True
    joints = {key: [tuple(g) for g in groups] for key, groups in layer.joint_buffers.items()}
    if "parameters" in joints:
        joints["gradients"] = joints["parameters"]
    for category, groups in joints.items():
        stub[category]["@joints"] = groups
    return stub


def create_layout_stub(layers: Layers) -> Node:
    """Return the whole tree without slices: ``parameters``, ``gradients``, then the layers."""
    flat = {"@type": "array", "@shape": (0,)}
    root = _view(0)
    root["parameters"] = {**flat, "@index": 0}
    root["gradients"] = {**flat, "@index": 1, "@is_backward_only": True}
    for index, (name, layer) in enumerate(layers.items(), start=2):
        root[name] = get_layout_stub_for_layer(layer)
        root[name]["@index"] = index
    return root


# -- connections --------------------------------------------------------------------------------


def get_backward_connection(connection: Connection, layers: Layers) -> tuple[str, str]:
    """Return the paths of the deltas that mirror a connection.

    They start at ``output_deltas``, at the gradient of a parameter, or at the internal ``dX`` that
    mirrors an internal ``X``.
    """
    end = f"{connection.end_layer}.input_deltas.{connection.input_name}"
    output = connection.output_name
    if not output.startswith(".."):
        return f"{connection.start_layer}.output_deltas.{output}", end
    category, _, name = output[2:].partition(".")
    if category == "parameters":
        return f"{connection.start_layer}.gradients.{name}", end
    mirrored = f"d{name}"
    if mirrored not in layers[connection.start_layer].internal_shapes:
        raise NetworkValidationError(
            f"connection {connection}: the delta of internal {name!r} goes to an internal "
            f"{mirrored!r}, which the layer does not have."
        )
    return f"{connection.start_layer}.internals.{mirrored}", end


def get_connections(layers: Layers) -> list[Connection]:
    """Return all connections between the layers, sorted."""
    return sorted({connection for layer in layers.values() for connection in layer.incoming})


# -- which deltas are needed --------------------------------------------------------------------


def _find_needed_deltas(layers: Layers, keep_input_deltas: bool = False) -> dict[str, set[str]]:
    """Return the layers whose backward pass has to run, each with the inputs whose delta it writes.

    Those are the deltas that lead to a parameter, or all if the layer cannot skip any. Deltas of
    the Input layer may be wanted too (`keep_input_deltas`). Layers are in topological order.
    """
    needed: dict[str, set[str]] = {}
    for name, layer in layers.items():
        ports = set(layer.in_shapes) - set(layer.computes_no_input_deltas_for)
        wanted = {
            connection.input_name
            for connection in layer.incoming
            if connection.input_name in ports and _leads_to_parameter(connection, layers, needed)
        }
        trainable = set(layer.parameter_shapes) - set(layer.computes_no_gradients_for)
        is_wanted_input = keep_input_deltas and not layer.in_shapes
        if trainable or is_wanted_input or wanted:
            needed[name] = wanted if layer.accepts_null_deltas else ports
    return needed


def _leads_to_parameter(connection: Connection, layers: Layers, needed: Collection[str]) -> bool:
    start = layers[connection.start_layer]
    if connection.output_name.startswith("..parameters"):
        return True
    if connection.output_name in start.takes_no_output_deltas_from:
        return False
    return connection.start_layer in needed


def _mark_deltas(layout: Node, layers: Layers, needed: Mapping[str, Collection[str]]) -> None:
    for name, layer in layers.items():
        if name in needed:
            layout[name]["@needed"] = True
        for port in layer.in_shapes:
            if port not in needed.get(name, ()):
                by_nature = port in layer.computes_no_input_deltas_for
                layout[name]["input_deltas"][port]["@null"] = (
                    f"layer {name!r} computes no delta for this input."
                    if by_nature
                    else NULL_REASON
                )
        for output in layer.out_shapes if name not in needed else ():
            layout[name]["output_deltas"][output]["@null"] = NULL_REASON


# -- the layout ---------------------------------------------------------------------------------


def create_layout(layers: Layers, keep_input_deltas: bool = False) -> tuple[list[Hub], Node]:
    """Plan the memory of a network.

    Args:
        layers: Name to layer, in topological order.
        keep_input_deltas: Whether the deltas of the Input layer get memory too.

    Returns:
        The hubs, and the layout tree with slices.

    Raises:
        NetworkValidationError: A connection starts at an internal without a delta, or a layer's
            ``joint_buffers`` cannot be adjacent.
    """
    layout = create_layout_stub(layers)
    _mark_deltas(layout, layers, _find_needed_deltas(layers, keep_input_deltas))
    nodes = dict(gather_array_nodes(layout))
    structures = _structures(layers)
    # Those without memory are left out: a delta may have none.
    aliases = {
        path: target
        for path, target in find_aliases(layers).items()
        if "@null" not in nodes[path] and "@null" not in nodes[target]
    }
    forward, backward, twins = _collect_sinks(layers, nodes, aliases)
    flat = {
        category: [path for path in nodes if f".{category}." in path and path not in aliases]
        for category in FLAT_ARRAYS
    }
    pinned = [*flat.values(), *_joint_internals(layers)]

    # Memory that several layers write one after the other has the name of the last output.
    last = {target: path for path, target in aliases.items() if ".outputs." in path}
    order, sharing = _arrange_forward(forward, structures, pinned, last)
    # The deltas of an input are joined like the input.
    place = {path: i for i, path in enumerate(order)}
    place.update((delta, place[path]) for delta, path in twins.items() if path in place)
    shared: Sinks = {}
    copies: Sinks = {}
    for sink, sources in (*forward.items(), *backward.items()):
        if sink.replace(".input_deltas.", ".inputs.") in sharing:
            shared[sink] = sorted(sources, key=place.__getitem__)
        else:
            copies[sink] = sources
    shared.update(flat)
    shared.update((path, [target]) for path, target in aliases.items())

    pinned_paths = [path for group in pinned for path in group]
    taken = {*shared, *pinned_paths}
    # Parts of a joined delta have memory; one that is not needed lacks the other layers' summands.
    joined = {path for paths in shared.values() for path in paths}
    own = [p for p in nodes if p not in taken and ("@null" not in nodes[p] or p in joined)]
    own.sort(key=lambda path: place.get(path, len(nodes)))
    hubs = group_into_hubs([*own, *pinned_paths], shared, pinned, structures)
    for hub in hubs:
        hub.is_backward_only = nodes[hub.sources[0]].get("@is_backward_only", False)
    _sort_hubs(hubs, list(nodes))
    _write_slices(layout, nodes, hubs, shared, copies)
    return hubs, layout


def _structures(layers: Layers) -> dict[str, BufferStructure]:
    """Return the structures of all arrays; a delta has that of its buffer."""
    return {
        f"{name}.{category}.{port}": structure
        for name, layer in layers.items()
        for category, shapes in VIEWS.items()
        for port, structure in getattr(layer, shapes).items()
    }


def _collect_sinks(
    layers: Layers, nodes: Mapping[str, Node], aliases: Mapping[str, str]
) -> tuple[Sinks, Sinks, dict[str, str]]:
    """Return the sources of all inputs and of their deltas, and the twin of each source delta."""
    forward: Sinks = {}
    backward: Sinks = {}
    twins: dict[str, str] = {}
    for connection in get_connections(layers):
        source = get_normalized_path(f"{connection.start_layer}.outputs", connection.output_name)
        sink = f"{connection.end_layer}.inputs.{connection.input_name}"
        source_delta, sink_delta = get_backward_connection(connection, layers)
        source, source_delta = aliases.get(source, source), aliases.get(source_delta, source_delta)
        forward.setdefault(sink, []).append(source)
        twins[source_delta] = source
        if "@null" not in nodes[sink_delta]:
            _check_reaches_internal(connection, layers)
            backward.setdefault(sink_delta, []).append(source_delta)
    return forward, backward, twins


def _check_reaches_internal(connection: Connection, layers: Layers) -> None:
    overwritten = "internals" in layers[connection.start_layer].can_overwrite
    if connection.output_name.startswith("..internals") and overwritten:
        raise NetworkValidationError(
            f"connection {connection}: layer {connection.start_layer!r} overwrites the deltas of "
            f"its internals, so this one would have no effect on training. Connect an output."
        )


def _joint_internals(layers: Layers) -> Iterator[list[str]]:
    """Yield the groups of internals that must be adjacent."""
    for name, layer in layers.items():
        for members in layer.joint_buffers.get("internals", ()):
            for member in members:
                if member not in layer.internal_shapes:
                    what = unknown("internal", member, layer.internal_shapes)
                    raise NetworkValidationError(f"layer {name!r}, joint_buffers: {what}")
            yield [f"{name}.internals.{member}" for member in members]


def _arrange_forward(
    forward: Mapping[str, list[str]],
    structures: Mapping[str, BufferStructure],
    pinned: list[list[str]],
    names: Mapping[str, str],
) -> tuple[list[str], set[str]]:
    """Return an order of the sources, and the inputs that are views of them in that order.

    It is alphabetical if possible, by `names` where a source has one.
    """
    candidates: dict[str, list[str]] = {}
    taken: set[tuple[str, str]] = set()
    for sink, paths in forward.items():
        # Inputs of one layer must not overlap, because an operation may write the deltas of both.
        claims = {(sink.partition(".")[0], path) for path in paths}
        # Joined on the last of several feature dimensions, sources interleave: never adjacent.
        joinable = len(paths) == 1 or len(structures[sink].feature_shape) == 1
        if joinable and not claims & taken:
            candidates[sink] = paths
            taken |= claims
    found = {path for paths in candidates.values() for path in paths}
    sources = sorted(found, key=lambda path: names.get(path, path))
    order, left_out = arrange_sources(sources, candidates, pinned)
    return order, set(candidates) - set(left_out)


def _sort_hubs(hubs: list[Hub], layout_order: list[str]) -> None:
    place = {path: i for i, path in enumerate(layout_order)}

    def key(hub: Hub) -> tuple[bool, int, bool, int]:
        first = min(hub.sources, key=place.__getitem__)
        is_internal = ".internals." in first
        return hub.is_backward_only, hub.buffer_type, is_internal, place[first]

    hubs.sort(key=key)


def _write_slices(
    layout: Node,
    nodes: Mapping[str, Node],
    hubs: list[Hub],
    shared: Mapping[str, list[str]],
    copies: Mapping[str, list[str]],
) -> None:
    for path in FLAT_ARRAYS:
        nodes[path]["@slice"] = (0, 0)
    _place_hubs(hubs, nodes)
    for path in FLAT_ARRAYS:
        nodes[path]["@shape"] = (nodes[path]["@slice"][1],)
    for sink, sources in shared.items():
        if len(sources) > 1 and ".inputs." in sink:
            nodes[sink]["@sources"] = sources
    for sink, sources in copies.items():
        nodes[sink]["@copy_of"] = sources
    for name in get_order(layout):
        if name not in FLAT_ARRAYS:
            for category in VIEWS:
                _write_view_slice(layout[name][category])


def layout_hubs(hubs: list[Hub], layout: Node) -> None:
    """Write the hub and the position of each array into the layout."""
    _place_hubs(hubs, dict(gather_array_nodes(layout)))


def _place_hubs(hubs: list[Hub], nodes: Mapping[str, Node]) -> None:
    for number, hub in enumerate(hubs):
        for path, feature_slice in hub.slices.items():
            nodes[path].update({"@hub": number, "@slice": feature_slice})


def _write_view_slice(view: Node) -> None:
    children = [view[name] for name in get_order(view)]
    slices = [(node.get("@hub"), *node.get("@slice", (0, 0))) for node in children]
    contiguous = all(
        hub is not None and hub == next_hub and stop == next_start
        for (hub, _, stop), (next_hub, next_start, _) in itertools.pairwise(slices)
    )
    if slices and slices[0][0] is not None and contiguous:
        view["@hub"] = slices[0][0]
        view["@slice"] = (slices[0][1], slices[-1][2])
