"""Training steps on a GPU, beside PyTorch: eager, compiled, and as a CUDA graph.

    python -m benchmarks.gpu [--json FILE] [--seconds S] [--only KEY ...] [--smoke]

Everybody computes in the same precision: float32; TF32 products (PyTorch's flags for products and
for convolutions are set alike); bfloat16 products. Times are milliseconds between CUDA events, the
minimum and, in brackets, the median. With ``--smoke`` tiny workloads run once each, on the tests'
CPU driver where no GPU is; otherwise the tables of docs/performance-gpu.md are written too.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.contestants import PYTORCH
from benchmarks.gpu_timing import take_turns_on_gpu
from benchmarks.gpu_workloads import GPU_WORKLOADS, shrunk
from benchmarks.tables import Row, as_markdown, as_text, replace_section
from benchmarks.timing import Times
from benchmarks.workloads import Workload
from brainstorm.handlers import NumpyHandler

__all__ = ["gpu_rows", "main", "measure", "render_page"]

PAGE = Path(__file__).parent.parent / "docs" / "performance-gpu.md"
#: Rows and columns of the matrices whose product is the limit.
LIMIT_SIZE = 8192


def find_torch() -> ModuleType | None:
    """Return `benchmarks.gpu_torch` if PyTorch can use the GPU; if not, say it."""
    try:
        from benchmarks import gpu_torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        gpu_torch = None
    if gpu_torch is not None and gpu_torch.is_usable():
        return gpu_torch
    print("NO PYTORCH WITH CUDA HERE: OUR STEPS ARE TIMED ALONE", file=sys.stderr)
    return None


def measure(workloads: Sequence[Workload], seconds: float, limit_size: int) -> dict[str, Any]:
    """Return the device, its rate of products, and the times of all workloads."""
    from benchmarks import gpu_ours

    peer, limits = find_torch(), {}
    timed = [{"key": w.key, "name": w.name, "flop": _flop(w), "times": {}} for w in workloads]
    for precision in gpu_ours.PRECISIONS:
        if peer is not None:
            peer.set_precision(precision)
        limits[precision] = _product_rate(peer, precision, limit_size, seconds)
        for workload, found in zip(workloads, timed, strict=True):
            print(f"timing {workload.name}, {precision}", file=sys.stderr)
            calls = gpu_ours.contestants(workload, precision)
            if peer is not None:
                numbers = ours.parameters(ours.build(workload, NumpyHandler()))
                calls |= peer.contestants(workload, numbers, precision)
            times = take_turns_on_gpu(calls, seconds)
            found["times"][precision] = {name: t._asdict() for name, t in times.items()}
    return {"device": device(peer), "limits": limits, "workloads": timed}


def _flop(workload: Workload) -> float:
    return ours.count_flop(workload, ours.build(workload, NumpyHandler()))


def _product_rate(peer: ModuleType | None, precision: str, size: int, seconds: float) -> float:
    """Return the highest rate of a large product that anybody reaches: FLOP/s."""
    from benchmarks import gpu_ours

    a, b = np.random.RandomState(0).standard_normal((2, size, size)).astype(np.float32)
    makers = {"ours": gpu_ours.product, **({"torch": peer.product} if peer else {})}
    times = take_turns_on_gpu({k: f(a, b, precision) for k, f in makers.items()}, seconds)
    return 2.0 * size**3 / (1e-3 * min(t.minimum for t in times.values()))


def device(peer: ModuleType | None) -> str:
    """Return what the times depend on: GPU, driver and versions."""
    from brainstorm.handlers.pycuda import PyCudaHandler

    info = PyCudaHandler().info()
    versions = [f"Python {platform.python_version()}", f"PyCUDA {info['pycuda']}"]
    versions += [info["products"], *(peer.versions() if peer else ["no PyTorch"])]
    return f"{info['device']}, CUDA driver {info['driver']}; {', '.join(versions)}"


def gpu_rows(result: Mapping[str, Any]) -> list[Row]:
    """Return a row per workload and precision.

    How many times faster than PyTorch, and than its CUDA graph, our traced step is; and the share
    of the device's rate of products that the products of our step alone reach.
    """
    from benchmarks.gpu_ours import EAGER, TRACED

    peers = (PYTORCH, "torch.compile", "PyTorch, CUDA graph")
    columns = (TRACED, EAGER, *peers)
    rows = [["workload", "precision", *columns, "/ PyTorch", "/ CUDA graph", "limit"]]
    for workload in result["workloads"]:
        for precision, times in workload["times"].items():
            best = times[TRACED]["minimum"]
            ratios = (
                f"{times[name]['minimum'] / best:.2f}" if name in times else ""
                for name in (peers[0], peers[2])
            )
            rate = workload["flop"] / (1e-3 * best)
            cells = (str(Times(**times[name])) if name in times else "" for name in columns)
            share = f"{100 * rate / result['limits'][precision]:.0f} %"
            rows.append([workload["name"], precision, *cells, *ratios, share])
    return rows


def render_page(page: str, result: Mapping[str, Any]) -> str:
    """Return the page with what was measured."""
    limits = [f"{rate / 1e12:,.1f} TFLOP/s {name}" for name, rate in result["limits"].items()]
    machine = f"{result['device']}. Rate of products: {', '.join(limits)}."
    page = replace_section(page, "machine", machine)
    return replace_section(page, "steps", as_markdown(gpu_rows(result)))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and write to files."""
    keys = [workload.key for workload in GPU_WORKLOADS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--seconds", type=float, default=3.0, help="per row (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    parser.add_argument("--smoke", action="store_true", help="tiny workloads, no page")
    arguments = parser.parse_args(argv)
    workloads = [workload for workload in GPU_WORKLOADS if workload.key in arguments.only]
    if arguments.smoke:
        from tests import cudashim

        cudashim.install()
        result = measure([shrunk(workload) for workload in workloads], 0.0, limit_size=32)
    else:
        result = measure(workloads, arguments.seconds, LIMIT_SIZE)
        PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    print(result["device"])
    print(as_text(gpu_rows(result)))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
