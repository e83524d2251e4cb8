"""Proofs for layers, handlers, steppers and modifiers, built-in ones and your own.

    from brainstorm.testing import check_layer
    check_layer(MyLayer(size=4), {"default": ("T", "B", 3)})

raises a `LawViolationError` that names law, layer, T, B, buffer, element and both numbers.

    from brainstorm.testing import check_handler
    check_handler(MyHandler())

raises one that names law, operation, argument, element and both numbers; and likewise

    from brainstorm.testing import check_modifier, check_stepper
    check_stepper(MyStepper(0.1))
    check_modifier(MyModifier())
"""

from __future__ import annotations

from brainstorm.testing.gradients import (
    KinkError,
    LawViolationError,
    approx_fprime,
    check_close,
    differentiate,
)
from brainstorm.testing.handler_laws import HANDLER_LAWS, check_handler
from brainstorm.testing.layer_bench import LayerBench, build_layer
from brainstorm.testing.layer_helpers import (
    get_test_configurations,
    run_deltas_test,
    run_gradients_test,
    run_layer_tests,
    set_up_layer,
)
from brainstorm.testing.layer_laws import LAYER_LAWS, SIZES, check_layer
from brainstorm.testing.modifier_laws import MODIFIER_LAWS, check_modifier
from brainstorm.testing.stepper_laws import STEPPER_LAWS, check_stepper

__all__ = [
    "HANDLER_LAWS",
    "LAYER_LAWS",
    "MODIFIER_LAWS",
    "SIZES",
    "STEPPER_LAWS",
    "KinkError",
    "LawViolationError",
    "LayerBench",
    "approx_fprime",
    "build_layer",
    "check_close",
    "check_handler",
    "check_layer",
    "check_modifier",
    "check_stepper",
    "differentiate",
    "get_test_configurations",
    "run_deltas_test",
    "run_gradients_test",
    "run_layer_tests",
    "set_up_layer",
]
