"""A trainer as a tree: its stepper, hooks, logs and network, for notebooks."""

from __future__ import annotations

from typing import Any

from brainstorm.display import Node, Tree
from brainstorm.errors import shown
from brainstorm.utils import flatten_items


def trainer_tree(trainer: Any, values: bool) -> Tree:
    """Return the parts of a trainer and its progress; with the values in the network's memory."""
    hooks = [Node(name, f"hooks.{name}", note=shown(hook)) for name, hook in trainer.hooks.items()]
    logs = [
        Node(path, f"logs.{path}", note=f"{len(entries)} entries, last {_short(entries[-1])}")
        for path, entries in flatten_items(trainer.logs)
        if entries
    ]
    nodes = [
        Node("stepper", "stepper", note=shown(trainer.stepper)),
        Node("hooks", "hooks", note="" if hooks else "none", children=tuple(hooks)),
        Node("logs", "logs", note="" if logs else "none", children=tuple(logs)),
    ]
    if trainer.net is not None:
        net = trainer.net.tree(values)
        nodes.append(Node("net", "net", note=net.title, children=net.nodes))
    epochs, updates = trainer.current_epoch_nr, trainer.current_update_nr
    return Tree(nodes, f"Trainer: {epochs} epochs, {updates} updates")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else shown(value)
