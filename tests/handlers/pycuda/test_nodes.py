"""How many nodes the CUDA graph of a training step has, and how many bytes they read and write.

A node takes about two microseconds. The counts are without cuDNN, of which there is no stand-in:
it has no kernels that make columns of images.
"""

from __future__ import annotations

import pytest

from benchmarks import gpu_paper
from benchmarks.contestants import BFLOAT16, FLOAT32
from benchmarks.gpu_workloads import GPU_WORKLOADS

#: Network to nodes and megabytes. More are a mistake; fewer are to be written here.
STEPS = {
    "mlp": (21, 20.7), "tiny_mlp": (21, 0.7), "lstm": (221, 240.8), "small_lstm": (421, 11.9),
    "deep_lstm": (511, 82.7), "cnn": (36, 167.5), "cifar": (41, 856.2),
    "transformer": (124, 198.9), "attention": (115, 554.8), "mlp_4096": (15, 1141.1),
    "lstm_1024": (421, 5636.4), "resnet": (371, 7624.8),
}  # fmt: skip


def test_every_network_is_counted():
    assert {workload.key for workload in GPU_WORKLOADS} == STEPS.keys()


@pytest.mark.parametrize("workload", GPU_WORKLOADS, ids=[w.key for w in GPU_WORKLOADS])
def test_nodes_and_traffic_of_a_training_step(workload, shim):
    nodes = gpu_paper.count(workload, FLOAT32)
    found = len(nodes), round(sum(node.traffic for node in nodes) / 1e6, 1)
    assert found == STEPS[workload.key]


def test_a_line_of_the_model(shim):
    assert gpu_paper.row(GPU_WORKLOADS[0], BFLOAT16) == [
        GPU_WORKLOADS[0].name, "bfloat16", "37", "27.0", "6.7", "0.40", "0.082", "0.002"
    ]  # fmt: skip
