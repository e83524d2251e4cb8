"""Memory of training steps and predictions: planned, and at the peak, beside PyTorch.

    python -m benchmarks.memory [--json FILE] [--only KEY ...]

Each is measured in a process of its own that does a few steps (or predictions) and nothing else.
`planned` is what the network allocates, to the byte. The peaks are of resident memory, with the
interpreter, the libraries and the parameters in it; in brackets, what is above the memory after the
imports. `ratio` is our peak with strategy `compact` over PyTorch's. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import deliver, figures_parser
from benchmarks.tables import Row, as_text
from benchmarks.workloads import WORKLOADS, Contestant, Numbers, Workload

__all__ = ["COMPACT", "main", "measure", "memory_rows", "peak_ratios"]

COMPACT = "NativeHandler, compact"
NATIVE, NUMPY, PYTORCH = "NativeHandler", "NumpyHandler, compact", "PyTorch"

#: How many steps are done: the memory of the second is that of all that follow.
STEPS = 5
MEBIBYTE = 2**20


def resident(field: str) -> int:
    """Return a size in bytes from what Linux says of this process.

    Not `resource.getrusage`: its maximum starts with that of the process that this one came from.

    Args:
        field: ``'VmRSS'`` for the present, ``'VmHWM'`` for the largest resident memory so far.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


# -- in the process that is measured --------------------------------------------------------------


def _import_ours(handler: str, memory: str) -> Callable[[Workload, Numbers], Contestant]:
    from benchmarks import THREADS, ours
    from brainstorm.handlers import NumpyHandler
    from brainstorm.handlers.native import NativeHandler

    def make(workload: Workload, _: Numbers) -> Contestant:
        chosen = NativeHandler(threads=THREADS) if handler == NATIVE else NumpyHandler()
        return ours.contestant(workload, chosen, memory=memory)

    return make


def _import_torch() -> Callable[[Workload, Numbers], Contestant]:
    from benchmarks import torch_peer

    return torch_peer.contestant


IMPORTS: dict[str, Callable[[], Callable[[Workload, Numbers], Contestant]]] = {
    COMPACT: lambda: _import_ours(NATIVE, "compact"),
    NATIVE: lambda: _import_ours(NATIVE, "inspectable"),
    NUMPY: lambda: _import_ours(NUMPY, "compact"),
    PYTORCH: _import_torch,
}


def report(name: str, workload: Workload, file: Path) -> None:
    """Do the steps in this process, and print what they took."""
    make = IMPORTS[name]()
    imported = resident("VmRSS")
    run = make(workload, dict(_load(file))).run
    for _ in range(STEPS):
        run()
    print(json.dumps({"peak": resident("VmHWM"), "imported": imported}))


def _load(file: Path) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    with np.load(file) as arrays:
        for name in sorted({path.partition(".")[0] for path in arrays}):
            own = (path for path in arrays if path.partition(".")[0] == name)
            yield name, {path.partition(".")[2]: arrays[path] for path in own}


# -- in the process that compares -----------------------------------------------------------------


def measure(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return, for each workload, the planned bytes by strategy and the peaks by name."""
    found = []
    for workload in WORKLOADS:
        if workload.key in keys:
            print(f"measuring {workload.name}", file=sys.stderr)
            found.append(_measure(workload))
    return found


def _measure(workload: Workload) -> dict[str, Any]:
    from benchmarks import ours
    from brainstorm.handlers import NumpyHandler

    planned = {}
    for memory in ("inspectable", "compact"):
        net = ours.build(workload, NumpyHandler(), memory)
        planned[memory] = net.memory(workload.T, workload.B).total
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "parameters.npz"
        arrays = {f"{n}.{p}": a for n, own in ours.parameters(net).items() for p, a in own.items()}
        np.savez(file, **arrays)
        peaks = {name: _run(name, workload, file) for name in IMPORTS}
    found = {"key": workload.key, "name": workload.name, "planned": planned}
    return {**found, "peaks": {name: peak for name, peak in peaks.items() if peak}}


def _run(name: str, workload: Workload, file: Path) -> dict[str, int] | None:
    """Return what `report` prints in a fresh process; nothing if the library is not installed."""
    command = [sys.executable, "-m", __spec__.name, "--report", name, workload.key, str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No module named 'torch'" in done.stderr:
        return None
    done.check_returncode()
    peak: dict[str, int] = json.loads(done.stdout)
    return peak


def memory_rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row per workload, in MiB."""
    names = dict.fromkeys(name for workload in found for name in workload["peaks"])
    rows, ratios = [["MiB", "planned", "compact", *names, "ratio"]], peak_ratios(found)
    for workload in found:
        planned, peaks = workload["planned"], workload["peaks"]
        row = [workload["name"], *(f"{planned[s] / MEBIBYTE:.1f}" for s in planned)]
        for peak in peaks.values():
            above = (peak["peak"] - peak["imported"]) / MEBIBYTE
            row.append(f"{peak['peak'] / MEBIBYTE:.0f} ({above:.0f})")
        ratio = ratios.get(workload["key"])
        rows.append([*row, f"{ratio:.2f}" if ratio else ""])
    return rows


def peak_ratios(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return our peak over PyTorch's, by the key of the workload."""
    return {
        workload["key"]: workload["peaks"][COMPACT]["peak"] / workload["peaks"][PYTORCH]["peak"]
        for workload in found
        if PYTORCH in workload["peaks"]
    }


def main() -> None:
    """Measure, print, and write to a file if asked to."""
    workloads = {workload.key: workload for workload in WORKLOADS}
    parser = figures_parser(__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=workloads, default=list(workloads), metavar="KEY"
    )
    parser.add_argument("--report", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.report:
        name, key, file = arguments.report
        report(name, workloads[key], Path(file))
        return
    found = measure(arguments.only)
    deliver(found, as_text(memory_rows(found)), arguments)


if __name__ == "__main__":
    main()
