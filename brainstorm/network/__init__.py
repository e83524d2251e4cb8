"""Networks: layers, their memory, and the passes over it."""

from __future__ import annotations

from brainstorm.network.network import Network

__all__ = ["Network"]
