"""How many nodes the CUDA graph of a training step has, and how many bytes they read and write.

A node takes about two microseconds. The counts are without cuDNN, which makes no columns of images,
except where it is said.
"""

from __future__ import annotations

import pytest

from benchmarks import gpu_paper
from benchmarks.contestants import BFLOAT16, FLOAT32
from benchmarks.gpu_workloads import GPU_WORKLOADS
from brainstorm.handlers.pycuda import cudnn

#: Network to nodes and megabytes. More are a mistake; fewer are to be written here.
STEPS = {
    "mlp": (16, 20.2), "tiny_mlp": (16, 0.7), "lstm": (216, 240.0), "small_lstm": (416, 11.8),
    "deep_lstm": (503, 82.2), "cnn": (27, 135.8), "cifar": (31, 788.2),
    "transformer": (84, 183.5), "attention": (94, 549.9), "mlp_4096": (10, 1090.7),
    "lstm_1024": (416, 5610.1), "resnet": (217, 7052.3),
}  # fmt: skip

#: The same, for some of them, with products of bfloat16.
ROUNDED = {
    "mlp": (20, 22.1), "lstm": (272, 205.3), "cnn": (32, 129.2), "transformer": (94, 180.1),
    "resnet": (225, 7524.8),
}  # fmt: skip


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
    nodes = gpu_paper.count(workload, precision)
    assert (len(nodes), round(sum(node.traffic for node in nodes) / 1e6, 1)) == expected


@pytest.mark.parametrize(("precision", "expected"), [(FLOAT32, (25, 90.3)), (BFLOAT16, (33, 53.0))])
def test_nodes_and_traffic_with_cudnn(precision, expected, monkeypatch, shim):
    monkeypatch.setattr(cudnn, "load_library", lambda name, versions: shim.cudnn())
    (cnn,) = (workload for workload in GPU_WORKLOADS if workload.key == "cnn")
    test_nodes_and_traffic_of_a_training_step(cnn, precision, expected, shim)


def test_a_line_of_the_model(shim):
    assert gpu_paper.row(GPU_WORKLOADS[0], BFLOAT16) == [
        GPU_WORKLOADS[0].name, "bfloat16", "20", "22.1", "6.7", "0.40", "0.044", "0.002"
    ]  # fmt: skip
