"""Every layer on a GPU, in all of its variants: its numbers, and what it replays.

Outputs, deltas and gradients are compared with those of the float64 reference, of which other
tests know that they are right. What a recorded pass replays (as a CUDA graph), and what the first
writers of deltas write, is compared with what the layer does by itself. The other properties are
those of what a layer does with any handler, whose operations have properties of their own.
"""

import numpy as np
import pytest

from brainstorm.testing import LayerHarness, build_layer, check_layer
from tests.layers.cases import CASES, Case
from tests.layers.running import both_passes

PROPERTIES = ["first writers overwrite", "replay equals direct execution"]


def _kind(case: Case) -> tuple[object, ...]:
    layer = case.create().layer
    options = [(n, v) for n, v in layer.layer_kwargs.items() if type(v) in (str, bool)]
    times = {
        port: shape[: shape.index("B") + 1] if "B" in shape else ()
        for port, shape in case.in_shapes.items()
    }
    return layer.layer_type, str(sorted(o for o in options if o[0] != "activation")), str(times)


#: Without those that differ from others only in sizes, in other numbers or in the activation.
KINDS = {_kind(case): case for case in CASES}.values()


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
def test_layer_is_replayed_and_its_first_writers_overwrite(case: Case, handler) -> None:
    check_layer(case.create(), case.in_shapes, case.inputs, [(2, 3)], handler, PROPERTIES)


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
