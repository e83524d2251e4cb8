"""This library on a GPU: operation by operation, and by CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np

from benchmarks import ours
from benchmarks.contestants import BFLOAT16, FLOAT32
from benchmarks.gpu_timing import Timed
from benchmarks.workloads import Workload
from brainstorm.handlers.pycuda import PyCudaHandler
from brainstorm.handlers.pycuda.driver import pushed

__all__ = [
    "COMPILED",
    "EAGER",
    "GRAPH",
    "PRECISIONS",
    "TF32",
    "TRACED",
    "DeviceClock",
    "contestants",
    "product",
]

TF32 = "TF32"
#: What the factors of products are rounded to, and our name for it.
PRECISIONS = {FLOAT32: "f32", TF32: "tf32", BFLOAT16: "bf16"}
TRACED, EAGER = "ours, traced", "ours, eager"
#: PyTorch's, besides its eager step.
COMPILED, GRAPH = "torch.compile", "PyTorch, CUDA graph"


class DeviceClock:
    """Times on a GPU, by events in a handler's stream."""

    def __init__(self, handler: PyCudaHandler) -> None:
        import pycuda.driver

        self._event, self._device = pycuda.driver.Event, handler._device

    def record(self) -> Any:
        """Return an event at the end of what is in the stream."""
        with pushed(self._device.context):
            return self._event().record(self._device.stream)

    def milliseconds(self, start: Any, end: Any) -> float:
        """Return the time between two events, when both are over."""
        end.synchronize()
        return end.time_since(start)


def contestants(
    workload: Workload, precision: str, wanted: Container[str] = (TRACED, EAGER)
) -> dict[str, Timed]:
    """Return training steps in those ways that are wanted."""
    found = {}
    for name, is_traced in ((TRACED, True), (EAGER, False)):
        if name not in wanted:
            continue
        handler = PyCudaHandler(compute=PRECISIONS[precision])
        handler.replays = is_traced
        step = ours.contestant(workload, handler).run
        found[name] = Timed(step, DeviceClock(handler))
    return found


def product(a: np.ndarray, b: np.ndarray, precision: str) -> Timed:
    """Return the product of two matrices."""
    handler = PyCudaHandler(compute=PRECISIONS[precision])
    call: Callable[[], object] = ours.product(handler, a, b)
    return Timed(call, DeviceClock(handler))
