"""Training on several ranks of this machine, and a model for many machines.

    python -m benchmarks.mpi [--ranks 2 4] [--page] [--json FILE]

starts ``mpiexec`` for each number of ranks and prints three tables: what an update costs by the
size of the gradients, whole steps beside what the model says of them, and the model for up to 1,024
ranks. With ``--page`` they replace those of docs/distributed.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.mpi_model import FABRICS, efficiency, fit
from benchmarks.tables import Row, as_markdown, replace_section
from benchmarks.workloads import WORKLOADS

__all__ = ["main", "measure", "model_rows", "step_rows", "sum_rows"]

PAGE = Path(__file__).parent.parent / "docs" / "distributed.md"
NAMES = {workload.key: workload.name for workload in WORKLOADS}
MANY = (4, 16, 64, 256, 1024)

Found = dict[int, dict[str, Any]]


def measure(ranks: int) -> dict[str, Any]:
    """Return what `benchmarks.mpi_job` finds on so many ranks of this machine."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "found.json")
        command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "benchmarks.mpi_job", file]
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env={**os.environ, **one_thread})
        return json.loads(file.read_text())


def sum_rows(found: Found) -> list[Row]:
    """Return the table of what an update costs beside the passes, in microseconds."""
    header = ["ranks", "values", "arrays", "ours", "packed", "one by one", "packed / ours"]
    rows = [header]
    for ranks, result in found.items():
        for row in result["sums"]:
            times = [row[name] for name in ("ours", "packed", "one by one")]
            rows.append(
                [
                    str(ranks),
                    f"{row['values']:,}",
                    str(row["arrays"]),
                    *(f"{1e6 * seconds:,.0f}" for seconds in times),
                    f"{times[1] / times[0]:.2f}",
                ]
            )
    return rows


def step_rows(found: Found) -> list[Row]:
    """Return the table of whole steps in milliseconds, beside what is expected of them."""
    rows = [
        ["ranks", "network", "values", "alone", "expected", "measured", "in slices", "efficiency"]
    ]
    for ranks, result in found.items():
        sums = result["sums"]
        latency, per_byte = fit([s["values"] for s in sums], [s["ours"] for s in sums])
        for row in result["steps"]:
            expected = row["alone"] + 2 * latency + 4 * per_byte * row["values"]
            parts = (row["alone"], expected, row["step"], row["sliced"])
            times = [1e3 * seconds for seconds in parts]
            rows.append(
                [
                    str(ranks),
                    NAMES[row["key"]],
                    f"{row['values']:,}",
                    *(f"{ms:.3f}" for ms in times),
                    f"{100 * row['alone'] / row['step']:.0f} %",
                ]
            )
    return rows


def model_rows(steps: list[dict[str, Any]]) -> list[Row]:
    """Return the table of efficiencies in percent, without and with slices."""
    rows = [["fabric", "network", *(f"{ranks:,} ranks" for ranks in MANY)]]
    for fabric in FABRICS:
        for row in steps:
            cells = []
            for ranks in MANY:
                both = (
                    efficiency(fabric, ranks, row["values"], row["alone"], overlaps)
                    for overlaps in (False, True)
                )
                cells.append(" to ".join(f"{100 * share:.0f}" for share in both))
            rows.append([fabric.name, NAMES[row["key"]], *cells])
    return rows


def main() -> None:
    """Measure and print, or write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="numbers of ranks")
    parser.add_argument("--page", action="store_true", help="write docs/distributed.md")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    found = {ranks: measure(ranks) for ranks in options.ranks}
    if options.json:
        options.json.write_text(json.dumps(found))
    sections = {
        "sums": as_markdown(sum_rows(found)),
        "steps": as_markdown(step_rows(found)),
        "model": as_markdown(model_rows(found[options.ranks[0]]["steps"])),
    }
    page = PAGE.read_text(encoding="utf-8") if options.page else ""
    for name, content in sections.items():
        if options.page:
            page = replace_section(page, name, content)
        else:
            print(f"{content}\n")
    if options.page:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
