"""Networks as text, and as drawings: text for Graphviz, and pictures if Graphviz is installed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from brainstorm.disk import atomic_file
from brainstorm.errors import MissingDependencyError, ValidationError
from brainstorm.network import Network
from brainstorm.network.network import check_network
from brainstorm.network.summary import summarize
from brainstorm.optional import require
from brainstorm.structure.buffer_structure import format_shape

#: Characteristic of a layer to the color of its box; the first match counts.
COLORS = {"source": "#e3e3e3", "loss": "#f9d5ce", "stats": "#fbeec2", "parameters": "#d6e6f7"}


def get_network_info(net: Network) -> str:
    """Return a text with all layers: the table of their properties, and the tree of buffers."""
    check_network("get_network_info", net)
    return f"{summarize(net.layers)}\n\n{net.tree()!r}"


def print_network_info(net: Network) -> None:
    """Write `get_network_info` to standard output."""
    sys.stdout.write(get_network_info(net) + "\n")


def draw_network(network: Network, file_name: str | os.PathLike[str] = "network.png") -> None:
    """Draw layers and connections into a file.

    Args:
        network: The network.
        file_name: Its ending chooses the format; ``.dot`` writes Graphviz text and has no
            requirements; the others (``.png``, ``.svg``, ``.pdf``) need the extra ``draw``.

    Raises:
        MissingDependencyError: The graphviz package or its program ``dot`` is missing.
        ValidationError: The name has no ending of a format.
    """
    file_name = os.fspath(file_name)
    text, ending = network_as_dot(network), Path(file_name).suffix.removeprefix(".")
    content = text.encode() if ending == "dot" else _render(text, ending, repr(file_name))
    with atomic_file(file_name) as temporary:
        temporary.write_bytes(content)


def network_as_svg(network: Network) -> str:
    """Return the drawing as SVG, for a page; needs the extra ``draw``.

    Raises:
        MissingDependencyError: The graphviz package or its program ``dot`` is missing.
    """
    svg = _render(network_as_dot(network), "svg", "an SVG").decode()
    return svg[svg.index("<svg") :]  # without the header of a file


def _render(text: str, ending: str, what: str) -> bytes:
    graphviz = require("graphviz", "draw")
    if ending not in graphviz.FORMATS:
        raise ValidationError(
            f"drawing {what}: expected a name that ends in a format of Graphviz, such as .png, "
            f".svg, .pdf or .dot."
        )
    try:
        return graphviz.Source(text).pipe(format=ending)
    except graphviz.ExecutableNotFound as error:
        raise MissingDependencyError(
            f"drawing {what} needs the program 'dot' of Graphviz on the PATH. Install Graphviz, or "
            f"write the text with file_name='network.dot'."
        ) from error


def network_as_dot(network: Network) -> str:
    """Return the drawing as text for Graphviz."""
    check_network("network_as_dot", network)
    lines = [
        "digraph network {",
        '  node [shape=box, style="rounded,filled", fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=9, color="#555555", fontcolor="#555555"];',
    ]
    for name, layer in network.layers.items():
        label = r"\n".join(map(_escape, _describe(name, layer)))
        facts = layer.characteristics.flags
        color = next((color for fact, color in COLORS.items() if fact in facts), "white")
        lines.append(f'  "{name}" [label="{label}", fillcolor="{color}"];')
    for layer in network.layers.values():
        for c in sorted(layer.outgoing):
            ports = _escape(f"{c.output_name} > {c.input_name}")
            label = "" if ports == "default > default" else f' [label="{ports}"]'
            lines.append(f'  "{c.start_layer}" -> "{c.end_layer}"{label};')
    return "\n".join([*lines, "}", ""])


def _describe(name: str, layer: Any) -> list[str]:
    """Return the lines in the box of a layer."""
    lines = [name] if name == layer.type_name else [name, layer.type_name]
    for port, structure in layer.out_shapes.items():
        start = "" if port == "default" else f"{port} "
        lines.append(start + format_shape(structure.shape))
    owned = (p for p in layer.parameter_shapes if p not in layer.shared_parameters)
    if size := sum(layer.parameter_shapes[p].feature_size for p in owned):
        lines.append(f"{size:,} parameters")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
