"""The workloads, and what a training step of them is in brainstorm."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.timing import Call
from brainstorm.handlers.base_handler import Handler
from brainstorm.initializers import DenseSqrtFanIn
from brainstorm.layers import Convolution2D, FullyConnected, Lstm, Pooling2D
from brainstorm.network import Network
from brainstorm.structure.buffer_views import NullBuffer
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.tools import get_in_out_layers
from brainstorm.training import SgdStepper

__all__ = ["LEARNING_RATE", "WORKLOADS", "Workload", "brainstorm_calls", "build", "count_flop"]

#: So small that a million steps on the same batch change nothing that would change the time.
LEARNING_RATE = 1e-7


class Workload(NamedTuple):
    """A classifier and the size of its batch.

    Peers know their version of it by `key`.
    """

    key: str
    name: str
    T: int
    B: int
    features: tuple[int, ...]
    classes: int
    hidden: Callable[[], tuple[ConstructionWrapper, ...]]

    def data(self) -> dict[str, np.ndarray]:
        """Return a batch of noise: 'default' (T, B, *features) and 'targets' (T, B, 1)."""
        rnd = np.random.RandomState(0)
        inputs = rnd.standard_normal((self.T, self.B, *self.features)).astype(np.float32)
        return {"default": inputs, "targets": rnd.randint(0, self.classes, (self.T, self.B, 1))}


WORKLOADS = (
    Workload(
        "mlp", "MLP 784-500-500-10, B=128", 1, 128, (784,), 10,
        lambda: (FullyConnected(500), FullyConnected(500)),
    ),
    Workload(
        "tiny_mlp", "MLP 784-32-32-10, B=16", 1, 16, (784,), 10,
        lambda: (FullyConnected(32), FullyConnected(32)),
    ),
    Workload(
        "lstm", "LSTM 64-256 + FC 64, T=50, B=32", 50, 32, (64,), 64,
        lambda: (Lstm(256),),
    ),
    Workload(
        "small_lstm", "LSTM 16-32 + FC 16, T=100, B=8", 100, 8, (16,), 16,
        lambda: (Lstm(32),),
    ),
    Workload(
        "cnn", "CNN 28x28, 32@5x5, 64@5x5, B=64", 1, 64, (28, 28, 1), 10,
        lambda: (
            Convolution2D(32, (5, 5)), Pooling2D((2, 2), stride=(2, 2)),
            Convolution2D(64, (5, 5)), Pooling2D((2, 2), stride=(2, 2)),
            FullyConnected(128),
        ),
    ),
)  # fmt: skip


def build(workload: Workload, handler: Handler) -> Network:
    """Return the initialized network, with its batch in memory."""
    last, output = get_in_out_layers("classification", workload.features, workload.classes)
    for layer in workload.hidden():
        last >>= layer
    last >> output
    net = Network.from_layer(output, seed=1, handler=handler)
    net.initialize(DenseSqrtFanIn(), fallback=0)
    net.provide_external_data(workload.data())
    return net


def brainstorm_calls(workload: Workload, handler: Handler) -> dict[str, Call]:
    """Return what is timed: a forward pass, a backward pass, a whole step."""
    net = build(workload, handler)
    stepper = SgdStepper(LEARNING_RATE)
    stepper.start(net)

    def forward() -> None:
        net.forward_pass(training_pass=True)

    return {
        "forward": Call(forward),
        "backward": Call(net.backward_pass, before=forward),
        "step": Call(stepper.run),
    }


def count_flop(net: Network) -> dict[str, float]:
    """Return the operations of all matrix products in the passes over the present batch.

    A matrix of weights (out, n) is applied to one row per output element / out, takes 2 operations
    per weight and row, and as many again for its gradient and for the deltas of its input.
    """
    forward = backward = 0.0
    for name, layer in net.layers.items():
        for parameter, structure in layer.parameter_shapes.items():
            if not parameter.startswith(("W", "R")):
                continue
            output = layer.out_shapes["default"]
            values = net.time_size * net.batch_size * output.feature_size
            products = 2.0 * values / structure.feature_shape[0] * structure.feature_size
            forward += products
            null = isinstance(net.buffer[name].input_deltas.default, NullBuffer)
            backward += products * (1 if null and parameter.startswith("W") else 2)
    return {"forward": forward, "backward": backward, "step": forward + backward}
