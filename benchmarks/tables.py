"""What was measured as tables, for the terminal and for the page.

The columns of the table of steps: the time of everybody in milliseconds, minimum (median); `ratio`
is how many times faster than the fastest peer our fastest is; `limit` is the share of the
machine's rate of matrix products of this precision, measured between the workloads, that the
products of our step alone reach; `memory` is our peak of resident memory over PyTorch's, from
`benchmarks.memory`; `others` is the processor time that other programs took meanwhile, in percent
of one core: above 20 or so, repeat the run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from benchmarks.timing import Times

__all__ = [
    "Best",
    "Row",
    "as_markdown",
    "as_text",
    "find_best",
    "growth_rows",
    "headline",
    "replace_section",
    "step_rows",
]

#: Cells; a table's first row is its header.
Row: TypeAlias = list[str]


class Best(NamedTuple):
    """The fastest of ours and of the peers (None: nobody), in milliseconds."""

    ours: float
    peer: float | None


def find_best(times: Mapping[str, Mapping[str, float]], ours: Sequence[str]) -> Best:
    """Return the shortest minimum of ours and of the others."""
    minima = {name: found["minimum"] for name, found in times.items()}
    peers = [minimum for name, minimum in minima.items() if name not in ours]
    return Best(min(minima[name] for name in ours if name in minima), min(peers, default=None))


def headline(result: Mapping[str, Any]) -> str:
    """Return where it was measured, and the limits."""
    machine = result["machine"]
    parts = [", ".join(machine["versions"]), f"{machine['cpu']}, {machine['threads']} threads"]
    parts += [
        f"limit {rate / 1e9:,.0f} GFLOP/s {name}" for name, rate in result.get("limits", {}).items()
    ]
    return "; ".join(parts)


def step_rows(result: Mapping[str, Any], memory: Mapping[str, float]) -> list[Row]:
    """Return a row per workload and precision of products.

    Args:
        result: What `benchmarks.steps` measured.
        memory: Our peak of memory over PyTorch's, by the key of the workload. May be empty.
    """
    workloads = result["workloads"]
    names = dict.fromkeys(name for w in workloads for t in w["times"].values() for name in t)
    rows = [["workload", *names, "ratio", "limit", "memory", "others"]]
    for workload in workloads:
        for precision, times in workload["times"].items():
            best = find_best(times, result["ours"])
            least = workload["flop"] / result["limits"][precision]
            first = precision == "float32"
            peak = memory.get(workload["key"]) if first else None
            rows.append([
                workload["name"] if first else f"the same, {precision}",
                *(str(Times(**times[name])) if name in times else "" for name in names),
                f"{best.peer / best.ours:.2f}" if best.peer else "",
                f"{100 * least / (1e-3 * best.ours):.0f} %",
                f"{peak:.2f}" if peak else "",
                f"{100 * workload['others']:.0f} %",
            ])  # fmt: skip
    return rows


def growth_rows(result: Mapping[str, Any]) -> list[Row]:
    """Return a row per series and library: the times, and the line through them."""
    rows = [["what grows", "", "milliseconds", "fit", "largest error"]]
    for series in result["series"]:
        sizes = ", ".join(map(str, series["sizes"]))
        for name, found in series["found"].items():
            times = ", ".join(f"{milliseconds:.3g}" for milliseconds in found["times"])
            a, b = found["fit"]
            size = series["symbol"] + ("²" if series["power"] == 2 else "")
            rows.append([
                f"{series['name']}: {series['symbol']} = {sizes}", name, times,
                f"{a:.3g} + {b:.3g} {size}", f"{100 * found['error']:.0f} %",
            ])  # fmt: skip
    return rows


def as_text(rows: Sequence[Row]) -> str:
    """Return a table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a table for the page."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])


def replace_section(page: str, name: str, content: str) -> str:
    """Return the page with other content in a section.

    Raises:
        ValueError: The page has no such section.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"the page: expected the lines {begin} and {end}, found none")
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", page)
