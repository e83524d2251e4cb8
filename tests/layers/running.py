"""Run a single layer on given numbers, and compare the gradients of small networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.initializers import Gaussian
from brainstorm.network import Network
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LayerHarness, build_layer
from tests.networks import data_for, numerical_gradients


def run(
    construction: ConstructionWrapper,
    inputs: Mapping[str, np.ndarray],
    training_pass: bool = True,
    seed: int = 0,
    **values: Any,
) -> LayerHarness:
    """Run the forward pass of a layer on float64 inputs (T, B, ...).

    Args:
        construction: The layer.
        inputs: Input name to data.
        training_pass: As in `forward_pass`.
        seed: Of everything that is not given.
        **values: Parameter name to values.

    Returns:
        The harness, with which the backward pass can be run and every buffer be read.
    """
    shapes = {name: ("T", "B", *array.shape[2:]) for name, array in inputs.items()}
    harness = LayerHarness(build_layer(construction, shapes))
    harness.resize(*next(iter(inputs.values())).shape[:2])
    everything = harness.sample(np.random.RandomState(seed))
    everything.update({f"inputs.{name}": array for name, array in inputs.items()})
    everything.update({f"parameters.{name}": np.asarray(v) for name, v in values.items()})
    harness.forward(everything, training_pass)
    harness.values = everything  # type: ignore[attr-defined]  # for references to compute with
    return harness


def run_backward(harness: LayerHarness, seed: int = 1) -> dict[str, np.ndarray]:
    """Run the backward pass from random output deltas, and return these."""
    deltas = harness.sample_out_deltas(np.random.RandomState(seed))
    harness.load(dict.fromkeys(harness.delta_paths + harness.gradient_paths, np.zeros(())))
    harness.backward(deltas)
    return {path.partition(".")[2]: array for path, array in deltas.items()}


def build_network(source: ConstructionWrapper) -> Network:
    """Return a float64 network with data, all of whose operations are checked."""
    net = Network.from_layer(source, seed=1, handler=DebugHandler(NumpyHandler(np.float64)))
    net.initialize(Gaussian(0.5))
    net.provide_external_data(data_for(net))
    return net


def check_gradients(net: Network) -> None:
    """Compare all gradients of a network with central differences."""
    expected = numerical_gradients(net)
    net.forward_pass(training_pass=True)
    net.backward_pass()
    np.testing.assert_allclose(net.get("gradients"), expected, rtol=1e-5, atol=1e-8)
