"""Predictions by ONNX Runtime, of the graph that our network is exported as."""

from __future__ import annotations

import numpy as np
import onnxruntime

from benchmarks import THREADS, ours
from benchmarks.workloads import Contestant, Numbers, Workload, in_turn
from brainstorm.ext.onnx_exchange import to_onnx
from brainstorm.handlers import NumpyHandler

__all__ = ["VERSION", "contestant"]

VERSION = f"onnxruntime {onnxruntime.__version__}"


def contestant(workload: Workload, numbers: Numbers) -> Contestant:
    """Return predictions.

    The graph has the nodes that one would write by hand, and on images the two transpositions to
    channels first and back: measured beside a graph written by hand, they make no difference.
    """
    net = ours.build(workload, NumpyHandler())
    for layer, own in numbers.items():
        for key, value in own.items():
            net.handler.set_from_numpy(net.buffer[layer].parameters[key], value)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(
        to_onnx(net).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name

    def predict(x: np.ndarray) -> np.ndarray:
        return session.run(None, {name: x})[0]

    inputs = [batch.data()["default"] for batch in workload.batches]
    return Contestant(in_turn(predict, inputs), lambda: numbers)
