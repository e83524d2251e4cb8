"""Training whose T and B both change at every step: what a step takes, and what memory does.

    python -m benchmarks.varying [--json FILE] [--largest N]

An LSTM is trained on batches of all pairs of T and B up to N, in random order, and then again in
another one. Beside the time of a step stands that of the same steps where T and B stay what they
are, so that the step is one replay. Times are means, with the pauses of the garbage collector: over
all pairs, and where these stay, over some that are drawn at random.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks import THREADS, ours
from benchmarks.command import deliver, figures_parser
from benchmarks.memory import MEBIBYTE, resident
from benchmarks.tables import Row, as_text
from benchmarks.workloads import LEARNING_RATE, Lstm, Workload
from brainstorm.handlers.native import NativeHandler
from brainstorm.training import SgdStepper

__all__ = ["main", "measure", "varying_rows"]

#: How many pairs are timed where they stay, and how many steps of each, of which the best counts.
SAMPLE, REPEATS = 100, 20

_Pair = tuple[int, int]


def measure(largest: int) -> dict[str, Any]:
    """Return milliseconds per step and the bytes of resident memory, before and after."""
    workload = Workload("", "LSTM 16-32 + FC 8", largest, largest, (16,), 8, (Lstm(32),))
    net, data = ours.build(workload, NativeHandler(threads=THREADS)), workload.data()
    stepper = SgdStepper(LEARNING_RATE)
    stepper.start(net)

    def step(T: int, B: int) -> float:
        start = time.perf_counter()
        net.provide_external_data({name: values[:T, :B] for name, values in data.items()})
        stepper.run()
        return 1e3 * (time.perf_counter() - start)

    step(largest, largest)
    before = resident("VmRSS")
    pairs = list(itertools.product(range(1, largest + 1), repeat=2))
    rounds = [[step(*pair) for pair in _shuffled(pairs, seed)] for seed in (1, 2)]
    after = resident("VmRSS")
    sample = _shuffled(pairs, seed=3)[:SAMPLE]
    own = [min(step(*pair) for _ in range(REPEATS)) for pair in sample]
    first, again, staying = (float(np.mean(times)) for times in (*rounds, own))
    name = f"{workload.name}, T and B in 1 to {largest}: {len(pairs):,} pairs"
    times = {"first": first, "again": again, "own": staying}
    return {"name": name, **times, "resident": (before, after)}


def _shuffled(pairs: list[_Pair], seed: int) -> list[_Pair]:
    return [pairs[k] for k in np.random.RandomState(seed).permutation(len(pairs))]


def varying_rows(found: Mapping[str, Any]) -> list[Row]:
    """Return the table: milliseconds per step, and MiB."""
    before, after = (f"{bytes_ / MEBIBYTE:.0f}" for bytes_ in found["resident"])
    times = [f"{found[name]:.3f}" for name in ("first", "again", "own")]
    return [
        [
            "training",
            "pairs that are new",
            "again",
            "own step",
            "own / again",
            "MiB before",
            "after",
        ],
        [found["name"], *times, f"{found['own'] / found['again']:.2f}", before, after],
    ]


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--largest", metavar="N", type=int, default=40, help="(%(default)s)")
    arguments = parser.parse_args()
    found = measure(arguments.largest)
    deliver(found, as_text(varying_rows(found)), arguments)


if __name__ == "__main__":
    main()
