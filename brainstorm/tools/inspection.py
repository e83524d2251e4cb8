"""Looking at a network from outside, as text."""

from __future__ import annotations

import sys

from brainstorm.network import Network
from brainstorm.structure.summary import summarize

__all__ = ["get_network_info", "print_network_info"]


def get_network_info(net: Network) -> str:
    """Return a text with all layers: a table of what they are, and the tree of what they have."""
    return f"{summarize(net.layers)}\n\n{net.tree()!r}"


def print_network_info(net: Network) -> None:
    """Write `get_network_info` to standard output."""
    sys.stdout.write(get_network_info(net) + "\n")
