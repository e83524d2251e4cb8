"""How many nodes the CUDA graph of a training step has, and how many bytes they read and write.

A node takes about two microseconds. Each is counted as if it read every array that it touches
once, and wrote what it writes once. The counts are without cuDNN, which makes no columns of images,
except where it is said.
"""

import contextlib
import math
from unittest import mock

import pytest

from benchmarks import ours
from benchmarks.contestants import BFLOAT16, FLOAT32
from benchmarks.gpu_ours import PRECISIONS
from benchmarks.gpu_workloads import GPU_WORKLOADS
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import cudnn
from brainstorm.handlers.pycuda.fusing import fused
from brainstorm.handlers.pycuda.recurrences import recurrences
from tests.handlers.running import traced

#: Network to nodes and megabytes. More are a mistake; fewer are to be written here.
STEPS = {
    "mlp": (16, 20.2), "tiny_mlp": (16, 0.7), "lstm": (25, 155.5), "small_lstm": (25, 9.2),
    "deep_lstm": (40, 48.6), "cnn": (27, 135.8), "cifar": (31, 788.2),
    "transformer": (81, 180.8), "attention": (27, 730.7), "mlp_4096": (10, 1090.7),
    "lstm_1024": (415, 5609.4), "resnet": (217, 7052.3),
}  # fmt: skip

#: The same, for some of them, with products of bfloat16.
ROUNDED = {
    "mlp": (20, 22.1), "lstm": (30, 164.7), "cnn": (32, 129.2), "transformer": (85, 168.6),
    "resnet": (225, 7524.8),
}  # fmt: skip


class _ListedError(Exception):
    """The pieces of a step are known."""


def nodes(workload, precision):
    """Return the pieces of a training step that are the nodes of its graph; none of them runs."""
    pieces = []

    def trace(handler, function):
        found = fused(piece for call in traced(handler, function) for piece in call.pieces)
        pieces.extend(recurrences(handler._device, found))
        raise _ListedError

    with mock.patch.object(PyCudaHandler, "trace", trace), contextlib.suppress(_ListedError):
        ours.contestant(workload, PyCudaHandler(seed=1, compute=PRECISIONS[precision])).run()
    return pieces


def traffic(piece):
    """Return how many bytes a node reads and writes."""
    if piece.product:
        p = piece.product
        factors = (p.m * p.k + p.k * p.n) * (2 if p.half else 4)
        return p.batch * (factors + 4 * p.m * p.n * (1 + p.add))
    if piece.launch:
        return sum(stop - start for start, stop in {*piece.reads, *piece.writes})
    touched, written = {}, set()
    for walk in piece.group.walks:
        for i, (size, strides) in enumerate(zip(walk.item_sizes, walk.strides, strict=True)):
            steps = zip(walk.sizes, strides, strict=True)
            size *= math.prod(n for n, step in steps if step)
            if i < len(walk.lengths):
                size = walk.lengths[i]
            place, writes = walk.pointers[i], i >= len(walk.loop.reads)
            if place not in written:  # what the node has just written is at hand
                touched[place, writes] = max(size, touched.get((place, writes), 0))
            if writes:
                written.add(place)
    return sum(touched.values())


def test_every_network_is_counted():
    assert {workload.key for workload in GPU_WORKLOADS} == STEPS.keys()


@pytest.mark.parametrize(
    ("workload", "precision", "expected"),
    [
        pytest.param(workload, precision, known[workload.key], id=f"{workload.key} {precision}")
        for precision, known in ((FLOAT32, STEPS), (BFLOAT16, ROUNDED))
        for workload in GPU_WORKLOADS
        if workload.key in known
    ],
)
def test_nodes_and_traffic_of_a_training_step(workload, precision, expected, shim):
    pieces = nodes(workload, precision)
    assert (len(pieces), round(sum(map(traffic, pieces)) / 1e6, 1)) == expected


@pytest.mark.parametrize(("precision", "expected"), [(FLOAT32, (25, 90.3)), (BFLOAT16, (33, 53.0))])
def test_nodes_and_traffic_with_cudnn(precision, expected, monkeypatch, shim):
    monkeypatch.setattr(cudnn, "load_library", lambda name, versions: shim.cudnn())
    (cnn,) = (workload for workload in GPU_WORKLOADS if workload.key == "cnn")
    test_nodes_and_traffic_of_a_training_step(cnn, precision, expected, shim)
