"""Steps of a walk through time that are one launch: the bits of one operation after the other."""

import re
import sys
import types

import numpy as np
import pytest

from brainstorm.handlers import NumpyHandler, PyCudaHandler
from brainstorm.handlers.pycuda import building, recurrence_parts, recurrences
from brainstorm.layers import BidirectionalWrapper, ClockworkLstm, Gru, Lstm, Recurrent
from brainstorm.training import SgdStepper
from tests.handlers.running import graph_as_direct, graph_of, on
from tests.networks import batch_for, trainable
from tests.trainings import run_steps

STEPS, BATCH = 9, 3


def recurrent(graph):
    """Return how many nodes of a graph are recurrences."""
    return sum(
        bool(launch.kernel and launch.kernel.name.startswith("steps_")) for launch in graph.launches
    )


def trained(handler, layer, batch=BATCH):
    """Return the parameters after three training steps, and the graph of a step if there is one."""
    net, stepper = trainable(layer, handler=handler), SgdStepper(0.1)
    stepper.start(net)
    parameters = run_steps(net, stepper, [batch_for(STEPS, batch, seed) for seed in range(3)])
    return parameters, [graph for trace in stepper.traces.values() for graph in trace._functions]


@pytest.fixture
def blocks_are(monkeypatch):
    """A function that has a row computed by so many blocks, whether or not one would do."""

    def choose(blocks):
        for module in (recurrence_parts, recurrences):
            monkeypatch.setattr(module, "blocks_for", lambda device, rows: (blocks,))

    return choose


@pytest.mark.parametrize(
    ("compute", "batch", "blocks"),
    [("f32", 3, 1), ("f32", 1, 1), ("tf32", 3, 1), ("bf16", 3, 1), ("f32", 3, 2), ("bf16", 1, 8)],
)
@pytest.mark.parametrize("kind", [Recurrent, Gru, Lstm, ClockworkLstm])
def test_training_is_the_same_bits_in_one_launch_per_walk(
    kind, compute, batch, blocks, blocks_are, monkeypatch
):
    blocks_are(blocks)
    got, (graph,) = trained(PyCudaHandler(seed=1, compute=compute), kind(5, name="Layer"), batch)
    assert recurrent(graph) == 2  # forward and backward
    monkeypatch.setenv("BRAINSTORM_REPLAY", "0")
    expected, _ = trained(PyCudaHandler(seed=1, compute=compute), kind(5, name="Layer"), batch)
    np.testing.assert_array_equal(got, expected)
    if compute == "f32":
        expected, _ = trained(NumpyHandler(np.float32), kind(5, name="Layer"), batch)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


#: Names of cases, and what is done to h (time, rows, 6), z of the same shape and the matrices in
#: each step, besides z[t] += h[t - 1] @ matrix and h[t] = tanh(z[t]).
BESIDES = {
    "nothing": lambda on, h, z, matrices, t: None,
    "a matrix for each step": lambda on, h, z, matrices, t: None,
    "a row of another sequence": lambda on, h, z, matrices, t: on.add_tt(h[t], z[t][::-1], h[t]),
    "another matrix": lambda on, h, z, matrices, t: on.mult_st(0.5, matrices[0], matrices[0]),
    "a sum of all rows": lambda on, h, z, matrices, t: on.sum_t(h[t], 0, z[t][0]),
    "a matrix of h": lambda on, h, z, matrices, t: on.copy_to(h[t - 1][:, :5], z[t][:, 1:]),
    "columns in another order": lambda on, h, z, matrices, t: on.add_tt(h[t], z[t][:, ::-1], h[t]),
    "columns of another number": lambda on, h, z, matrices, t: on.copy_to(z[t][:, 2:], h[t][:, :4]),
    "columns of another step": lambda on, h, z, matrices, t: on.add_tt(h[t], z[5][:, ::-1], h[t]),
}


def walk(handler, besides, turned, wide, batch=BATCH):
    """Walk through arrays, and return the graph of that; see `graph_as_direct`."""
    rng = np.random.default_rng(4)
    h, z = rng.normal(size=(2, STEPS + 1, batch, 40 if wide else 6))
    values = {"h": h, "z": z, "matrices": rng.normal(size=(STEPS + 1, 6, 6))}

    def steps(handler, arrays):
        h, z, matrices = arrays["h"][:, :, :6], arrays["z"][:, :, :6], arrays["matrices"]
        count = STEPS if besides == "a matrix for each step" else 1
        products = [handler.repeated_dot_add(matrices[i], transb=turned) for i in range(count)]
        for t in range(1, STEPS + 1):
            products[(t - 1) % count](h[t - 1], z[t])
            handler.tanh(z[t], h[t])
            BESIDES[besides](handler, h, z, matrices, t)

    return graph_as_direct(handler, values, steps)


@pytest.mark.parametrize("blocks", [1, 4])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("besides", BESIDES)
def test_rows_that_need_nothing_of_each_other(besides, turned, wide, blocks, blocks_are, handler):
    blocks_are(blocks)
    joined = besides in ("nothing", "a matrix for each step", "a matrix of h")
    joined |= besides.startswith("columns")
    assert recurrent(walk(handler, besides, turned, wide)) == joined


@pytest.mark.parametrize(
    ("besides", "barriers"),
    [("nothing", [1, 2]), ("a matrix of h", [2, 2, 2]), ("columns in another order", [2, 2])],
)
def test_a_cluster_waits_where_its_blocks_need_something_of_each_other(
    besides, barriers, blocks_are, handler
):
    blocks_are(2)
    text = walk(handler, besides, True, False).launches[0].kernel.source
    assert re.findall(r"wait_for_cluster<(\d)>", text) == list(map(str, barriers))


def test_columns_beside_those_of_a_product(blocks_are, handler, rng):
    blocks_are(2)
    h, z = rng.normal(size=(STEPS + 1, 2, 6)), rng.normal(size=(STEPS + 1, 2, 12))
    matrix = on(handler, rng.normal(size=(6, 6)))

    def steps(handler, arrays):
        product = handler.repeated_dot_add(matrix)
        for t in range(1, STEPS + 1):
            product(arrays["h"][t - 1], arrays["z"][t, :, :6])
            handler.tanh(arrays["z"][t, :, 3:9], arrays["h"][t])

    graph = graph_as_direct(handler, {"h": h, "z": z}, steps)
    assert "wait_for_cluster<1>" not in graph.launches[0].kernel.source


def test_loops_over_columns_of_several_units(blocks_are, handler, rng):
    """Blocks divide those in one piece, and those of a product unit by unit."""
    blocks_are(2)
    h, z = rng.normal(size=(STEPS + 1, 2, 6)), rng.normal(size=(STEPS + 1, 2, 12))
    matrix = on(handler, rng.normal(size=(6, 12)))

    def steps(handler, arrays):
        h, z, y = arrays["h"], arrays["z"], arrays["y"]
        product = handler.repeated_dot_add(matrix)
        for t in range(1, STEPS + 1):
            product(h[t - 1], z[t])
            handler.tanh(z[t], y[t])
            handler.mult_tt(y[t, :, :6], y[t, :, 6:], h[t])

    graph = graph_as_direct(handler, {"h": h, "z": z, "y": z}, steps)
    assert len(graph.launches) == 1


def test_as_few_blocks_as_find_room_for_a_matrix(handler):
    found = {}
    for units in (100, 160, 161, 200, 256, 300, 448, 460):
        a, out = handler.ones((32, units)), handler.ones((32, 4 * units))
        b = handler.ones((4 * units, units))
        product = handler.repeated_dot_add(b, transb=True)
        (launch,) = graph_of(
            handler, lambda product=product, a=a, out=out: product(a, out)
        ).launches
        text = launch.kernel.source if launch.kernel else "wait_for_cluster<0>"
        found[units] = int(re.findall(r"wait_for_cluster<(\d)>", text)[0])
    assert found == {100: 1, 160: 1, 161: 2, 200: 2, 256: 4, 300: 4, 448: 8, 460: 0}


@pytest.mark.parametrize(("rows", "arch", "expected"), [
    (32, "sm_90", (1, 2, 4, 8)), (33, "sm_100", (1, 2, 4)), (128, "sm_90", (1, 2)),
    (1, "sm_89", (1,)),
])  # fmt: skip
def test_how_many_blocks_there_may_be(rows, arch, expected):
    device = types.SimpleNamespace(arch=arch)
    assert recurrence_parts.blocks_for(device, rows) == expected


@pytest.mark.parametrize(("move", "columns", "joined"), [(4, 8, 1), (1, 8, 0), (1, 5, 1)])
def test_steps_with_a_matrix_of_another_alignment_are_not_joined(
    move, columns, joined, handler, rng
):
    """Four elements at a time are read only where each step has them at multiples of 16 bytes."""
    values = {"a": rng.normal(size=(STEPS, BATCH, 4)), "out": np.zeros((STEPS, BATCH, columns))}
    numbers = on(handler, rng.normal(size=4 * columns + move * STEPS))

    def steps(handler, arrays):
        for t in range(STEPS):
            matrix = numbers[move * t : move * t + 4 * columns].reshape(4, columns)
            handler.dot_add_packed(arrays["a"][t], matrix, arrays["out"][t])

    assert recurrent(graph_as_direct(handler, values, steps)) == joined


@pytest.mark.parametrize("besides", ["nothing", "a row of another sequence", "another matrix"])
def test_a_single_row_needs_no_other(besides, handler):
    assert recurrent(walk(handler, besides, True, False, batch=1)) == 1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("held", "shared"), [(4, 4000), (2, 4000), (0, 0)])
def test_a_matrix_that_finds_no_room_in_registers(held, shared, turned, handler, monkeypatch):
    monkeypatch.setattr(recurrence_parts, "MOST_HELD", held)
    monkeypatch.setattr(handler._device, "shared", 4 * shared)
    monkeypatch.setattr(building, "has_few_rows", lambda *_: True)
    assert recurrent(walk(handler, "nothing", turned, False)) == 1


@pytest.mark.parametrize("steps", [6, 45])
@pytest.mark.parametrize("compute", ["f32", "bf16"])
def test_walks_of_all_lengths_are_not_cut(compute, steps, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STEPS", steps)
    for layer, walks in ((Lstm(3), 2), (BidirectionalWrapper(Lstm, 3), 4)):
        _, (graph,) = trained(PyCudaHandler(seed=1, compute=compute), layer)
        assert recurrent(graph) == walks


@pytest.mark.parametrize("by_gate", [False, True])
@pytest.mark.parametrize("gates", [1, 2, 4, 8])
def test_products_of_several_gates_are_one_step(gates, by_gate, handler, rng):
    shape = (gates, STEPS, BATCH, 6) if by_gate else (STEPS, BATCH, gates, 6)
    order = (0, 1, 2, 3) if by_gate else (2, 0, 1, 3)
    shapes = {"h": (STEPS + 1, BATCH, 6), "z": shape, "matrices": (gates, 6, 6)}

    def steps(handler, arrays):
        h, z, matrices = arrays["h"], arrays["z"].transpose(order), arrays["matrices"]
        products = [handler.repeated_dot_add(matrices[i]) for i in range(gates)]
        for t in range(STEPS):
            for i in range(gates):
                products[i](h[t], z[i, t])
            handler.tanh(z[gates - 1, t], h[t + 1])

    values = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    graph = graph_as_direct(handler, values, steps)
    assert (recurrent(graph), len(graph.launches)) == (1, 1)


def test_a_launch_takes_the_arguments(handler, rng):
    h, z = (on(handler, value) for value in rng.normal(size=(2, STEPS, 2, 6)))
    matrix = on(handler, rng.normal(size=(6, 6)))
    for operations, joined in ((10, 1), (70, 0)):

        def steps(operations=operations):
            product = handler.repeated_dot_add(matrix)
            for t in range(1, STEPS):
                product(h[t - 1], z[t])
                for _ in range(operations):
                    handler.add_tt(h[t], z[t], h[t])

        assert recurrent(graph_of(handler, steps)) == joined


def test_kernels_depend_neither_on_sizes_nor_on_steps(handler, rng):
    names = set()
    for rows, steps in ((2, 5), (3, 5), (3, 9), (7, 6)):
        x = on(handler, rng.normal(size=(rows, steps, 6)))
        z, matrix = handler.zeros((steps, rows, 6)), handler.ones((6, 6))

        def walk(x=x, z=z, matrix=matrix, steps=steps):
            for t in range(1, steps):
                handler.repeated_dot_add(matrix)(x[:, t], z[t])
                handler.add_tt(z[t - 1], z[t], z[t])

        (launch,) = graph_of(handler, walk).launches
        names.add(launch.kernel.name)
    assert len(names) == 1


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "terms"),
    [(1, 1, 1), (2, 3, 700), (128, 5, 33), (3, 700, 31), (5, 130, 64), (2, 33, 2048)],
)
def test_products_of_few_rows(rows, columns, terms, turned, handler, rng):
    shapes = (rows, terms), (columns, terms) if turned else (terms, columns), (rows, columns)
    a, b, target = (on(handler, rng.normal(size=shape)) for shape in shapes)
    expected = target.get() + a.get().astype(float) @ (b.get().T if turned else b.get())
    handler.repeated_dot_add(b, transb=turned)(a, target)
    np.testing.assert_allclose(target.get(), expected, rtol=1e-4, atol=1e-5 * terms**0.5)


@pytest.mark.parametrize(("rows", "columns", "terms"), [(129, 2, 2), (2, 2, 2049), (2, 950, 950)])
def test_larger_products_are_cublas(rows, columns, terms, handler):
    shapes = (rows, terms), (terms, columns), (rows, columns)
    a, b, out = map(handler.ones, shapes)
    (launch,) = graph_of(handler, lambda: handler.repeated_dot_add(b)(a, out)).launches
    assert launch.kernel is None
