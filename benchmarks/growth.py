"""How the time of a training step grows with T, B, width and depth, beside PyTorch.

    python -m benchmarks.growth [--json FILE] [--seconds S]

Through the shortest times goes a line ``a + b size`` (``size ** 2`` for the width, whose weights
are a square) with the least relative errors: a is the cost of a step as such, b that of each unit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import ours
from benchmarks.command import deliver, figures_parser
from benchmarks.contestants import FLOAT32, NATIVE, PYTORCH, find_entries
from benchmarks.steps import machine
from benchmarks.tables import as_text, growth_rows, headline
from benchmarks.timing import take_turns
from benchmarks.workloads import Dense, Lstm, Workload
from brainstorm.handlers import NumpyHandler

__all__ = ["SERIES", "Series", "fit", "main", "measure"]


class Series(NamedTuple):
    """Workloads that differ in one size.

    Attributes:
        name: What they are.
        symbol: The size.
        sizes: Its values.
        make: Returns the workload of a size.
        power: Of the size that the time is expected to grow with.
    """

    name: str
    symbol: str
    sizes: tuple[int, ...]
    make: Callable[[int], Workload]
    power: int = 1


def _mlp(B: int = 128, width: int = 256, depth: int = 2) -> Workload:
    return Workload("mlp", "MLP", 1, B, (width,), 10, (Dense(width),) * depth)


SERIES = (
    Series(
        "LSTM 64-128, B=16", "T", (25, 50, 100, 200, 400),
        lambda T: Workload("lstm", "LSTM", T, 16, (64,), 64, (Lstm(128),)),
    ),
    Series("MLP, two layers of 256", "B", (32, 64, 128, 256, 512, 1024), lambda B: _mlp(B=B)),
    Series(
        "MLP, two layers, B=128", "width", (64, 128, 256, 512, 1024),
        lambda width: _mlp(width=width), power=2,
    ),
    Series(
        "MLP, layers of 256, B=128", "depth", (1, 2, 4, 8, 16, 32), lambda depth: _mlp(depth=depth),
    ),
)  # fmt: skip


def measure(seconds: float) -> dict[str, Any]:
    """Return the times of all series, for NativeHandler and PyTorch, and the lines through them."""
    entries = [e for e in find_entries() if (e.name, e.precision) in _COMPARED]
    measured = []
    for series in SERIES:
        print(f"timing {series.name}", file=sys.stderr)
        found: dict[str, Any] = {entry.name: {"times": []} for entry in entries}
        for size in series.sizes:
            workload = series.make(size)
            numbers = ours.parameters(ours.build(workload, NumpyHandler()))
            calls = {entry.name: entry.make(workload, numbers).run for entry in entries}
            for name, times in take_turns(calls, seconds).items():
                found[name]["times"].append(times.minimum)
        for result in found.values():
            result["fit"], result["error"] = fit(series.sizes, result["times"], series.power)
        description = {k: v for k, v in series._asdict().items() if k != "make"}
        measured.append({**description, "found": found})
    versions = [entry.version for entry in entries if entry.version]
    return {"machine": machine(versions), "series": measured}


_COMPARED = ((NATIVE, FLOAT32), (PYTORCH, FLOAT32))


def fit(
    sizes: Sequence[int], times: Sequence[float], power: int
) -> tuple[tuple[float, float], float]:
    """Return a and b of ``a + b size ** power``, and the largest relative error."""
    taken = np.array(times)
    columns = np.stack([np.ones(len(sizes)), np.array(sizes, float) ** power], axis=1)
    line = np.linalg.lstsq(columns / taken[:, None], np.ones(len(sizes)), rcond=None)[0]
    return (float(line[0]), float(line[1])), float(np.abs(columns @ line / taken - 1).max())


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per size (%(default)s)")
    arguments = parser.parse_args()
    result = measure(arguments.seconds)
    deliver(result, f"{headline(result)}\n{as_text(growth_rows(result))}", arguments)


if __name__ == "__main__":
    main()
