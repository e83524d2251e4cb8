"""Every property of every layer, with handlers that take turns on several T and B.

Derivatives are compared with central differences where T and B are both greater than 1, and in
layers that couple time steps for T = 1, too. The others treat each of T * B rows alike, which is a
property, too.
"""

import inspect

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import DebugHandler, NumpyHandler
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import LAYER_PROPERTIES, LayerHarness, build_layer, check_layer
from tests.layers.cases import CASES
from tests.layers.running import both_passes

#: Those that compare with central differences, which no handler but NumPy's computes.
DIFFERENCES = {name for name in LAYER_PROPERTIES if name.endswith("equal central differences")}

#: Those whose passes do the same operations on memory of the same shapes as the passes of others.
SAME_OPERATIONS = {
    "equal passes give equal outputs",
    "deltas and gradients are added to",
    "what is read is not changed",
    "forward passes leave what is for the backward pass",
    "what is not needed backward may be garbage",
    "replay equals direct execution",
    "characteristics tell the truth",
}


#: Those that change what they are given, and classes.
NOT_HANDED_ON = {"BidirectionalWrapper", "ExpressionLayer", "Input", "Layer", "TiedFullyConnected"}

FLOAT64 = NumpyHandler(np.float64)


def harness_for(case, handler):
    return LayerHarness(build_layer(case.create(), case.in_shapes), handler, case.inputs)


def sizes_of(case, *coupled):
    """Return (2, 3), or other sizes for layers that couple time steps."""
    is_coupled = build_layer(case.create(), case.in_shapes).time_coupled
    return coupled if is_coupled else [(2, 3)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer_has_all_properties(case):
    sizes = sizes_of(case, (3, 2), (1, 3))
    check_layer(case.create(), case.in_shapes, case.inputs, sizes, FLOAT64)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_operations_of_a_layer_are_checked(case):
    """Deltas and gradients have the bits of those that are compared with central differences.

    What remains overwrites, leaves deltas out, goes step by step, has no time axis, is not in
    training, or finds NaN in memory.
    """
    handler = DebugHandler(FLOAT64)
    properties = LAYER_PROPERTIES.keys() - DIFFERENCES - SAME_OPERATIONS
    sizes = sizes_of(case, (2, 3), (1, 1))
    check_layer(case.create(), case.in_shapes, case.inputs, sizes, handler, properties)
    for size in sizes:
        harnesses = [harness_for(case, each) for each in (handler, FLOAT64)]
        for harness in harnesses:
            harness.resize(*size)
        found, expected = map(both_passes, harnesses)
        assert found.keys() == expected.keys()
        for path, values in expected.items():
            np.testing.assert_array_equal(found[path], values, err_msg=path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_computes_the_same_in_single_precision_and_after_other_sizes(case):
    handler = NumpyHandler(np.float32)
    harness, reference = (harness_for(case, handler) for _ in range(2))
    for size in ((2, 2), (5, 4), (1, 1), (2, 3)):
        harness.resize(*size)
    reference.resize(2, 3)
    found = both_passes(harness)
    for path, values in both_passes(reference.reference).items():
        np.testing.assert_allclose(found[path], values, 2e-4, 2e-5, err_msg=path)


def test_every_layer_has_a_case():
    functions = {getattr(bl, name).__name__ for name in bl.__all__}  # some have two names
    functions -= {"Layer", "ExpressionLayer", "Input", "BidirectionalWrapper", "SwiGLU"}
    assert functions == {case.create().layer.layer_type for case in CASES}


@pytest.mark.parametrize("name", sorted(set(bl.__all__) - NOT_HANDED_ON))
def test_every_option_of_a_layer_function_is_handed_to_the_layer(name):
    create = getattr(bl, name)
    options = {option: object() for option in inspect.signature(create).parameters}
    del options["name"]
    assert create(**options).layer.layer_kwargs.items() >= options.items()


def test_case_names_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(isinstance(case.create(), ConstructionWrapper) for case in CASES)
