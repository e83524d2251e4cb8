"""Run a single layer on given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.handlers import Handler
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LayerHarness, build_layer


def run(
    construction: ConstructionWrapper,
    inputs: Mapping[str, np.ndarray],
    training_pass: bool = True,
    seed: int = 0,
    handler: Handler | None = None,
    **values: Any,
) -> LayerHarness:
    """Run the forward pass of a layer on inputs (T, B, ...) and some values of parameters.

    With the harness that is returned the backward pass can be run and every buffer be read.
    """
    shapes = {name: ("T", "B", *array.shape[2:]) for name, array in inputs.items()}
    clock = {"context.internals.time": np.zeros(())}
    harness = LayerHarness(build_layer(construction, shapes), handler, clock)
    harness.resize(*next(iter(inputs.values())).shape[:2])
    everything = harness.sample(np.random.RandomState(seed))
    everything.update({f"inputs.{name}": array for name, array in inputs.items()})
    everything.update({f"parameters.{name}": np.asarray(v) for name, v in values.items()})
    harness.spoil(harness.paths("outputs", "internals"), 0.5)
    harness.forward(everything, training_pass)
    harness.values = everything  # type: ignore[attr-defined]  # for references to compute with
    return harness


def both_passes(harness: LayerHarness, start: float = 0.0) -> dict[str, np.ndarray]:
    """Return outputs, input deltas and gradients on random numbers, added to `start`."""
    rnd = np.random.RandomState(0)
    values, deltas = harness.sample(rnd), harness.sample_out_deltas(rnd)
    targets = harness.delta_paths + harness.gradient_paths
    harness.load(dict.fromkeys(targets, np.full((), start)))
    harness.forward(values)
    harness.backward(deltas)
    return {path: harness.get(path) for path in harness.paths("outputs") + targets}


def run_backward(harness: LayerHarness, seed: int = 1) -> dict[str, np.ndarray]:
    """Run the backward pass from random output deltas, and return these."""
    deltas = harness.sample_out_deltas(np.random.RandomState(seed))
    harness.load(dict.fromkeys(harness.delta_paths + harness.gradient_paths, np.zeros(())))
    harness.backward(deltas)
    return {path.partition(".")[2]: array for path, array in deltas.items()}
