"""Training steps on a GPU, beside PyTorch: eager, compiled, and as a CUDA graph.

    python -m benchmarks.gpu PART FILE [--seconds S] [--budget S] [--only KEY ...] [--smoke]

Part 2 is beside PyTorch's eager step and its CUDA graph, part 3 beside torch.compile, in float32,
bfloat16 and TF32 (PyTorch's flags for products and for convolutions are set alike). Times are
milliseconds between CUDA events, the minimum and, in brackets, the median. Each row is added to a
FILE when it is known; rows that it has are not measured again. What fails ends the program, as the
GPU may have failed with it: another one goes on. With ``--smoke`` tiny workloads run once each, on
the tests' CPU driver where no GPU is.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks import ours
from benchmarks.contestants import BFLOAT16, FLOAT32, PYTORCH
from benchmarks.gpu_ours import COMPILED, EAGER, GRAPH, TF32, TRACED
from benchmarks.gpu_report import gpu_rows
from benchmarks.gpu_timing import take_turns_on_gpu
from benchmarks.gpu_workloads import GPU_WORKLOADS, shrunk
from benchmarks.tables import as_text
from benchmarks.workloads import Workload
from brainstorm.handlers import NumpyHandler
from tools.gpu_results import Results

__all__ = ["main", "measure"]

#: Rows and columns of the matrices whose product is the limit.
LIMIT_SIZE = 8192
#: Who takes part in a part, and the precisions of all of them, in order.
PARTS = {2: (TRACED, EAGER, PYTORCH, GRAPH), 3: (TRACED, COMPILED)}
_PRECISIONS = (FLOAT32, BFLOAT16, TF32)


class Sizes(NamedTuple):
    """How much is measured: the workloads, the seconds of a row, the matrices of the limit."""

    workloads: Sequence[Workload]
    seconds: float
    limit: int


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


def measure(part: int, sizes: Sizes, results: Results, end: float) -> None:
    """Add all rows of a part that are not known, as long as there is time."""
    peer = find_torch()
    for what, row in _rows(part, sizes, peer):
        if what in results:
            continue
        if time.monotonic() > end:
            print("THE TIME IS OVER: the same command goes on from here")
            return
        print(f"measuring {what}", file=sys.stderr)
        try:
            results.add(what, **row())
        except Exception as error:
            results.add(what, error=f"{type(error).__name__}: {error}")
            raise


def _rows(part: int, sizes: Sizes, peer: ModuleType | None) -> Iterator[tuple[str, Any]]:
    """Yield what each row is about, and what measures it."""
    yield "machine", lambda: {"device": device(peer)}
    names = PARTS[part]
    for precision in _PRECISIONS:
        if peer is not None:
            peer.set_precision(precision)
        yield f"limit {precision}", lambda p=precision: _limit(peer, p, sizes)
        for workload in sizes.workloads:
            yield (
                f"{workload.key}, {precision}, part {part}",
                lambda w=workload, p=precision: _times(peer, w, p, names, sizes.seconds),
            )


def _times(
    peer: ModuleType | None, workload: Workload, precision: str, names: Sequence[str],
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    from benchmarks import gpu_ours

    net = ours.build(workload, NumpyHandler())
    calls = gpu_ours.contestants(workload, precision, names)
    if peer is not None:
        calls |= peer.contestants(workload, ours.parameters(net), precision, names)
    times = take_turns_on_gpu(calls, seconds)
    return {
        "workload": workload.name,
        "precision": precision,
        "flop": ours.count_flop(workload, net),
        "times": {name: found._asdict() for name, found in times.items()},
    }


def _limit(peer: ModuleType | None, precision: str, sizes: Sizes) -> dict[str, Any]:
    """Return the highest rate of a large product that anybody reaches: FLOP/s."""
    from benchmarks import gpu_ours

    size = sizes.limit
    a, b = np.random.RandomState(0).standard_normal((2, size, size)).astype(np.float32)
    makers = {"ours": gpu_ours.product, **({"torch": peer.product} if peer else {})}
    times = take_turns_on_gpu({k: f(a, b, precision) for k, f in makers.items()}, sizes.seconds)
    fastest = min(t.minimum for t in times.values())
    return {"precision": precision, "limit": 2.0 * size**3 / (1e-3 * fastest)}


def device(peer: ModuleType | None) -> str:
    """Return what the times depend on: GPU, driver and versions."""
    from brainstorm.handlers.pycuda import PyCudaHandler

    info = PyCudaHandler().info()
    versions = [f"Python {platform.python_version()}", f"PyCUDA {info['pycuda']}"]
    versions += [info["products"], *(peer.versions() if peer else ["no PyTorch"])]
    return f"{info['device']}, CUDA driver {info['driver']}; {', '.join(versions)}"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is not known, and print all that is."""
    keys = [workload.key for workload in GPU_WORKLOADS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", type=int, choices=PARTS)
    parser.add_argument("file", type=Path, help="lines of JSON")
    parser.add_argument("--seconds", type=float, default=2.0, help="per row (%(default)s)")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds, to begin rows in")
    parser.add_argument("--only", nargs="+", choices=keys, default=keys, metavar="KEY")
    parser.add_argument("--smoke", action="store_true", help="tiny workloads")
    arguments = parser.parse_args(argv)
    end = time.monotonic() + arguments.budget
    workloads = [workload for workload in GPU_WORKLOADS if workload.key in arguments.only]
    sizes = Sizes(workloads, arguments.seconds, LIMIT_SIZE)
    if arguments.smoke:
        from tests import cudashim

        cudashim.install()
        sizes = Sizes([shrunk(workload) for workload in workloads], 0.0, 32)
    results = Results(arguments.file)
    try:
        measure(arguments.part, sizes, results, end)
    finally:
        print(as_text(gpu_rows(list(results.lines.values()))))


if __name__ == "__main__":
    main()
