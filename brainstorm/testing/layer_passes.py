"""Passes of a layer on random numbers, and comparisons of what they have written."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from brainstorm.testing.gradients import (
    KinkError,
    PropertyError,
    approx_fprime,
    check_close,
    differentiate,
)
from brainstorm.testing.layer_harness import LayerHarness, Values


def draw(harness: LayerHarness, seed: int) -> tuple[np.random.RandomState, Values, Values]:
    """Return a random state, and from it values and output deltas."""
    rnd = np.random.RandomState(seed)
    return rnd, harness.sample(rnd), harness.sample_out_deltas(rnd)


def run_passes(
    harness: LayerHarness,
    values: Values,
    out_deltas: Values,
    before: Values | None = None,
    unneeded: Iterable[str] = (),
    overwritten: Iterable[str] = (),
    garbage: float = 0.5,
    anew: bool = True,
) -> Values:
    """Run both passes over memory full of `garbage`; return the input deltas and the gradients.

    These are `before` (zeros if `None`) the backward pass; see `LayerHarness.backward`. The random
    numbers begin `anew`, or go on.
    """
    targets = harness.delta_paths + harness.gradient_paths
    harness.spoil(harness.paths("outputs", "internals", "output_deltas"), garbage)
    harness.load(before or dict.fromkeys(targets, np.zeros(())))
    harness.forward(values, anew=anew)
    harness.backward(out_deltas, unneeded, overwritten)
    return {path: harness.get(path) for path in targets}


def all_results(
    harness: LayerHarness, values: Values, out_deltas: Values, anew: bool = True
) -> Values:
    """Return the buffers that both passes write, and the outputs outside of training."""
    found = results(harness, values, out_deltas, anew)
    harness.forward(values, training_pass=False, anew=False)
    return found | {f"{p} outside of training": harness.get(p) for p in harness.paths("outputs")}


def results(harness: LayerHarness, values: Values, out_deltas: Values, anew: bool = True) -> Values:
    """Return the buffers that both passes write."""
    found = run_passes(harness, values, out_deltas, anew=anew)
    return found | {path: harness.get(path) for path in harness.paths("outputs")}


def inferred(harness: LayerHarness, values: Values, out_deltas: Values) -> Values:
    """Return the outputs outside training."""
    harness.forward(values, training_pass=False)
    return {path: harness.get(path) for path in harness.paths("outputs")}


def check_buffer(harness: LayerHarness, path: str, got: np.ndarray, expected: np.ndarray) -> None:
    """Compare; a violation names the property that is being checked."""
    check_close(f"{harness.where()}, {path}", got, expected, *_tolerances(harness))


def _tolerances(harness: LayerHarness) -> tuple[float, float]:
    """Return the relative and the absolute tolerance."""
    return (1e-5, 1e-7) if harness.is_float64 else (2e-3, 2e-4)


def compare_all_with_differences(harness: LayerHarness, seed: int, paths: list[str]) -> None:
    """Compare the derivatives on `paths`; near a kink, draw other numbers and try again."""
    for attempt in range(10):
        _, values, out_deltas = draw(harness, seed + 1000 * attempt)
        computed = run_passes(harness, values, out_deltas)
        try:
            for path in paths:
                compare_with_differences(harness, values, out_deltas, path, computed[path])
            return
        except KinkError as error:
            kink = error
    raise PropertyError(
        f"{harness.where()}: ten samples in a row lie near a point where "
        f"the layer cannot be differentiated; the last: {kink}"
    )


def compare_with_differences(
    harness: LayerHarness,
    values: Values,
    out_deltas: Values,
    path: str,
    computed: np.ndarray,
    epsilon: float = 1e-5,
) -> None:
    """Compare an input delta or a gradient, which was computed at `values`, with differences.

    Elements are compared one by one only if the slope in a random direction, in which all of them
    change together, is not the right one.

    Raises:
        PropertyError: They differ.
        KinkError: They differ, and the layer cannot be differentiated there.
    """
    category, _, name = path.partition(".")
    source = f"{'inputs' if category == 'input_deltas' else 'parameters'}.{name}"
    reference, point = harness.reference, values[source]
    reference.load(values)
    # Passes do not change inputs and parameters, which is a property that is checked before.
    states = {p: v for p, v in values.items() if not p.startswith(("inputs.", "parameters."))}

    def objective(changed: np.ndarray) -> float:
        reference.forward({**states, source: changed})
        return reference.objective(out_deltas)

    direction = np.random.RandomState(0).normal(size=point.shape)
    direction /= np.linalg.norm(direction)
    slope = approx_fprime(np.zeros(()), lambda step: objective(point + step * direction), epsilon)
    rtol, atol = (tolerance / 10 for tolerance in _tolerances(harness))
    if not np.isclose(np.sum(computed * direction), slope, rtol, atol):
        try:
            check_buffer(harness, path, computed, approx_fprime(point, objective, epsilon))
        except PropertyError:
            check_buffer(harness, path, computed, differentiate(point, objective, epsilon))
