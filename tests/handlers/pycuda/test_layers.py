"""Every layer on a GPU, in all of its variants: its numbers, and the properties on anything else.

Outputs, deltas and gradients are compared with those of the float64 reference, of which other
tests know that they are right; and what a recorded pass replays (as a CUDA graph) with what the
layer does by itself, to the last bit.
"""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.testing import LAYER_PROPERTIES, LayerHarness, build_layer, check_layer
from tests.layers.cases import CASES, Case
from tests.layers.running import both_passes

#: Those that look at the reference alone, or at numbers that are compared with it here (among them
#: what is added to); and those of what a layer does with any handler, whose operations are the same
#: as in the others and have properties of their own (that they change nothing that they read).
ELSEWHERE = {
    "input deltas equal central differences",
    "gradients equal central differences",
    "characteristics tell the truth",
    "deltas and gradients are added to",
    "what is not needed backward may be garbage",
    "what is read is not changed",
}


def _kind(case: Case) -> tuple[object, ...]:
    layer = case.create().layer
    options = {name: type(v) is str and v for name, v in layer.layer_kwargs.items()}
    options.pop("activation", None)
    return layer.layer_type, str(sorted(options.items())), str(case.in_shapes)


#: Without those that differ from others only in numbers or in the activation function.
KINDS = {_kind(case): case for case in CASES}.values()


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
def test_layer_has_all_properties(case: Case, handler) -> None:
    properties = LAYER_PROPERTIES.keys() - ELSEWHERE
    check_layer(case.create(), case.in_shapes, case.inputs, [(2, 3)], handler, sorted(properties))


def test_the_properties_that_are_left_out_are_there():
    assert LAYER_PROPERTIES.keys() > ELSEWHERE


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer_computes_what_it_computes_on_numpy(case: Case, handler) -> None:
    """Forward and backward against float64, on the same numbers.

    Both round the inputs alike; results differ by float32's rounding of each intermediate result,
    which grows with the number of terms (tens) and the cancellation between them.
    """
    harness = LayerHarness(build_layer(case.create(), case.in_shapes), handler, case.inputs)
    harness.resize(3, 2)
    found = both_passes(harness, start=1.0)
    for path, expected in both_passes(harness.reference, start=1.0).items():
        np.testing.assert_allclose(found[path], expected, 2e-4, 2e-5, err_msg=path)
