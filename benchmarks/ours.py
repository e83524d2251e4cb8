"""The workloads in this library."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from benchmarks.workloads import (
    LEARNING_RATE,
    Attention,
    BatchNorm,
    Contestant,
    Convolution,
    Dense,
    Embed,
    Lstm,
    Norm,
    Numbers,
    Part,
    Pool,
    Positions,
    Residual,
    Workload,
    in_turn,
    named,
)
from brainstorm import layers
from brainstorm.handlers.base_handler import Handler
from brainstorm.initializers import DenseSqrtFanIn
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.structure.null_buffers import NullBuffer
from brainstorm.tools import get_in_out_layers
from brainstorm.training import SgdStepper

__all__ = ["build", "contestant", "count_flop", "parameters", "product"]


def build(workload: Workload, handler: Handler, memory: str = "inspectable") -> Network:
    """Return the initialized network, with its batch in memory."""
    inp, projection = get_in_out_layers("classification", workload.features, workload.classes)
    _wire(inp, named(workload.hidden)) >> projection
    net = Network.from_layer(projection, seed=1, handler=handler, memory=memory)
    net.initialize(DenseSqrtFanIn("linear"), fallback=0)
    for name, layer in net.layers.items():
        if "gamma" in layer.parameter_shapes:
            handler.fill(net.buffer[name].parameters.gamma, 1.0)
    net.provide_external_data(workload.data())
    return net


def _wire(last: ConstructionWrapper, parts: Iterable[tuple[str, Part]]) -> ConstructionWrapper:
    for name, part in parts:
        if isinstance(part, Residual):
            total = layers.Add(name=name)
            last >> "inputs_1" - total
            _wire(last, named(part.parts, f"{name}_")) >> "inputs_2" - total
            last = total
        else:
            last >>= _layer(name, part)
            if isinstance(part, BatchNorm):
                last >>= layers.Elementwise("rel", name=f"{name}_rel")
    return last


def _layer(name: str, part: Part) -> ConstructionWrapper:
    match part:
        case Dense(size, is_linear):
            return layers.FullyConnected(size, "linear" if is_linear else "rel", name=name)
        case Lstm(size):
            return layers.Lstm(size, name=name)
        case Convolution(filters, kernel, padding, is_linear):
            size, activation = (kernel, kernel), "linear" if is_linear else "rel"
            return layers.Convolution2D(
                filters, size, padding=padding, activation=activation, name=name
            )
        case Pool(window, stride):
            return layers.Pooling2D((window, window), stride=(stride, stride), name=name)
        case Embed(symbols, size):
            return layers.Embedding(symbols, size, name=name)
        case Positions():
            return layers.PositionalEncoding(name=name)
        case Norm():
            return layers.LayerNorm(name=name)
        case BatchNorm():
            return layers.BatchNorm(name=name)
        case Attention(heads):
            return layers.MultiHeadSelfAttention(heads, causal=True, name=name)
    raise TypeError(f"{part!r} is no layer")


def parameters(net: Network) -> Numbers:
    """Return copies of all parameters."""
    return {
        name: {key: net.get(f"{name}.parameters.{key}") for key in layer.parameter_shapes}
        for name, layer in net.layers.items()
        if layer.parameter_shapes
    }


def contestant(
    workload: Workload,
    handler: Handler,
    learning_rate: float = LEARNING_RATE,
    memory: str = "inspectable",
) -> Contestant:
    """Return training steps, by traces as the Trainer does them, or predictions."""
    net = build(workload, handler, memory)
    if workload.predicts:
        inputs = [batch.data()["default"] for batch in workload.batches]
        return Contestant(in_turn(net.predict, inputs), lambda: parameters(net))
    stepper = SgdStepper(learning_rate)
    stepper.start(net)
    return Contestant(stepper.run, lambda: parameters(net))


def count_flop(workload: Workload, net: Network) -> float:
    """Return the operations of all matrix products that a step, or a prediction, cannot do without.

    A matrix of weights (out, n) is applied to one row per output element / out, takes 2 operations
    per weight and row, and as many again for its gradient and for the deltas of its input, where
    anybody reads these. Of attention, the masked half does not count. Of predictions of several
    sizes, it is the mean.
    """
    total = 0.0
    for name, layer in net.layers.items():
        for parameter, structure in layer.parameter_shapes.items():
            if not parameter.startswith(("W", "R")) or layer.type_name == "Embedding":
                continue
            values = net.time_size * net.batch_size * layer.out_shapes["default"].feature_size
            products = 2.0 * values / structure.feature_shape[0] * structure.feature_size
            null = isinstance(net.buffer[name].input_deltas.default, NullBuffer)
            backward = 1 if null and parameter.startswith("W") else 2
            total += products * (1 if workload.predicts else 1 + backward)
        if layer.type_name == "MultiHeadSelfAttention":
            size = layer.out_shapes["default"].feature_size
            pairs = net.batch_size * net.time_size * (net.time_size + 1) / 2
            total += 2 * 2.0 * pairs * size * (1 if workload.predicts else 3)
    return total * float(np.mean(workload.sizes or workload.B)) / workload.B


def product(handler: Handler, a: np.ndarray, b: np.ndarray) -> Callable[[], object]:
    """Return the product of two matrices."""
    left, right = handler.create_from_numpy(a), handler.create_from_numpy(b)
    out = handler.zeros((len(a), b.shape[1]))
    return lambda: handler.dot_mm(left, right, out)
