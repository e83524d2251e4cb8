"""Loops that one kernel does row by row: how many launches are left, and the same values."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers.pycuda import programs, rows
from brainstorm.layers._normalizing import normalization, over_features
from brainstorm.optree import Variable, evaluate, formula, linearise
from brainstorm.optree import functions as fn


def layer_norm(x):
    ones = fn.full((x.shape[-1],), 1.0)
    return normalization(over_features, 1e-5, True)(x, ones * 2, ones)


def across_rows(x):
    """Sums of rows, of which every row reads all."""
    s = fn.sum(fn.tanh(x), 1)
    return s * fn.transpose(s)


#: Formulas of a matrix, or of more axes, and how many launches they are.
FORMULAS = {
    "softmax": (lambda x: fn.softmax(x), (5, 7), 1),
    "softmax of wide rows": (lambda x: fn.softmax(x), (3, 700), 1),
    "softmax of few": (lambda x: fn.softmax(x), (300, 2), 1),
    "softmax over all axes but one": (lambda x: fn.softmax(x, (1, 2)), (3, 4, 5), 1),
    "log-softmax and more": (lambda x: [fn.log_softmax(x), fn.softmax(x * 2.0)], (6, 5), 1),
    "cross-entropy": (lambda x: fn.cross_entropy_with_logits(x, fn.sig(x)), (6, 5), 1),
    "layer norm": (layer_norm, (3, 4, 6), 1),
    "variance": (lambda x: fn.var(x, 1), (6, 9), 1),
    "one row": (lambda x: fn.softmax(x), (1, 9), 3),
    "columns": (lambda x: fn.softmax(x, 0), (6, 9), 3),
    "rows that read others": (across_rows, (6, 9), 2),
    "rows in another order": (lambda x: fn.softmax(x)[::-1] * 2.0, (6, 9), 2),
    "two directions": (lambda x: fn.sum(x, 1) * fn.sum(x, 0), (6, 9), 3),
    "of places": (lambda x: fn.argmax(x - fn.max(x, 1), 1), (6, 9), 2),
}


def trees_of(name):
    function, shape, _ = FORMULAS[name]
    x = Variable(shape)
    trees = function(x)
    return x, trees if isinstance(trees, list) else [trees]


@pytest.fixture
def values(rng):
    return lambda shape: rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", FORMULAS)
def test_how_many_launches_there_are(name, handler, values):
    _, trees = trees_of(name)
    function, shape, count = FORMULAS[name]
    arrays = [handler.create_from_numpy(values(shape))], [handler.zeros(t.shape) for t in trees]
    with handler.tracing() as trace:
        handler.compute(formula(function), *arrays)
    assert sum(len(step.call.launches) for step in trace.steps) == count


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("name", FORMULAS)
def test_values_do_not_depend_on_the_order_of_threads(name, order, handler, values, shim):
    shim.set_option("order", order)
    x, trees = trees_of(name)
    a, program = values(x.shape), linearise(trees)
    for accumulate in (False, True):
        outputs = [handler.ones(tree.shape) for tree in trees]
        handler.run_program(
            program, [handler.create_from_numpy(a)], outputs, [accumulate] * len(trees)
        )
        for got, expected in zip(outputs, evaluate(trees, {x: a}), strict=True):
            np.testing.assert_allclose(got.get(), expected + accumulate, 2e-5, 2e-6)


@pytest.mark.parametrize("name", [n for n, (_, shape, _) in FORMULAS.items() if len(shape) == 2])
def test_in_place_and_in_parts_of_wider_arrays(name, handler, values):
    x, (tree, *_) = trees_of(name)
    a, program = values(x.shape), linearise([tree])
    (expected,) = evaluate([tree], {x: a})
    wide = handler.create_from_numpy(np.pad(a, ((0, 0), (1, 3))))
    part, out = wide[:, 1:-3], handler.zeros((x.shape[0], x.shape[1] + 4))
    handler.run_program(
        program, [part], [out[:, : tree.shape[1]]] if tree.ndim == 2 else [], [False]
    )
    np.testing.assert_allclose(out.get()[:, : tree.shape[1]], expected, 2e-5, 2e-6)
    if tree.shape == x.shape:
        handler.run_program(program, [part], [part], [False])
        np.testing.assert_allclose(wide.get()[:, 1:-3], expected, 2e-5, 2e-6)
        assert not wide.get()[:, -3:].any()


def test_the_bits_are_those_of_loops_one_by_one(handler, values, monkeypatch):
    x, trees = trees_of("layer norm")
    a = handler.create_from_numpy(values(x.shape))
    found = []
    for _ in range(2):
        out = handler.zeros(x.shape)
        handler.run_program(linearise(trees[:1]), [a], [out], [False])
        found.append(out.get())
        monkeypatch.setattr(programs, "grouped", lambda walks: [[walk] for walk in walks])
    np.testing.assert_allclose(*found, 1e-6, 1e-6)


def test_rows_with_too_much_to_do_have_kernels_that_share_it(handler, values, monkeypatch):
    monkeypatch.setattr(rows, "MOST_TERMS", 5)
    x = handler.create_from_numpy(values((3, 8)))
    with handler.tracing() as trace:
        handler.softmax_m(x, x)
    assert sum(len(step.call.launches) for step in trace.steps) == 3
