"""PyTorch on a GPU: eager, compiled, and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
import torch

from benchmarks import torch_peer
from benchmarks.contestants import BFLOAT16, PYTORCH
from benchmarks.gpu_ours import COMPILED, GRAPH, TF32
from benchmarks.gpu_timing import Timed
from benchmarks.workloads import Numbers, Workload

__all__ = ["contestants", "is_usable", "product", "set_precision", "versions"]

_WARM_UP = 3


def is_usable() -> bool:
    """Return whether this PyTorch computes on the GPU."""
    return torch.cuda.is_available()


def versions() -> list[str]:
    """Return what is compared with."""
    return [torch_peer.VERSION, f"cuDNN {torch.backends.cudnn.version()}"]


def set_precision(precision: str) -> None:
    """Allow TF32 in products and convolutions, or forbid it in both."""
    torch.backends.cuda.matmul.allow_tf32 = precision == TF32
    torch.backends.cudnn.allow_tf32 = precision == TF32


class _StreamClock:
    def record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def milliseconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        return start.elapsed_time(end)


def contestants(
    workload: Workload, numbers: Numbers, precision: str, wanted: Container[str]
) -> dict[str, Timed]:
    """Return training steps in those ways that are wanted, and that PyTorch can do."""
    options: dict[str, Any] = {"device": "cuda", "is_half": precision == BFLOAT16}

    def step(**more: Any) -> Callable[[], object]:
        return torch_peer.contestant(workload, numbers, **options, **more).run

    ways = {
        PYTORCH: step,
        COMPILED: lambda: step(is_compiled=True),
        GRAPH: lambda: _graph(step()),
    }
    found = {}
    for name, make in ways.items():
        if name not in wanted:
            continue
        try:
            found[name] = Timed(make(), _StreamClock())
        except Exception as error:
            print(f"{name} CANNOT DO {workload.name} IN {precision}: {error}")
    return found


def _graph(step: Callable[[], object]) -> Callable[[], None]:
    """Capture a step, warm as PyTorch's documentation wants it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: object = step) -> None:  # whose data and parameters the graph only points to
        graph.replay()

    return replay


def product(a: np.ndarray, b: np.ndarray, precision: str) -> Timed:
    """Return the product of two matrices."""
    call = torch_peer.product(a, b, is_half=precision == BFLOAT16, device="cuda")
    return Timed(call, _StreamClock())
