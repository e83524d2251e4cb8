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
from collections.abc import Sequence
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
from brainstorm.handlers.pycuda.blas import Product
from brainstorm.handlers.pycuda.fusing import Piece, fused
from brainstorm.handlers.pycuda.groups import Walk
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
    """The pieces of a step are known."""


def _node(piece: Piece) -> Node:
    if piece.launch is None:
        return _of_loops(piece.group.walks)
    return Node(sum(stop - start for start, stop in (*piece.reads, *piece.writes)))


def _of_loops(walks: Sequence[Walk]) -> Node:
    touched: dict[tuple[int, bool], float] = {}
    written: set[int] = set()
    for walk in walks:
        for i, (array, strides) in enumerate(zip(walk.accessed, walk.strides, strict=True)):
            steps = zip(walk.sizes, strides, strict=True)
            size = _SIZES[array.type] * math.prod(n for n, step in steps if step)
            if i < len(walk.lengths):
                size = walk.lengths[i]
            place, writes = walk.pointers[i], i >= len(walk.loop.reads)
            if place not in written:  # what the node has just written is at hand
                touched[place, writes] = max(size, touched.get((place, writes), 0.0))
            if writes:
                written.add(place)
    return Node(sum(touched.values()))


def _of_product(p: Product) -> Node:
    factors = (p.m * p.k + p.k * p.n) * (2 if p.half else 4)
    traffic = p.batch * (factors + 4 * p.m * p.n * (1 + p.add))
    return Node(traffic, 2.0 * p.batch * p.m * p.n * p.k, True)


def count(workload: Workload, precision: str) -> list[Node]:
    """Return the nodes of a training step."""
    pieces: list[Piece] = []

    def trace(handler: PyCudaHandler, function: Any) -> None:
        with handler.tracing(runs=False) as listed:
            function()
        calls: Any = [step.call for step in listed.steps]
        pieces.extend(fused(piece for call in calls for piece in call.pieces))
        raise _ListedError

    with mock.patch.object(PyCudaHandler, "trace", trace), contextlib.suppress(_ListedError):
        ours.contestant(workload, PyCudaHandler(seed=1, compute=PRECISIONS[precision])).run()
    return [_of_product(piece.product) if piece.product else _node(piece) for piece in pieces]


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
