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

#: Maximum number of elements of a buffer to compare with central differences.
MAX_ELEMENTS = 24


def draw(harness: LayerHarness, seed: int) -> tuple[np.random.RandomState, Values, Values]:
    """Return a random state, and from it values and output deltas."""
    rnd = np.random.RandomState(seed)
    return rnd, harness.sample(rnd), harness.sample_out_deltas(rnd)


def random_like(arrays: Values, rnd: np.random.RandomState) -> Values:
    """Return random arrays of the same shapes."""
    return {path: rnd.normal(size=array.shape) for path, array in arrays.items()}


def run_passes(
    harness: LayerHarness,
    values: Values,
    out_deltas: Values,
    before: Values | None = None,
    unneeded: Iterable[str] = (),
    overwritten: Iterable[str] = (),
    garbage: float = 0.5,
) -> Values:
    """Run both passes over memory full of `garbage`; return the input deltas and the gradients.

    These are `before` (zeros if `None`) the backward pass; see `LayerHarness.backward`.
    """
    targets = harness.delta_paths + harness.gradient_paths
    harness.spoil(harness.paths("outputs", "internals", "output_deltas"), garbage)
    harness.load(before or dict.fromkeys(targets, np.zeros(())))
    harness.forward(values)
    harness.backward(out_deltas, unneeded, overwritten)
    return {path: harness.get(path) for path in targets}


def check_buffer(
    harness: LayerHarness,
    path: str,
    got: np.ndarray,
    expected: np.ndarray,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Compare; a violation names the property that is being checked."""
    if rtol is None or atol is None:
        rtol, atol = (1e-5, 1e-7) if harness.is_float64 else (2e-3, 2e-4)
    check_close(f"{harness.where()}, {path}", got, expected, rtol, atol)


def compare_all_with_differences(harness: LayerHarness, seed: int, paths: list[str]) -> None:
    """Compare the derivatives on `paths`; near a kink, draw other numbers and try again."""
    for attempt in range(10):
        rnd, values, out_deltas = draw(harness, seed + 1000 * attempt)
        computed = run_passes(harness, values, out_deltas)
        try:
            for path in paths:
                elements = np.sort(rnd.permutation(computed[path].size)[:MAX_ELEMENTS])
                compare_with_differences(
                    harness, values, out_deltas, path, computed[path], elements
                )
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
    elements: np.ndarray | None = None,
    epsilon: float = 1e-5,
) -> None:
    """Compare an input delta or a gradient, which was computed at `values`, with differences.

    Only the `elements`, flat indices, are compared, or all of them if `None`.

    Raises:
        PropertyError: They differ.
        KinkError: They differ, and the layer cannot be differentiated there.
    """
    source = path.replace("input_deltas", "inputs").replace("gradients", "parameters")
    elements = np.arange(computed.size) if elements is None else elements
    reference = harness.reference
    reference.load(values)
    # Passes do not change inputs and parameters, which is a property that is checked before.
    states = {p: v for p, v in values.items() if not p.startswith(("inputs.", "parameters."))}

    def objective(changed: np.ndarray) -> float:
        array = values[source].copy()
        array.flat[elements] = changed
        reference.forward({**states, source: array})
        return reference.objective(out_deltas)

    def check(derivatives: np.ndarray) -> None:
        expected = computed.copy()
        expected.flat[elements] = derivatives
        check_buffer(harness, path, computed, expected)

    point = values[source].flat[elements]
    try:
        check(approx_fprime(point, objective, epsilon))
    except PropertyError:
        check(differentiate(point, objective, epsilon))
