"""Proofs for layers, built-in ones and your own: numerical gradients and the laws of a layer.

    from brainstorm.testing import check_layer
    check_layer(MyLayer(size=4), {"default": ("T", "B", 3)})

raises a `LawViolationError` that names law, layer, T, B, buffer, element and both numbers.
"""

from __future__ import annotations

from brainstorm.testing.gradients import (
    KinkError,
    LawViolationError,
    approx_fprime,
    check_close,
    differentiate,
)
from brainstorm.testing.layer_bench import LayerBench, build_layer
from brainstorm.testing.layer_helpers import (
    get_test_configurations,
    run_deltas_test,
    run_gradients_test,
    run_layer_tests,
    set_up_layer,
)
from brainstorm.testing.layer_laws import LAYER_LAWS, SIZES, check_layer

__all__ = [
    "LAYER_LAWS",
    "SIZES",
    "KinkError",
    "LawViolationError",
    "LayerBench",
    "approx_fprime",
    "build_layer",
    "check_close",
    "check_layer",
    "differentiate",
    "get_test_configurations",
    "run_deltas_test",
    "run_gradients_test",
    "run_layer_tests",
    "set_up_layer",
]
