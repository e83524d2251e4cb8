"""Network information as text."""

from __future__ import annotations

import sys

from brainstorm.network import Network
from brainstorm.structure.summary import summarize


def get_network_info(net: Network) -> str:
    """Return a text with all layers: the table of their properties, and the tree of buffers."""
    return f"{summarize(net.layers)}\n\n{net.tree()!r}"


def print_network_info(net: Network) -> None:
    """Write `get_network_info` to standard output."""
    sys.stdout.write(get_network_info(net) + "\n")
