"""Two trainings at once, and one beside a program that keeps a processor busy.

    python -m benchmarks.together [--json FILE] [--seconds S]

Each training is a process with as many threads as it takes by default. What is in the table is its
speed as a share of its speed alone: the median of some rounds, in which the situations take turns.
Of two equal programs on the same processors each can have about half.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks import ours
from benchmarks.command import deliver, figures_parser
from benchmarks.tables import Row, as_text
from benchmarks.workloads import LEARNING_RATE, WORKLOADS, Workload
from brainstorm.handlers.native import NativeHandler

__all__ = ["main", "measure", "together_rows"]

COMPARED = {w.key: w for w in WORKLOADS if w.key in ("mlp", "deep_lstm", "transformer")}
ROUNDS = 3
#: Steps before the time begins.
WARM_UP = 10

SPINNING = [sys.executable, "-c", "while True: pass"]


def train(workload: Workload, seconds: float) -> None:
    """Train in this process when a line comes in, and print the steps per second."""
    del os.environ["OMP_NUM_THREADS"]  # it is ours; people mostly have none
    step = ours.contestant(workload, NativeHandler(), LEARNING_RATE).run
    for _ in range(WARM_UP):
        step()
    print("ready", flush=True)
    input()
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        step()
        count += 1
    print(count / (time.perf_counter() - start))


def speeds(key: str, seconds: float, trainings: int = 1, spinning: int = 0) -> list[float]:
    """Return the steps per second of trainings that run at the same time."""
    command = [sys.executable, "-m", "benchmarks.together", "--seconds", str(seconds)]
    with ExitStack() as stack:
        running = []
        for _ in range(trainings):
            process = subprocess.Popen(
                [*command, "--train", key],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            )  # fmt: skip
            running.append(stack.enter_context(process))
            process.stdout.readline()
        for _ in range(spinning):
            process = stack.enter_context(subprocess.Popen(SPINNING))
            stack.callback(process.kill)
        for process in running:
            process.stdin.write("go\n")
        return [float(process.stdout.readline()) for process in running]


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return the median speeds of each workload: alone, each of two, beside a busy loop."""
    situations = {"alone": {}, "two": {"trainings": 2}, "busy": {"spinning": 1}}
    found = []
    for key, workload in COMPARED.items():
        print(f"timing {workload.name}", file=sys.stderr)
        taken: dict[str, list[float]] = {name: [] for name in situations}
        for _ in range(ROUNDS):
            for name, others in situations.items():
                taken[name].append(statistics.mean(speeds(key, seconds, **others)))
        medians = {name: statistics.median(each) for name, each in taken.items()}
        found.append({"name": workload.name, **medians})
    return found


def together_rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the table of speeds."""
    rows = [["training", "steps/s alone", "each of two at once", "beside a busy loop"]]
    for row in found:
        shares = (f"{row[name] / row['alone']:.2f}" for name in ("two", "busy"))
        rows.append([row["name"], f"{row['alone']:.1f}", *shares])
    return rows


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    parser = figures_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="each time (%(default)s)")
    parser.add_argument("--train", choices=COMPARED, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(COMPARED[arguments.train], arguments.seconds)
        return
    found = measure(arguments.seconds)
    deliver(found, as_text(together_rows(found)), arguments)


if __name__ == "__main__":
    main()
