"""How long the memory of a network takes to plan, and how that grows with depth.

python -m benchmarks.layout_time
"""

from __future__ import annotations

import statistics
import time

from brainstorm.layers import FullyConnected, Input
from brainstorm.structure.architecture import (
    generate_architecture,
    instantiate_layers_from_architecture,
)
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.layout import create_layout

ROUNDS = 5
DEPTHS = (30, 60, 120, 240)
TARGET = 0.1


def chain(depth: int, skips: tuple[int, ...] = (1, 2, 3)) -> ConstructionWrapper:
    """Wire layers each of which is fed by those 1, 2 and 3 places before it."""
    members = [Input({"default": ("T", "B", 1)})]
    for number in range(depth):
        layer = FullyConnected(1, name=f"F{number}")
        for skip in skips:
            members[-min(skip, len(members))] >> layer
        members.append(layer)
    return members[0]


def main() -> None:
    """Print minimum and median for chains of several depths."""
    for depth in DEPTHS:
        layers = instantiate_layers_from_architecture(generate_architecture(chain(depth)))
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            create_layout(layers)
            times.append(time.perf_counter() - start)
        goal = f", target {TARGET} s" if depth == 60 else ""
        print(
            f"layout of {depth:>3} layers with skips 1, 2, 3: {min(times):.4f} s (median "
            f"{statistics.median(times):.4f} s){goal}"
        )


if __name__ == "__main__":
    main()
