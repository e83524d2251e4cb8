"""Run a single layer on given numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LayerBench, build_layer


def run(
    construction: ConstructionWrapper,
    inputs: Mapping[str, np.ndarray],
    training_pass: bool = True,
    seed: int = 0,
    **values: Any,
) -> LayerBench:
    """Run the forward pass of a layer on float64 inputs (T, B, ...).

    Args:
        construction: The layer.
        inputs: Input name to data.
        training_pass: As in `forward_pass`.
        seed: Of everything that is not given.
        **values: Parameter name to values.

    Returns:
        The bench, with which the backward pass can be run and every buffer be read.
    """
    shapes = {name: ("T", "B", *array.shape[2:]) for name, array in inputs.items()}
    bench = LayerBench(build_layer(construction, shapes))
    bench.resize(*next(iter(inputs.values())).shape[:2])
    everything = bench.sample(np.random.RandomState(seed))
    everything.update({f"inputs.{name}": array for name, array in inputs.items()})
    everything.update({f"parameters.{name}": np.asarray(v) for name, v in values.items()})
    bench.forward(everything, training_pass)
    bench.values = everything  # type: ignore[attr-defined]  # for references to compute with
    return bench


def run_backward(bench: LayerBench, seed: int = 1) -> dict[str, np.ndarray]:
    """Run the backward pass from random output deltas, and return these."""
    deltas = bench.sample_out_deltas(np.random.RandomState(seed))
    bench.load(dict.fromkeys(bench.delta_paths + bench.gradient_paths, np.zeros(())))
    bench.backward(deltas)
    return {path.partition(".")[2]: array for path, array in deltas.items()}
