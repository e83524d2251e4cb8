"""What was measured on a GPU as the tables of docs/performance-gpu.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contestants import PYTORCH
from benchmarks.gpu_ours import COMPILED, EAGER, GRAPH, TRACED
from benchmarks.tables import Row, as_markdown, replace_section
from benchmarks.timing import Times

__all__ = ["PAGE", "gpu_rows", "read_lines", "render_page"]

PAGE = Path(__file__).parent.parent / "docs" / "performance-gpu.md"
#: Those whom our traced step is compared with, each by what was measured in turns with it.
_PEERS = {PYTORCH: "/ PyTorch", GRAPH: "/ CUDA graph", COMPILED: "/ compiled"}


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the lines of files of `tools.gpu_results` that have no error.

    Raises:
        ValueError: They were not measured on a GPU.
    """
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    for line in lines:
        if "cudashim" in line.get("device", ""):
            raise ValueError(f"expected times of a GPU, got those of {line['device']}")
    return [line for line in lines if not line.get("error")]


def gpu_rows(lines: Sequence[dict[str, Any]]) -> list[Row]:
    """Return a row per workload and precision.

    How many times faster than PyTorch's ways our traced step is; and the share of the device's rate
    of products that the products of our step alone reach.
    """
    limits = _limits(lines)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        if "times" in line:
            groups.setdefault((line["workload"], line["precision"]), []).append(line)
    columns = (TRACED, EAGER, PYTORCH, GRAPH, COMPILED)
    rows = [["workload", "precision", *columns, *_PEERS.values(), "limit"]]
    for (workload, precision), group in groups.items():
        found = {name: line["times"] for line in reversed(group) for name in line["times"]}
        cells = [str(Times(**found[name][name])) if name in found else "" for name in columns]
        ratios = [
            f"{found[name][name]['minimum'] / found[name][TRACED]['minimum']:.2f}"
            if name in found
            else ""
            for name in _PEERS
        ]
        share = ""
        if precision in limits:
            rate = group[0]["flop"] / (1e-3 * found[TRACED][TRACED]["minimum"])
            share = f"{100 * rate / limits[precision]:.0f} %"
        rows.append([workload, precision, *cells, *ratios, share])
    return rows


def _limits(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    limits: dict[str, float] = {}
    for line in lines:
        if "limit" in line:
            precision = line["precision"]
            limits[precision] = max(limits.get(precision, 0.0), line["limit"])
    return limits


def render_page(page: str, lines: Sequence[dict[str, Any]]) -> str:
    """Return the page with what was measured."""
    devices = dict.fromkeys(line["device"] for line in lines if "device" in line)
    limits = [f"{rate / 1e12:,.1f} TFLOP/s {name}" for name, rate in _limits(lines).items()]
    machine = f"{'; '.join(devices)}. Rate of products: {', '.join(limits)}."
    page = replace_section(page, "machine", machine)
    return replace_section(page, "steps", as_markdown(gpu_rows(lines)))
