"""Property tests for layers, handlers, steppers and modifiers, both built-in and your own.

    from brainstorm.testing import check_layer
    check_layer(MyLayer(size=4), {"default": ("T", "B", 3)})

raises a `PropertyError` that names property, layer, T, B, buffer, element and both values.

    from brainstorm.testing import check_handler
    check_handler(MyHandler())

raises one that names property, operation, argument, element and both values; and likewise

    from brainstorm.testing import check_modifier, check_stepper
    check_stepper(MyStepper(0.1))
    check_modifier(MyModifier())
"""

from __future__ import annotations

from brainstorm.testing.gradients import (
    KinkError,
    PropertyError,
    approx_fprime,
    check_close,
    differentiate,
)
from brainstorm.testing.handler_properties import HANDLER_PROPERTIES, check_handler
from brainstorm.testing.layer_harness import LayerHarness
from brainstorm.testing.layer_helpers import (
    get_test_configurations,
    run_deltas_test,
    run_gradients_test,
    run_layer_tests,
    set_up_layer,
)
from brainstorm.testing.layer_neighbours import build_layer
from brainstorm.testing.layer_properties import LAYER_PROPERTIES, SIZES, check_layer
from brainstorm.testing.modifier_properties import MODIFIER_PROPERTIES, check_modifier
from brainstorm.testing.stepper_properties import STEPPER_PROPERTIES, check_stepper

__all__ = [
    "HANDLER_PROPERTIES",
    "LAYER_PROPERTIES",
    "MODIFIER_PROPERTIES",
    "SIZES",
    "STEPPER_PROPERTIES",
    "KinkError",
    "LayerHarness",
    "PropertyError",
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
