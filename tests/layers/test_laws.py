"""Every law x every layer x several T and B x handlers."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm import layers as bl
from brainstorm.handlers import DebugHandler, Handler, NumpyHandler
from brainstorm.structure.construction import ConstructionWrapper
from brainstorm.testing import SIZES, LayerBench, build_layer, check_layer
from tests.layers.cases import CASES, Case

HANDLERS = {
    "numpy": NumpyHandler(np.float64),
    "debug": DebugHandler(NumpyHandler(np.float64)),
}


@pytest.mark.parametrize("handler", HANDLERS.values(), ids=HANDLERS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer_obeys_all_laws(case: Case, size: tuple[int, int], handler: Handler) -> None:
    check_layer(case.create(), case.in_shapes, case.inputs, [size], handler)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_layer_obeys_all_laws_in_single_precision(case: Case) -> None:
    handler = NumpyHandler(np.float32)
    check_layer(case.create(), case.in_shapes, case.inputs, [(2, 3)], handler)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bigger_and_then_a_smaller_size_give_the_same(case: Case) -> None:
    rnd = np.random.RandomState(1)
    results = []
    for sizes in ([(2, 2)], [(2, 2), (5, 4), (1, 1), (2, 2)]):
        bench = LayerBench(build_layer(case.create(), case.in_shapes), None, case.inputs)
        for size in sizes:
            bench.resize(*size)
        rnd.seed(1)
        bench.forward(bench.sample(rnd))
        results.append({path: bench.get(path) for path in bench.paths("outputs")})
    for path, expected in results[0].items():
        np.testing.assert_array_equal(results[1][path], expected)


def test_every_layer_has_a_case() -> None:
    functions = {getattr(bl, name).__name__ for name in bl.__all__}  # some have two names
    functions -= {"Layer", "ExpressionLayer", "Input", "BidirectionalWrapper", "SwiGLU"}
    assert functions == {case.create().layer.layer_type for case in CASES}


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(isinstance(case.create(), ConstructionWrapper) for case in CASES)
