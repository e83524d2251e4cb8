"""Rows that are looked up in tables, and added to them: of all indices that there can be."""

import numpy as np
import pytest

from brainstorm.errors import HandlerValidationError
from brainstorm.handlers import PyCudaHandler
from brainstorm.handlers.pycuda.builders import TILE
from tests.handlers.running import on

ROWS = 300
#: Number of indices and a generator to indices: some of these are of no row.
INDICES = {
    "any": lambda n, rng: rng.integers(0, ROWS, n),
    "few": lambda n, rng: rng.integers(0, 3, n) * 100,
    "one in half of all": lambda n, rng: rng.integers(0, ROWS, n) * rng.integers(0, 2, n),
    "all the same": lambda n, rng: np.full(n, 7),
    "all different, backwards": lambda n, rng: np.arange(n)[::-1],
    "of no row": lambda n, rng: rng.choice([-1, -ROWS, 0, 5, 10**9, np.nan], n),
}
COUNTS = (0, 1, 2, 31, 32, 33, 65, TILE - 1, TILE, TILE + 1, 3 * TILE + 5)


def added(table, rows, indices):
    """Return a table with rows added to it, one after the other."""
    table = table.astype(np.float64)
    for row, index in zip(rows, indices, strict=True):
        if 0 <= index < len(table):
            table[int(index)] += row
    return table


def run_add(handler, table, rows, indices):
    """Return a table with rows added to it on the GPU."""
    out = on(handler, table)
    handler.add_rows_mv(on(handler, rows), handler.create_from_numpy(indices[:, None]), out)
    return out.get()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("kind", INDICES)
def test_rows_are_added_where_indices_say(kind, count, handler, rng):
    indices = np.asarray(INDICES[kind](count, rng), np.float32)
    table = np.ones((max(ROWS, count), 2), np.float32)
    rows = rng.integers(-8, 9, (count, 2)).astype(np.float32)  # sums are exact
    got = run_add(handler, table, rows, indices)
    np.testing.assert_array_equal(got, added(table, rows, indices))


@pytest.mark.parametrize("kind", ["few", "one in half of all", "all the same"])
def test_the_bits_of_sums_do_not_depend_on_threads(kind, rng, shim):
    indices = np.asarray(INDICES[kind](TILE + 100, rng), np.float32)
    table = np.zeros((ROWS, 3), np.float32)
    rows = rng.normal(size=(len(indices), 3)).astype(np.float32)
    expected = run_add(PyCudaHandler(seed=1), table, rows, indices)
    np.testing.assert_allclose(expected, added(table, rows, indices), rtol=1e-5, atol=1e-4)
    for order, multiprocessors in (("reversed", 1), ("shuffled", 132)):
        shim.set_option("order", order)
        shim.set_option("multiprocessors", multiprocessors)
        got = run_add(PyCudaHandler(seed=1), table, rows, indices)
        np.testing.assert_array_equal(got, expected)


def test_rows_of_an_index_are_added_in_their_order(handler):
    rows = np.array([[1e8], [1.0], [-1e8], [5.0], [1.0]], np.float32)
    got = run_add(handler, np.zeros((2, 1), np.float32), rows, np.float32([1, 1, 1, 0, 1]))
    np.testing.assert_array_equal(got, [[5], [1]])  # in another order 2, or 0


def test_a_graph_sorts_again(handler, rng, shim):
    first, second = (rng.integers(0, ROWS, (TILE + 1, 1)).astype(np.float32) for _ in range(2))
    rows, out = handler.ones((TILE + 1, 2)), handler.zeros((ROWS, 2))
    v = handler.create_from_numpy(first)
    with handler.tracing() as trace:
        handler.add_rows_mv(rows, v, out)
    v[...] = second
    handler.fill(out, 0.0)
    shim.reset()
    trace.replay()
    counters = shim.counters()
    assert (counters["graph_launches"], counters["allocations"]) == (1, 0)
    expected = np.bincount(second[:, 0].astype(int), None, ROWS)
    np.testing.assert_array_equal(out.get()[:, 1], expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_indices_of_every_dtype(dtype, handler):
    indices = np.array([3, 250, 3, 0], dtype)
    table = np.arange(600, dtype=np.float32).reshape(300, 2)
    rows = np.ones((4, 2), np.float32)
    got = run_add(handler, table, rows, indices)
    np.testing.assert_array_equal(got, added(table, rows, indices))
    wide = handler.create_from_numpy(np.repeat(indices, 2).reshape(4, 2))
    out = handler.zeros((4, 2))
    handler.take_rows_mv(on(handler, table), wide[:, 1:], out)
    np.testing.assert_array_equal(out.get(), table[[3, 250, 3, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_indices_that_few_floats_are(dtype, handler):
    """Between 2**24 and 2**25 only even numbers are float32."""
    size = 2**24 + 4
    indices = size - np.array([[1], [2], [1], [3], [0]])
    indices = indices // 2 * 2 if dtype == np.float32 else indices
    table = handler.zeros((size, 1))
    rows = on(handler, [[1], [2], [4], [8], [16]])
    v = handler.create_from_numpy(indices.astype(dtype))
    handler.add_rows_mv(rows, v, table)
    expected = added(np.zeros((5, 1)), rows.get(), indices[:, 0] - (size - 5))
    np.testing.assert_array_equal(table[size - 5 :].get(), expected)
    out = handler.zeros((4, 1))
    handler.take_rows_mv(table, v[:4], out)
    np.testing.assert_array_equal(out.get(), expected[indices[:4, 0] - (size - 5)])


def test_tables_without_rows_and_rows_without_columns(handler):
    empty, v, rows = handler.zeros((0, 2)), handler.zeros((4, 1)), handler.ones((4, 2))
    handler.add_rows_mv(rows, v, empty)
    handler.add_rows_mv(handler.ones((4, 0)), v, handler.zeros((3, 0)))
    handler.take_rows_mv(empty, handler.zeros((0, 1)), handler.zeros((0, 2)))
    text = r"take_rows_mv on a GPU: expected a table with rows to look up, got .*\[0, 2\].* rows\."
    with pytest.raises(HandlerValidationError, match=text):
        handler.take_rows_mv(empty, v, rows)
