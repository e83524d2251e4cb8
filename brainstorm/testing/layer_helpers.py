"""Checks of one layer at one size, similar to Brainstorm's own test tools.

A size and its data are given as `specs`, a dict with the keys ``time_steps`` and ``batch_size``
(1 if missing), ``eps`` (step of the differences), ``inits`` (parameter name to array), and names
of inputs with arrays. Everything else is normally distributed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from brainstorm.layers.base_layer import Layer
from brainstorm.structure.buffer_views import BufferView
from brainstorm.testing.layer_harness import LayerHarness
from brainstorm.testing.layer_passes import compare_with_differences
from brainstorm.testing.layer_properties import check_layer

Specs = Mapping[str, Any]


def _sources(layer: Layer, specs: Specs) -> dict[str, Any]:
    inits = {f"parameters.{name}": values for name, values in specs.get("inits", {}).items()}
    return {port: specs[port] for port in layer.in_shapes if port in specs} | inits


def _harness(layer: Layer, specs: Specs) -> LayerHarness:
    harness = LayerHarness(layer, inputs=_sources(layer, specs))
    harness.resize(specs.get("time_steps", 1), specs.get("batch_size", 1))
    return harness


def set_up_layer(layer: Layer, specs: Specs) -> BufferView:
    """Return memory for a layer, with inputs, parameters and context filled in.

    Args:
        layer: An instance of a layer class.
        specs: See the module.

    Returns:
        The seven views for `forward_pass` and `backward_pass`.
    """
    harness = _harness(layer, specs)
    harness.load(harness.sample(np.random.RandomState(0)))
    return harness.buffers


def run_deltas_test(layer: Layer, specs: Specs, inputs_name: str, outputs_name: str) -> None:
    """Check that an input delta follows from an output by central differences.

    Raises:
        PropertyError: It does not; the message names buffer, element and both numbers.
    """
    _run_test(layer, specs, f"input_deltas.{inputs_name}", outputs_name)


def run_gradients_test(layer: Layer, specs: Specs, parameter_name: str, outputs_name: str) -> None:
    """Check that the gradient of a parameter follows from an output by central differences.

    Raises:
        PropertyError: It does not; the message names buffer, element and both numbers.
    """
    _run_test(layer, specs, f"gradients.{parameter_name}", outputs_name)


def _run_test(layer: Layer, specs: Specs, path: str, outputs_name: str) -> None:
    harness = _harness(layer, specs)
    harness.checking = f"derivative of output {outputs_name!r}"
    rnd = np.random.RandomState(0)
    values = harness.sample(rnd)
    out_deltas = {
        name: deltas if name == f"output_deltas.{outputs_name}" else np.zeros_like(deltas)
        for name, deltas in harness.sample_out_deltas(rnd).items()
    }
    harness.forward(values)
    harness.backward(out_deltas)
    epsilon = specs.get("eps", 1e-5)
    compare_with_differences(harness, values, out_deltas, path, harness.get(path), epsilon=epsilon)


def get_test_configurations() -> Iterator[dict[str, Any]]:
    """Yield specs with different T and B, each with another activation function."""
    for time, batch, name in ((1, 1, "tanh"), (4, 1, "sigmoid"), (2, 3, "rel"), (1, 3, "linear")):
        yield {"time_steps": time, "batch_size": batch, "activation": name}


def run_layer_tests(layer: Layer, specs: Specs) -> None:
    """Check all properties of a layer (see `check_layer`) at the size given by `specs`.

    Raises:
        PropertyError: One does not hold.
    """
    size = specs.get("time_steps", 1), specs.get("batch_size", 1)
    check_layer(layer, inputs=_sources(layer, specs), sizes=[size])
