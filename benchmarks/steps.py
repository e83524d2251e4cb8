"""Training steps of typical networks, beside the same in PyTorch.

    python -m benchmarks.steps [--json FILE] [--seconds S] [--only KEY ...]

What is compared was timed in turns within one run. Times are milliseconds: the minimum and, in
brackets, the median. `ratio` is how many times faster than the fastest peer we are. `limit` is
the share of the machine's rate of float32 matrix products, measured between the workloads, that
the products of the line alone reach. `others` is the processor time that other programs took
meanwhile, in percent of one core: above 20 or so, repeat the run.

A further handler is a row of `HANDLERS`, a further peer one of `find_peers`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import THREADS
from benchmarks.timing import Call, Times, seconds_of_others, take_turns
from benchmarks.workloads import WORKLOADS, Workload, brainstorm_calls, build, count_flop
from brainstorm.handlers import NumpyHandler

__all__ = ["HANDLERS", "find_peers", "main", "measure"]

HANDLERS = {"NumpyHandler": NumpyHandler}

#: Rows and columns of the matrices whose product is the limit.
LIMIT_SIZE = 2048


class Peer(NamedTuple):
    """Another library: its version, its calls for a workload, and its product of two matrices."""

    version: str
    calls: Callable[[Workload], dict[str, Call]]
    product: Callable[[np.ndarray, np.ndarray], Call]


def find_peers() -> dict[str, Peer]:
    """Return the peers that are installed, by name."""
    try:
        from benchmarks import torch_peer
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return {}
    return {"PyTorch": Peer(torch_peer.VERSION, torch_peer.torch_calls, torch_peer.product)}


def measure_limit(peers: Mapping[str, Peer], seconds: float) -> float:
    """Return the highest rate of a large matrix product that anybody reaches, in FLOP/s."""
    a, b = np.random.RandomState(0).standard_normal((2, LIMIT_SIZE, LIMIT_SIZE)).astype(np.float32)
    out = np.empty_like(a)
    calls = {"NumPy": Call(lambda: np.matmul(a, b, out=out))}
    calls.update((name, peer.product(a, b)) for name, peer in peers.items())
    fastest = min(times.minimum for times in take_turns(calls, seconds).values())
    return 2.0 * LIMIT_SIZE**3 / (1e-3 * fastest)


def time_workload(
    workload: Workload, peers: Mapping[str, Peer], seconds: float
) -> list[dict[str, Any]]:
    """Return one record per handler and phase: who took how long, and the FLOP."""
    contestants = {name: brainstorm_calls(workload, make()) for name, make in HANDLERS.items()}
    contestants.update((name, peer.calls(workload)) for name, peer in peers.items())
    flop = count_flop(build(workload, NumpyHandler()))
    # Those who are compared with each other follow each other.
    times = take_turns(
        {(name, phase): contestants[name][phase] for phase in flop for name in contestants},
        seconds,
    )
    return [
        {
            "workload": workload.name,
            "handler": handler,
            "phase": phase,
            "flop": flop[phase],
            "ours": times[handler, phase]._asdict(),
            "peers": {name: times[name, phase]._asdict() for name in peers},
        }
        for handler in HANDLERS
        for phase in flop
    ]


def measure(keys: list[str], seconds: float) -> dict[str, Any]:
    """Return versions, the limit in FLOP/s, and the records of all workloads."""
    peers, limit, records = find_peers(), 0.0, []
    for workload in WORKLOADS:
        if workload.key in keys:
            print(f"timing {workload.name}", file=sys.stderr)
            limit = max(limit, measure_limit(peers, seconds / 10))
            start, others = time.perf_counter(), seconds_of_others()
            timed = time_workload(workload, peers, seconds)
            share = (seconds_of_others() - others) / (time.perf_counter() - start)
            records += [{**record, "others": share} for record in timed]
    for record in records:
        ours = record["ours"]["minimum"]
        best = min((times["minimum"] for times in record["peers"].values()), default=None)
        record["ratio"] = None if best is None else best / ours
        record["fraction_of_limit"] = record["flop"] / limit / (1e-3 * ours)
    versions = [f"Python {platform.python_version()}", f"NumPy {np.__version__}"]
    versions += [peer.version for peer in peers.values()]
    return {
        "versions": versions,
        "cpu": cpu_name(),
        "threads": THREADS,
        "limit": limit,
        "records": records,
    }


def cpu_name() -> str:
    """Return the model of the processor, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def table(result: Mapping[str, Any]) -> str:
    """Return the result as lines to read."""
    lines = [
        f"{', '.join(result['versions'])}; {result['cpu']}, {result['threads']} threads; "
        f"limit {result['limit'] / 1e9:.0f} GFLOP/s",
        f"{'what':<54}{'ours ms':>18}{'peer ms':>18}{'ratio':>8}{'limit':>7}{'others':>8}",
    ]
    for record in result["records"]:
        best = min((Times(**times) for times in record["peers"].values()), default="-")
        ratio = "-" if record["ratio"] is None else f"{record['ratio']:.2f}x"
        lines.append(
            f"{record['workload']:<32}{record['handler']:<13}{record['phase']:<9}"
            f"{Times(**record['ours'])!s:>18}{best!s:>18}"
            f"{ratio:>8}{100 * record['fraction_of_limit']:>5.0f} %{100 * record['others']:>6.0f} %"
        )
    if not any(record["peers"] for record in result["records"]):
        lines.append("No peer is installed: pip install 'brainstorm[bench]' brings PyTorch.")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    keys = [workload.key for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--seconds", type=float, default=10.0, help="per workload (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    arguments = parser.parse_args()
    result = measure(arguments.only, arguments.seconds)
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
