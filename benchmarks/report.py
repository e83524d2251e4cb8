"""Writes what was measured into docs/performance.md and docs/performance-gpu.md, with pictures.

    python -m benchmarks.report [DIRECTORY] [--gpu DIRECTORY]

takes the files that `make bench` left in the directory (output/bench), each with the name of its
benchmark, and those that came back from a GPU (output/gpu); what is not there is left out. In a
page, it replaces what is between the lines ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; the
words around are written by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import gpu_report
from benchmarks.first_step import start_rows
from benchmarks.long_sequences import long_rows
from benchmarks.memory import memory_rows, peak_ratios
from benchmarks.plots import plot_growth, plot_steps
from benchmarks.tables import (
    as_markdown,
    growth_rows,
    headline,
    replace_section,
    step_rows,
)
from benchmarks.together import together_rows
from benchmarks.varying import varying_rows

__all__ = ["PAGE", "main", "write_page"]

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
RESULTS, GPU_RESULTS = Path("output/bench"), Path("output/gpu")

#: Benchmark to what makes its table.
TABLES = {
    "memory": memory_rows,
    "growth": growth_rows,
    "long_sequences": long_rows,
    "varying": varying_rows,
    "together": together_rows,
    "first_step": start_rows,
}


def _load(path: Path) -> Any:
    return json.loads(path.read_text())


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=RESULTS, help="of the figures")
    parser.add_argument("--gpu", type=Path, default=GPU_RESULTS, help="of those of a GPU")
    arguments = parser.parse_args()
    files = sorted(arguments.gpu.glob("part[23].jsonl"))
    if files:
        page = gpu_report.PAGE.read_text(encoding="utf-8")
        page = gpu_report.render_page(page, gpu_report.read_lines(files))
        gpu_report.PAGE.write_text(page, encoding="utf-8")
    if (arguments.directory / "steps.json").exists():
        write_page(arguments.directory)
    elif not files:
        raise SystemExit(f"nothing was measured: {arguments.directory} and {arguments.gpu}")


def write_page(directory: Path) -> None:
    """Write docs/performance.md."""
    found = {name: _load(directory / f"{name}.json") for name in ("steps", *TABLES)}
    steps = found["steps"]
    sections = {
        "machine": f"{headline(steps)}.",
        "steps": as_markdown(step_rows(steps, peak_ratios(found["memory"]))),
        **{name: as_markdown(rows_of(found[name])) for name, rows_of in TABLES.items()},
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, content in sections.items():
        page = replace_section(page, name, content)
    PAGE.write_text(page, encoding="utf-8")
    plot_steps(steps, PAGE.parent / "images" / "steps.png")
    plot_growth(found["growth"], PAGE.parent / "images" / "growth.png")


if __name__ == "__main__":
    main()
