"""Training steps and predictions of typical networks, beside the same in other libraries.

    python -m benchmarks.steps [--json FILE] [--memory FILE] [--seconds S] [--only KEY ...]

What is compared was timed in turns within one run. Times are milliseconds: the minimum and, in
brackets, the median. `benchmarks.tables` says what the columns of the table are.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import THREADS, ours
from benchmarks.command import deliver, figures_parser
from benchmarks.contestants import Entry, find_entries
from benchmarks.memory import peak_ratios
from benchmarks.tables import as_text, headline, step_rows
from benchmarks.timing import seconds_of_others, take_turns
from benchmarks.workloads import WORKLOADS, Workload
from brainstorm.handlers import NumpyHandler

__all__ = ["machine", "main", "measure", "measure_limits"]

#: Rows and columns of the matrices whose product is the limit.
LIMIT_SIZE = 2048


def measure_limits(entries: Sequence[Entry], seconds: float) -> dict[str, float]:
    """Return, by precision, the highest rate of a large product that anybody reaches: FLOP/s."""
    a, b = np.random.RandomState(0).standard_normal((2, LIMIT_SIZE, LIMIT_SIZE)).astype(np.float32)
    calls = {(e.precision, e.name): e.product(a, b) for e in entries if e.product is not None}
    limits: dict[str, float] = {}
    for (precision, _), times in take_turns(calls, seconds).items():
        rate = 2.0 * LIMIT_SIZE**3 / (1e-3 * times.minimum)
        limits[precision] = max(rate, limits.get(precision, 0.0))
    return limits


def time_workload(workload: Workload, entries: Sequence[Entry], seconds: float) -> dict[str, Any]:
    """Return the workload's times by precision and name, and the FLOP."""
    net = ours.build(workload, NumpyHandler())
    numbers = ours.parameters(net)
    calls = {
        (e.precision, e.name): e.make(workload, numbers).run
        for e in entries
        if e.trains or workload.predicts
    }
    start, others = time.perf_counter(), seconds_of_others()
    times: dict[str, Any] = {}
    for (precision, name), found in take_turns(calls, seconds).items():
        times.setdefault(precision, {})[name] = found.share(len(workload.batches))._asdict()
    return {
        "key": workload.key,
        "name": workload.name,
        "flop": ours.count_flop(workload, net),
        "others": (seconds_of_others() - others) / (time.perf_counter() - start),
        "times": times,
    }


def measure(keys: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return the machine, the limits, who took part, and the times of all workloads."""
    entries, limits, timed = find_entries(), {}, []
    for workload in WORKLOADS:
        if workload.key in keys:
            print(f"timing {workload.name}", file=sys.stderr)
            for precision, rate in measure_limits(entries, seconds / 10).items():
                limits[precision] = max(rate, limits.get(precision, 0.0))
            timed.append(time_workload(workload, entries, seconds))
    versions = [entry.version for entry in entries if entry.version]
    return {
        "machine": machine(versions),
        "limits": limits,
        "ours": sorted({entry.name for entry in entries if entry.is_ours}),
        "workloads": timed,
    }


def machine(versions: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the times depend on: processor, threads and versions."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "threads": THREADS,
        "versions": [f"Python {platform.python_version()}", f"NumPy {np.__version__}", *versions],
    }


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    keys = [workload.key for workload in WORKLOADS]
    parser = figures_parser(__doc__)
    parser.add_argument("--memory", metavar="FILE", type=Path, help="from benchmarks.memory")
    parser.add_argument("--seconds", type=float, default=25.0, help="per workload (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    arguments = parser.parse_args()
    ratios = peak_ratios(json.loads(arguments.memory.read_text())) if arguments.memory else {}
    result = measure(arguments.only, arguments.seconds)
    deliver(result, f"{headline(result)}\n{as_text(step_rows(result, ratios))}", arguments)


if __name__ == "__main__":
    main()
