"""What the benchmarks compare computes the same: loss, probabilities, and the update of a step."""

import numpy as np
import pytest

from benchmarks import jax_peer, onnxruntime_peer, ours, torch_peer
from benchmarks.gpu_workloads import GPU_WORKLOADS, shrunk
from benchmarks.workloads import WORKLOADS
from brainstorm.handlers import NumpyHandler

RATE = 0.1
PEEPHOLES = ("pi", "pf", "po")
STEPS = {w.key: w for w in WORKLOADS if not w.predicts}
STEPS["resnet"] = shrunk(next(w for w in GPU_WORKLOADS if w.key == "resnet"))
STEPS["attention"] = STEPS["attention"]._replace(T=40)
PREDICTIONS = {w.key: w for w in WORKLOADS if w.predicts}
PEERS = {"torch": torch_peer.contestant, "jax": jax_peer.contestant}
PREDICTING = {**PEERS, "onnxruntime": onnxruntime_peer.contestant}


def network(workload, with_peepholes):
    net = ours.build(workload, NumpyHandler())
    for name, layer in net.layers.items():
        for key in set(PEEPHOLES) & set(layer.parameter_shapes):
            net.buffer[name].parameters[key][...] = 0.5 if with_peepholes else 0.0
    return net


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("key", STEPS)
def test_a_step_computes_the_same(peer, key):
    workload = STEPS[key]._replace(B=3)
    net = network(workload, with_peepholes=peer == "jax")
    before = ours.parameters(net)
    found = PEERS[peer](workload, before, RATE)
    loss = float(found.run())
    after = found.parameters()

    net.forward_pass(training_pass=True)
    net.backward_pass()
    assert loss == pytest.approx(net.get_loss_values()["total_loss"], rel=1e-4)
    compared = 0
    for name, own in before.items():
        for parameter, value in own.items():
            if peer == "torch" and parameter in PEEPHOLES:
                continue
            expected = net.get(f"{name}.gradients.{parameter}")
            gradient = (value - after[name][parameter].reshape(value.shape)) / RATE
            scale = np.abs(expected).max()
            np.testing.assert_allclose(gradient, expected, 2e-3, 2e-4 * max(scale, 1e-2))
            compared += value.size
    assert compared > 0.98 * net.parameters_size


@pytest.mark.parametrize("peer", PREDICTING)
@pytest.mark.parametrize("key", PREDICTIONS)
def test_predictions_are_the_same(peer, key):
    workload = PREDICTIONS[key]
    net = network(workload, with_peepholes=peer != "torch")
    found = PREDICTING[peer](workload, ours.parameters(net)).run()
    expected = net.predict(workload.batches[-1].data()["default"])
    np.testing.assert_allclose(found.reshape(expected.shape), expected, 1e-4)
