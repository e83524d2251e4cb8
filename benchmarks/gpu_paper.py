"""What a GPU has to do for a training step, on paper: nodes of the graph, memory traffic, products.

    python -m benchmarks.gpu --paper [--page]

The launches of a step are listed on the tests' CUDA driver, and none of them runs. Each is a node,
which reads every array that it touches once and writes what it writes once; a node takes the time
of its traffic or of its products, whichever is longer, and what a node takes at least. With
``--page`` the table goes to docs/performance-gpu.md. It is a model: no GPU has confirmed it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

from benchmarks import ours
from benchmarks.contestants import BFLOAT16, FLOAT32
from benchmarks.gpu_ours import PRECISIONS, TF32
from benchmarks.gpu_report import PAGE
from benchmarks.gpu_workloads import GPU_WORKLOADS
from benchmarks.tables import Row, as_markdown, as_text, replace_section
from benchmarks.workloads import Workload
from brainstorm.handlers.pycuda import PyCudaHandler
from brainstorm.handlers.pycuda.arrays import DeviceArray
from brainstorm.handlers.pycuda.blas import CtypesBlas, Product
from brainstorm.handlers.pycuda.building import Building
from brainstorm.handlers.pycuda.programs import DeviceProgram
from brainstorm.handlers.pycuda.rows import Walk
from brainstorm.optree.loops import C_TYPES

__all__ = ["main"]

#: Of an H100: bytes a second, operations a second of products, seconds of a node at least.
BANDWIDTH = 3e12
RATES = {FLOAT32: 67e12, TF32: 400e12, BFLOAT16: 790e12}
NODE = 2.2e-6

_SIZES = {name: dtype.itemsize for dtype, name in C_TYPES.items()}


class Node(NamedTuple):
    """What a node reads and writes, in bytes, and the operations of its product."""

    traffic: float
    flop: float = 0.0
    is_product: bool = False


class _ListedError(Exception):
    """The launches of a step are known."""


@contextlib.contextmanager
def _listing(nodes: list[Node]) -> Iterator[None]:
    """Keep what launches have to do, when they are built, and end with the first whole step."""

    def trace(handler: PyCudaHandler, function: Any) -> None:
        nodes.clear()
        handler.memo.forget()
        with handler.tracing(runs=False):
            function()
        raise _ListedError

    def wrapped(owner: Any, name: str, node: Any) -> Any:
        method = getattr(owner, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            nodes.append(node(*arguments, **options))
            return method(self, *arguments, **options)

        return mock.patch.object(owner, name, call)

    with (
        wrapped(DeviceProgram, "_launch", _of_loops),
        wrapped(Building, "kernel", _of_kernel),
        wrapped(CtypesBlas, "call", _of_product),
        mock.patch.object(PyCudaHandler, "trace", trace),
        contextlib.suppress(_ListedError),
    ):
        yield


def _of_loops(walks: list[Walk], keep: Any) -> Node:
    touched: dict[tuple[int, bool], float] = {}
    written: set[int] = set()
    for walk in walks:
        arrays = [*walk.loop.reads, *walk.loop.writes]
        for i, (array, strides) in enumerate(zip(arrays, walk.strides, strict=True)):
            steps = zip(walk.sizes, strides, strict=True)
            size = _SIZES[array.type] * math.prod(n for n, step in steps if step)
            place, writes = walk.pointers[i], i >= len(walk.loop.reads)
            if place not in written:  # what the node has just written is at hand
                touched[place, writes] = max(size, touched.get((place, writes), 0.0))
            if writes:
                written.add(place)
    return Node(sum(touched.values()))


def _of_kernel(name: str, count: int, *arguments: Any, **options: Any) -> Node:
    return Node(sum(a.nbytes for a in arguments if isinstance(a, DeviceArray)))


def _of_product(p: Product) -> Node:
    factors = (p.m * p.k + p.k * p.n) * (2 if p.half else 4)
    traffic = p.batch * (factors + 4 * p.m * p.n * (1 + p.add))
    return Node(traffic, 2.0 * p.batch * p.m * p.n * p.k, True)


def count(workload: Workload, precision: str) -> list[Node]:
    """Return the nodes of a training step."""
    nodes: list[Node] = []
    with _listing(nodes):
        ours.contestant(workload, PyCudaHandler(seed=1, compute=PRECISIONS[precision])).run()
    return nodes


def row(workload: Workload, precision: str) -> list[str]:
    """Return a line of the table."""
    nodes = count(workload, precision)
    traffic, products = sum(n.traffic for n in nodes), [n for n in nodes if n.is_product]
    rate = RATES[precision]
    seconds = sum(max(NODE, n.traffic / BANDWIDTH, n.flop / rate) for n in nodes)
    least = sum(max(n.traffic / BANDWIDTH, n.flop / rate) for n in products)
    return [
        workload.name,
        precision,
        str(len(nodes)),
        f"{traffic / 1e6:,.1f}",
        f"{sum(n.traffic for n in products) / 1e6:,.1f}",
        f"{sum(n.flop for n in nodes) / 1e9:,.2f}",
        f"{1e3 * seconds:.3f}",
        f"{1e3 * least:.3f}",
    ]


def main(writes_page: bool) -> None:
    """Print the table, and write it to the page if that is wanted."""
    from tests import cudashim

    cudashim.install()
    header = ["workload", "precision", "nodes", "MB", "MB, products", "GFLOP", "ms", "ms, products"]
    rows: list[Row] = [header]
    rows += [row(workload, precision) for workload in GPU_WORKLOADS for precision in RATES]
    print(as_text(rows))
    if writes_page:
        PAGE.write_text(replace_section(PAGE.read_text(), "paper", as_markdown(rows)))
