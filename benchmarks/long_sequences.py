"""Very long sequences: time and memory of a step should grow with T, and no faster.

    python -m benchmarks.long_sequences [--json FILE] [--lengths T ...]

An LSTM is trained on one sequence, for each T in a process of its own. `passes` are the forward and
the backward pass, called directly; `step` is a replayed training step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import THREADS, ours
from benchmarks.command import deliver, figures_parser
from benchmarks.memory import MEBIBYTE, resident
from benchmarks.tables import Row, as_text
from benchmarks.workloads import LEARNING_RATE, Lstm, Workload
from brainstorm.handlers.native import NativeHandler
from brainstorm.training import SgdStepper

__all__ = ["LENGTHS", "long_rows", "main", "measure"]

LENGTHS = (2_000, 8_000, 50_000, 200_000)
#: Of which the shortest time counts, after one that does not.
REPEATS = 3
#: Seconds after which the process of a length is ended.
PATIENCE = 60.0


def report(T: int) -> None:
    """Measure in this process, and print milliseconds and bytes."""
    imported = resident("VmRSS")
    workload = Workload("", "LSTM", T, 1, (16,), 8, (Lstm(32),))
    net = ours.build(workload, NativeHandler(threads=THREADS), memory="compact")
    stepper = SgdStepper(LEARNING_RATE)
    stepper.start(net)

    def passes() -> None:
        net.forward_pass(training_pass=True)
        net.backward_pass()

    found = {"passes": _milliseconds(passes), "step": _milliseconds(stepper.run)}
    peak = resident("VmHWM") - imported
    print(json.dumps({**found, "planned": net.memory(T, 1).total, "peak": peak}))


def _milliseconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - start))
    return min(taken[1:])


def measure(lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return for each T what `report` prints; nothing more where it has not come to an end."""
    found = []
    for T in lengths:
        print(f"timing T={T:,}", file=sys.stderr)
        command = [sys.executable, "-m", "benchmarks.long_sequences", "--report", str(T)]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            found.append({"T": T})
        else:
            found.append({"T": T, **json.loads(done.stdout)})
    return found


def long_rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row per T: milliseconds, microseconds per time step, and MiB."""
    rows = [["LSTM 16-32 + FC 8, B=1", "passes", "step", "per time step", "planned", "peak"]]
    for row in found:
        cells = ["no end"] * 5
        if "step" in row:
            passes, step = row["passes"], row["step"]
            sizes = (f"{row[name] / MEBIBYTE:.1f} MiB" for name in ("planned", "peak"))
            cells = [
                f"{passes:.1f} ms",
                f"{step:.1f} ms",
                f"{1e3 * step / row['T']:.2f} µs",
                *sizes,
            ]
        rows.append([f"T = {row['T']:,}", *cells])
    return rows


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--lengths", nargs="+", metavar="T", type=int, default=LENGTHS)
    parser.add_argument("--report", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report:
        report(arguments.report)
        return
    found = measure(arguments.lengths)
    deliver(found, as_text(long_rows(found)), arguments)


if __name__ == "__main__":
    main()
