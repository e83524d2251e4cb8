"""Every property of every layer, with handlers that take turns on several T and B.

Derivatives are compared with central differences on all sizes but (1, 1), on which those of whole
networks are.
"""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LAYER_PROPERTIES, SIZES, LayerHarness, build_layer, check_layer
from brainstorm.testing.layer_harness import Values
from tests.layers.cases import CASES, Case

#: Those that compare with central differences, which no handler but NumPy's computes.
DIFFERENCES = {name for name in LAYER_PROPERTIES if name.endswith("equal central differences")}

#: Those whose passes do the same operations on memory of the same shapes as the passes of others.
SAME_OPERATIONS = {
    "equal passes give equal outputs",
    "deltas and gradients are added to",
    "what is read is not changed",
    "what is not needed backward may be garbage",
    "replay equals direct execution",
    "characteristics tell the truth",
}


def of_sizes(*sizes: tuple[int, int]) -> pytest.MarkDecorator:
    """Take all cases that can have these T and B, and sizes that others do not have."""
    found = [
        pytest.param(case, size, id=f"{case.name}-{size}")
        for case in CASES
        for size in case.sizes
        if size in sizes or size not in SIZES
    ]
    return pytest.mark.parametrize(("case", "size"), found)


@of_sizes((4, 1), (2, 3))
def test_layer_has_all_properties(case: Case, size: tuple[int, int]) -> None:
    check_layer(case.create(), case.in_shapes, case.inputs, [size], NumpyHandler(np.float64))


@of_sizes((1, 1), (1, 3))
def test_all_operations_of_a_layer_are_checked(case: Case, size: tuple[int, int]) -> None:
    """Deltas and gradients have the bits of those that are compared with central differences.

    What remains overwrites, leaves deltas out, goes step by step, has no time axis, is not in
    training, or finds NaN in memory.
    """
    handler = DebugHandler(NumpyHandler(np.float64))
    properties = LAYER_PROPERTIES.keys() - DIFFERENCES - SAME_OPERATIONS
    check_layer(case.create(), case.in_shapes, case.inputs, [size], handler, properties)
    found, expected = (both_passes(case, size, h) for h in (handler, NumpyHandler(np.float64)))
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_array_equal(found[path], values, err_msg=path)


def both_passes(case: Case, size: tuple[int, int], handler: Handler) -> Values:
    """Return outputs, input deltas and gradients on the numbers that the properties begin with."""
    harness = LayerHarness(build_layer(case.create(), case.in_shapes), handler, case.inputs)
    harness.resize(*size)
    rnd = np.random.RandomState(0)
    values, deltas = harness.sample(rnd), harness.sample_out_deltas(rnd)
    targets = harness.delta_paths + harness.gradient_paths
    harness.load(dict.fromkeys(targets, np.zeros(())))
    harness.forward(values)
    harness.backward(deltas)
    return {path: harness.get(path) for path in harness.paths("outputs") + targets}


@of_sizes((1, 3))
def test_a_layer_computes_in_single_precision(case: Case, size: tuple[int, int]) -> None:
    properties = {*DIFFERENCES, "every output element is written"}
    handler = NumpyHandler(np.float32)
    check_layer(case.create(), case.in_shapes, case.inputs, [size], handler, properties)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bigger_and_then_a_smaller_size_give_the_same(case: Case) -> None:
    rnd = np.random.RandomState(1)
    results = []
    for sizes in ([(2, 2)], [(2, 2), (5, 4), (1, 1), (2, 2)]):
        layer, handler = build_layer(case.create(), case.in_shapes), NumpyHandler(np.float64)
        harness = LayerHarness(layer, handler, case.inputs)
        for size in sizes:
            harness.resize(*size)
        rnd.seed(1)
        harness.forward(harness.sample(rnd))
        results.append({path: harness.get(path) for path in harness.paths("outputs")})
    for path, expected in results[0].items():
        np.testing.assert_array_equal(results[1][path], expected)


def test_every_layer_has_a_case() -> None:
    functions = {getattr(bl, name).__name__ for name in bl.__all__}  # some have two names
    functions -= {"Layer", "ExpressionLayer", "Input", "BidirectionalWrapper", "SwiGLU"}
    assert functions == {case.create().layer.layer_type for case in CASES}


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(isinstance(case.create(), ConstructionWrapper) for case in CASES)
