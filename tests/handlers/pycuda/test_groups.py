"""Loops that one kernel does: how many launches are left, and the same values."""

import ast
from unittest import mock

import numpy as np
import pytest

from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda import fusing, groups
from brainstorm.layers._normalizing import normalization, over_features
from brainstorm.optree import Variable, evaluate, formula, linearise
from brainstorm.optree import functions as fn
from tests.handlers.running import graph_as_direct, on, traced


def layer_norm(x):
    ones = fn.full((x.shape[-1],), 1.0)
    return normalization.given(mean=over_features, epsilon=1e-5)(x, ones * 2, ones)


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
    "two directions": (lambda x: fn.sum(x, 1) * fn.sum(x, 0), (6, 9), 2),
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


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("name", FORMULAS)
def test_how_many_launches_there_are_and_that_their_order_does_not_matter(
    name, order, handler, values, shim
):
    shim.set_option("order", order)
    x, trees = trees_of(name)
    a, program = values(x.shape), linearise(trees)
    for accumulate in (False, True):
        outputs, adds = [handler.ones(tree.shape) for tree in trees], [accumulate] * len(trees)
        with handler.tracing() as trace:
            handler.run_program(program, [on(handler, a)], outputs, adds)
        assert sum(len(step.call.launches) for step in trace.steps) == FORMULAS[name][2]
        for got, expected in zip(outputs, evaluate(trees, {x: a}), strict=True):
            np.testing.assert_allclose(got.get(), expected + accumulate, 2e-5, 2e-6)


@pytest.mark.parametrize("name", [n for n, (_, shape, _) in FORMULAS.items() if len(shape) == 2])
def test_in_place_and_in_parts_of_wider_arrays(name, handler, values):
    x, (tree, *_) = trees_of(name)
    a, program = values(x.shape), linearise([tree])
    (expected,) = evaluate([tree], {x: a})
    wide = on(handler, np.pad(a, ((0, 0), (1, 3))))
    part, out = wide[:, 1:-3], handler.zeros((x.shape[0], x.shape[1] + 4))
    handler.run_program(program, [part], [out[:, : tree.shape[1]]], [False])
    np.testing.assert_allclose(out.get()[:, : tree.shape[1]], expected, 2e-5, 2e-6)
    if tree.shape == x.shape:
        handler.run_program(program, [part], [part], [False])
        np.testing.assert_allclose(wide.get()[:, 1:-3], expected, 2e-5, 2e-6)
        assert not wide.get()[:, -3:].any()


def test_the_bits_are_those_of_loops_one_by_one(handler, values, monkeypatch):
    x, trees = trees_of("layer norm")
    a = on(handler, values(x.shape))
    found = []
    for _ in range(2):
        out = handler.zeros(x.shape)
        handler.run_program(linearise(trees[:1]), [a], [out], [False])
        found.append(out.get())
        monkeypatch.setattr(fusing, "MOST_PASSED", 0)
    np.testing.assert_array_equal(*found)


def test_rows_with_too_much_to_do_have_kernels_that_share_it(handler, values, monkeypatch):
    monkeypatch.setattr(groups, "MOST_TERMS", 5)
    x = on(handler, values((3, 8)))
    calls = traced(handler, lambda: handler.softmax_m(x, x))
    assert sum(len(call.launches) for call in calls) == 3


# -- across operations -----------------------------------------------------------------------------


def ops(*names):
    """Return what calls operations with arrays of the case: ``"dot_mm x w y"``."""

    def run(handler, arrays):
        for name, *given in (text.split() for text in names):
            if name == "queued":
                handler.call(lambda: None, is_queued=True)
            elif name == "halves":
                x, *outputs = (arrays[g] for g in given)
                handler.compute(formula(lambda x: [fn.tanh(x), x * 0.5]), [x], outputs)
            else:
                given = [arrays[g] if g in arrays else ast.literal_eval(g) for g in given]
                getattr(handler, name)(*given)

    return run


def computed(function, *names):
    return lambda handler, arrays: handler.compute(
        formula(function), [arrays[n] for n in names[:-1]], [arrays[names[-1]]]
    )


def both(*parts):
    def run(handler, arrays):
        for part in parts:
            part(handler, arrays)

    return run


def of_results(*names):
    """Sums over the first axis, and what is made of them."""
    return both(computed(lambda x: fn.sum(x * x, 0, False), "x", names[0]), ops(*names[1:]))


SHAPES = {
    **dict.fromkeys("xyzu", (40, 6)), "w": (6, 6), "s": (6,), "t": (6,), "c": (40, 1),
    "long": (9000, 3), "r": (3,), "f": (240,), "one": (1,),
    "q": (4, 7, 5), "m": (5, 7), "o": (5, 7, 4), "xx": (4, 5), "no": (0, 6),
    "n": (0, 1), "columns": (6, 0), "row": (1, 0),
    "v": (6, 1), **dict.fromkeys("de", (1, 6)),
}  # fmt: skip
#: What is done with arrays of these shapes, and of how many nodes the graph is.
STEPS = {
    "element by element": (ops("mult_st 2.0 x y", "add_tt y x x", "mult_st 3.0 f f"), 1),
    "derivatives, and their sums past a product": (
        ops("rel_deriv x y y y", "dot_mm y w x", "sum_t y 0 s"), 2
    ),
    "biases behind products": (ops("affine_mm x w s y 'rel'", "affine_mm c v t z 'tanh'"), 3),
    "results of reductions": (of_results("s", "sqrt_t s s", "mult_st 2.0 s t"), 1),
    "results of chunks": (
        both(ops("mult_st 2.0 long long", "sum_t long 0 r"), ops("sqrt_t r r")), 1
    ),
    "results on two axes": (
        both(computed(lambda x: fn.sum(x, 1, False), "q", "xx"), ops("sqrt_t xx xx")), 1
    ),
    "one result": (both(ops("sum_t x None one", "mult_st 2.0 one one", "mult_tt x x y")), 1),
    "sums of sums": (ops("sum_t x 1 c", "sum_t c 0 one"), 2),
    "rows, and what is behind them": (
        ops("add_mv x s x", "softmax_m x y", "mult_st 2.0 c c", "mult_mv y c y"), 1
    ),
    "rows on two axes": (
        ops("mult_st 2.0 q q", "attention_softmax q None True q", "mult_st 2.0 q q"), 1
    ),
    "rows on two axes in another order": (
        both(ops("attention_softmax q m True q"), computed(fn.transpose, "q", "o")), 2
    ),
    "rows of others": (both(ops("softmax_m x y"), computed(lambda y: y[::-1] * 2.0, "y", "z")), 2),
    "a result at each element": (of_results("s", "add_mv x s y"), 2),
    "sums where others still read": (of_results("s", "add_mv y s y", "sum_t y 0 s"), 3),
    "a result that is overwritten before": (
        both(ops("mult_st 2.0 s s"), of_results("s"), ops("mult_st 2.0 s s")), 2
    ),
    "what neighbours wrote": (
        both(ops("mult_st 2.0 x x"), computed(lambda x: x[::-1], "x", "y")), 2
    ),
    "a product that reads it": (ops("mult_st 2.0 x x", "dot_mm x w y", "mult_st 2.0 x x"), 3),
    "a product that writes it": (ops("mult_st 2.0 y x", "dot_mm x w y", "mult_st 2.0 y x"), 3),
    "work of others": (ops("mult_st 2.0 x x", "queued", "mult_st 2.0 x x"), 3),
    "elements out of whole arrays": (ops("take_rows_mv w c x", "add_mv x s x", "sum_t x 0 s"), 2),
    "whole arrays that were written": (ops("mult_st 2.0 y y", "take_rows_mv y c x"), 2),
    "whole arrays that are written then": (ops("take_rows_mv y c x", "mult_st 2.0 y y"), 2),
    "what is there already": (ops("take_rows_mv w c x", "dot_mm x w y", "take_rows_mv w c x"), 2),
    "what is not there any more": (
        ops("take_rows_mv w c x", "mult_st 2.0 w w", "take_rows_mv w c x"), 3
    ),
    "what is overwritten": (ops("take_rows_mv w c x", "dot_mm y w x", "take_rows_mv w c x"), 3),
    "what adds again": (ops("mult_add_tt x y z", "dot_mm z w u", "mult_add_tt x y z"), 3),
    "what counts on": (ops("mult_st 2.0 x x", "dot_mm x w y", "mult_st 2.0 x x"), 3),
    "nothing": (
        ops("softmax_m no no", "sum_t no 1 n", "mult_st 2.0 x x", "sum_t columns 0 row"), 1
    ),
    "sums of nothing": (ops("sum_t no 0 s", "sum_t columns 1 v", "mult_st 2.0 v v"), 1),
    "sums of one row": (ops("tanh d e", "sum_t e 0 s"), 1),
    "other sizes": (ops("mult_st 2.0 x x", "mult_st 2.0 s s", "mult_st 2.0 long long"), 3),
}  # fmt: skip


@pytest.fixture
def arrays(values):
    """A function of {name: shape}, which returns such arrays of the host."""
    return lambda shapes: {name: values(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("order", ["forward", "reversed", "shuffled"])
@pytest.mark.parametrize("name", STEPS)
def test_a_graph_is_the_bits_of_operations_in_fewer_nodes(name, order, handler, arrays, shim):
    steps, nodes = STEPS[name]
    shim.set_option("order", order)
    assert len(graph_as_direct(handler, arrays(SHAPES), steps).launches) == nodes


#: Operations on arrays that lie in the same memory, some of them in parts of others, or between
#: the columns of others.
PLACES = {
    "a": ((40, 6), 0), "b": ((40, 6), 120), "c": ((40, 6), 360), "w": ((6, 6), 600),
    "s": ((6,), 606), "t": ((6,), 640), "p": ((40, 1), 20), "q": ((40, 1), 650),
    "wide": ((40, 12), 700), "v": ((12, 6), 600),
}  # fmt: skip
COLUMNS = {"i": slice(0, 6), "j": slice(6, 12), "k": slice(4, 10)}
RANDOM = (
    "mult_st 0.5 M N", "add_tt M N L", "add_mv M S N", "mult_mv M P N", "sum_t M 0 S",
    "sum_t M 1 P", "dot_mm M w N", "softmax_m M N", "rel_deriv M N L L", "take_rows_mv w q M",
    "mult_add_tt M N L", "tanh M N", "dot_mm wide v M", "halves M i j",
)  # fmt: skip


@pytest.mark.parametrize("rows", [40, 1])
@pytest.mark.parametrize("compute", ["f32", "bf16"])
@pytest.mark.parametrize("seed", range(5))
def test_random_operations_on_memory_that_they_share(seed, compute, rows, shim):
    handler, rnd = PyCudaHandler(seed=1, compute=compute), np.random.RandomState(seed)

    def parts_of(memory):
        found = {}
        for name, (shape, at) in PLACES.items():
            part = memory[at : at + np.prod(shape)].reshape(shape)
            found[name] = part[:rows] if shape[0] == 40 else part
        return found | {name: found["wide"][:, part] for name, part in COLUMNS.items()}

    def drawn(text):
        choices = {**dict.fromkeys("MNL", "abcijk"), "S": "st", "P": "pq"}
        return " ".join(rnd.choice(list(choices.get(word, [word]))) for word in text.split())

    shim.set_option("order", "shuffled")
    memory = rnd.normal(size=1180)
    run = ops(*(drawn(text) for text in rnd.choice(RANDOM, 25)))
    graph_as_direct(
        handler, {"memory": memory}, lambda handler, arrays: run(handler, parts_of(**arrays))
    )


def test_fusing_a_long_graph_takes_linear_time(handler, monkeypatch):
    def comparisons(count):
        x, out = (handler.zeros((count, 64)) for _ in range(2))

        def operations():
            for t in range(count):
                handler.mult_st(2.0, x[t], out[t])

        meet.reset_mock()
        fusing.fused(piece for call in traced(handler, operations) for piece in call.pieces)
        return meet.call_count

    monkeypatch.setattr(fusing, "meet", meet := mock.Mock(wraps=fusing.meet))
    first = comparisons(600)  # more kernels than a loop may pass
    assert comparisons(1200) < 2.5 * first


@pytest.mark.parametrize("columns", [8, 6, 7])
def test_gates_are_rounded_by_what_computes_them(columns, arrays):
    gates = [(lambda x, k=k: x * 0.5 + k) for k in range(4)]

    def steps(handler, arrays):
        parts = [arrays["z"][:, k * columns : (k + 1) * columns] for k in range(4)]
        handler.compute(formula(lambda x: [gate(x) for gate in gates]), [arrays["x"]], parts)
        handler.dot_mm(arrays["z"], arrays["w"], arrays["y"])

    shapes = {"x": (5, columns), "z": (5, 4 * columns), "w": (4 * columns, 3), "y": (5, 3)}
    graph = graph_as_direct(PyCudaHandler(seed=1, compute="bf16"), arrays(shapes), steps)
    assert len(graph.launches) == 3  # the gates, w, and their product


def test_weights_of_attention_are_rounded_by_what_computes_them(arrays):
    def steps(handler, arrays):
        handler.attention_softmax(arrays["p"], None, True, arrays["p"])
        handler.batched_dot_mm(arrays["p"], arrays["v"], arrays["a"])

    shapes = {"p": (6, 3, 6), "v": (6, 3, 4), "a": (6, 3, 4)}
    graph = graph_as_direct(PyCudaHandler(seed=1, compute="bf16"), arrays(shapes), steps)
    assert len(graph.launches) == 2  # all that is rounded, and the product
