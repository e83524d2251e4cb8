"""How many nodes the CUDA graph of a training step has: each takes about two microseconds."""

from __future__ import annotations

import pytest

from benchmarks import ours
from benchmarks.gpu_workloads import GPU_WORKLOADS, shrunk
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import building

#: For each network the nodes of a step without cuDNN, of which there is no stand-in here: it has no
#: kernels that make columns of images. More are a mistake; fewer are to be written here.
NODES = {
    "mlp": 21, "tiny_mlp": 21, "lstm": 33, "small_lstm": 33, "deep_lstm": 55, "cnn": 36,
    "cifar": 41, "transformer": 123, "attention": 38, "mlp_4096": 15, "lstm_1024": 33,
    "resnet": 352,
}  # fmt: skip


def test_every_network_is_counted():
    assert {workload.key for workload in GPU_WORKLOADS} == NODES.keys()


@pytest.mark.parametrize("workload", GPU_WORKLOADS, ids=[w.key for w in GPU_WORKLOADS])
def test_how_many_nodes_a_training_step_has(workload, shim, monkeypatch):
    captured = []
    monkeypatch.setattr(
        PyCudaHandler,
        "compile",
        lambda handler, calls: captured.append(list(calls)) or calls,
    )
    step = ours.contestant(shrunk(workload), PyCudaHandler(seed=1)).run
    step()
    step()
    (calls,) = captured
    assert all(isinstance(call, building.Building) for call in calls)
    assert sum(len(call.launches) for call in calls) == NODES[workload.key]
