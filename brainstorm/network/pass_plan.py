"""The first writer of each delta and gradient: when to clear, overwrite and add.

Deltas and gradients are sums over all uses of a value. Clearing all of them before each backward
pass would cost a pass through memory, but the first writers are known when the network is built.
The first writer of a range overwrites it if it can; a range that it cannot overwrite, or that has
no writer, is cleared just before it is needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brainstorm.structure.layout import Node
from brainstorm.utils import get_by_path

#: Start and stop in the flat gradients.
Interval = tuple[int, int]

#: Hub number, start and stop in feature units.
Range = tuple[int, int, int]


@dataclass
class BackwardStep:
    """One layer's step of a backward pass.

    Attributes:
        layer: Name of the layer; ``''`` for the clearing at the very end.
        clear: Ranges to fill with zeros before the step.
        overwritten: ``'input_deltas.x'`` and ``'gradients.x'`` that the layer must overwrite.
        unneeded: Inputs whose delta the layer must skip.
        copies: Path of the delta of each copied input to the deltas that it is passed on to after
            the layer's step, each with whether it is added (else it overwrites).
    """

    layer: str
    clear: list[Range] = field(default_factory=list)
    overwritten: frozenset[str] = frozenset()
    unneeded: frozenset[str] = frozenset()
    copies: dict[str, list[bool]] = field(default_factory=dict)


class _Coverage:
    """The ranges of all hubs that already hold values of this pass."""

    def __init__(self) -> None:
        self.covered: dict[int, list[tuple[int, int]]] = {}  # disjoint, in order

    def missing(self, wanted: Range) -> list[Range]:
        hub, start, stop = wanted
        gaps = []
        covered = self.covered.get(hub, [])
        for place in range(_first_that_ends(covered, start), len(covered)):
            begin, end = covered[place]
            if begin > start:
                gaps.append((hub, start, min(begin, stop)))
            start = max(start, end)
            if start >= stop:
                break
        if start < stop:
            gaps.append((hub, start, stop))
        return [gap for gap in gaps if gap[1] < gap[2]]

    def add(self, wanted: Range) -> None:
        hub, start, stop = wanted
        covered = self.covered.setdefault(hub, [])
        first = _first_that_ends(covered, start)
        last = bisect_right(covered, stop, key=lambda part: part[0])
        if first < last:  # adjacent ranges are merged
            start, stop = min(start, covered[first][0]), max(stop, covered[last - 1][1])
        covered[first:last] = [(start, stop)]

    def claim(self, wanted: Range, can_overwrite: bool, clear: list[Range]) -> bool:
        """Cover a range; return whether its writer overwrites (else the rest is cleared)."""
        gaps = self.missing(wanted)
        overwrites = can_overwrite and gaps == [wanted]
        if not overwrites:
            clear.extend(gaps)
        self.add(wanted)
        return overwrites


def _first_that_ends(covered: list[tuple[int, int]], start: int) -> int:
    """Return the index of the first range that ends at or after `start`."""
    return bisect_left(covered, start, key=lambda part: part[1])


def plan_backward_pass(
    layers: Mapping[str, Any], layout: Node, accumulate: bool = False
) -> list[BackwardStep]:
    """Return the steps of a backward pass, which may add to the present gradients."""
    coverage = _Coverage()
    all_gradients = _range(layout["gradients"])
    if accumulate and all_gradients:
        coverage.add(all_gradients)
    steps = [
        _plan_layer(layout, name, layers[name], coverage)
        for name in reversed([*layers])
        if "@needed" in layout[name]
    ]
    gaps = coverage.missing(all_gradients) if all_gradients else []
    return [*steps, BackwardStep("", gaps)] if gaps else steps


def _plan_layer(layout: Node, name: str, layer: Any, coverage: _Coverage) -> BackwardStep:
    node, step = layout[name], BackwardStep(name)
    in_place = []
    for output, output_node in _children(node["output_deltas"]):
        wanted = _range(output_node)
        in_place.append(wanted)
        if wanted and output not in layer.takes_no_output_deltas_from:
            coverage.claim(wanted, False, step.clear)
    overwritten, unneeded = set(), set()
    for category, skipped in (
        ("input_deltas", layer.computes_no_input_deltas_for),
        ("gradients", layer.computes_no_gradients_for),
    ):
        for target, target_node in _children(node[category]):
            wanted = _range(target_node)
            if wanted is None:
                unneeded.add(target)
            elif target not in skipped and (
                wanted in in_place
                or coverage.claim(wanted, category in layer.can_overwrite, step.clear)
            ):
                overwritten.add(f"{category}.{target}")
    step.overwritten, step.unneeded = frozenset(overwritten), frozenset(unneeded)
    for target, target_node in _children(node["input_deltas"]):
        if "@copy_of" in target_node:
            adds = step.copies[f"{name}.input_deltas.{target}"] = []
            for source in target_node["@copy_of"]:
                node = get_by_path(layout, source)
                if "@null" not in node:
                    wanted = _range(node)
                    adds.append(not (wanted and coverage.claim(wanted, True, step.clear)))
    return step


def find_finished_gradients(
    steps: Sequence[BackwardStep], layout: Node
) -> list[tuple[str, list[Interval]]]:
    """Return, step by step, the parts of the flat gradients that no later step writes to.

    Shared parameters, and those connected to other layers, have several writers.
    """
    hub, first, _ = _range(layout["gradients"]) or (None, 0, 0)
    written: list[list[Interval]] = []
    for step in steps:
        ranges = list(step.clear) if not step.layer else _written_ranges(layout, step)
        written.append([(a - first, b - first) for h, a, b in ranges if h == hub])
    free, finished = _Coverage(), []
    for step, intervals in zip(reversed(steps), reversed(written), strict=True):
        own = []
        for a, b in intervals:
            own += [(start, stop) for _, start, stop in free.missing((0, a, b))]
            free.add((0, a, b))
        finished.append((step.layer, own))
    return finished[::-1]


def _written_ranges(layout: Node, step: BackwardStep) -> list[Range]:
    """Return all ranges that a layer's step may write to."""
    node = layout[step.layer]
    nodes = [child for kind in ("gradients", "input_deltas") for _, child in _children(node[kind])]
    for sink in step.copies:
        nodes += [get_by_path(layout, source) for source in get_by_path(layout, sink)["@copy_of"]]
    return [wanted for found in nodes if (wanted := _range(found))]


def _children(view: Node) -> list[tuple[str, Node]]:
    return [(name, node) for name, node in view.items() if not name.startswith("@")]


def _range(node: Node) -> Range | None:
    return (node["@hub"], *node["@slice"]) if "@hub" in node else None
