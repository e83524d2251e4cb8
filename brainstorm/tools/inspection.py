"""Looking at a network from outside: as text and as a drawing."""

from __future__ import annotations

import os
import sys

from brainstorm.errors import MissingDependencyError
from brainstorm.network import Network
from brainstorm.optional import require
from brainstorm.structure.buffer_structure import format_shape

__all__ = ["draw_network", "get_network_info", "print_network_info"]


def get_network_info(network: Network) -> str:
    """Return a text with all layers, their options, outputs and parameters."""
    lines = [repr(network), ""]
    for name, layer in network.layers.items():
        options = ", ".join(f"{key}={value!r}" for key, value in layer.kwargs.items())
        lines.append(f"{name} ({layer.type_name}) {options}".rstrip())
        for connection in sorted(layer.incoming):
            lines.append(f"    from {connection}")
        for parameter, structure in layer.parameter_shapes.items():
            lines.append(f"    {parameter} {format_shape(structure.shape)}")
    return "\n".join(lines)


def print_network_info(network: Network) -> None:
    """Write `get_network_info` to standard output."""
    sys.stdout.write(get_network_info(network) + "\n")


def draw_network(network: Network, file_name: str | os.PathLike[str] = "network.png") -> None:
    """Draw layers and connections into a file.

    Args:
        network: The network.
        file_name: Its ending chooses the format; ``.dot`` writes Graphviz text and needs nothing
            else, the others (``.png``, ``.svg``, ``.pdf``) need the extra ``draw``.

    Raises:
        MissingDependencyError: The graphviz package or its program ``dot`` is missing.
    """
    file_name = os.fspath(file_name)
    text = _as_dot(network)
    if file_name.endswith(".dot"):
        with open(file_name, "w", encoding="utf-8") as file:
            file.write(text)
        return
    graphviz = require("graphviz", "draw")
    try:
        graphviz.Source(text).render(outfile=file_name, cleanup=True)
    except graphviz.ExecutableNotFound as error:
        raise MissingDependencyError(
            f"drawing {file_name!r} needs the program 'dot' of Graphviz on the PATH. Install "
            f"Graphviz, or write the text with file_name='network.dot'."
        ) from error


def _as_dot(network: Network) -> str:
    lines = ["digraph network {", '  node [shape=box, fontname="sans-serif"];']
    for name, layer in network.layers.items():
        shapes = "".join(
            f"\\n{port} {format_shape(structure.shape)}"
            for port, structure in layer.out_shapes.items()
        )
        lines.append(f'  "{name}" [label="{name}\\n{layer.type_name}{shapes}"];')
    for layer in network.layers.values():
        for c in sorted(layer.outgoing):
            ports = f"{c.output_name} > {c.input_name}"
            label = "" if ports == "default > default" else f' [label="{ports}"]'
            lines.append(f'  "{c.start_layer}" -> "{c.end_layer}"{label};')
    lines.append("}")
    return "\n".join(lines) + "\n"
