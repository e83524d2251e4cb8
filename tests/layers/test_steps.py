"""The rows of sequences as views that stay the same objects."""

import gc
import weakref

import numpy as np

from brainstorm.layers._steps import rows_by_step


def test_rows_are_views_of_each_step_up_to_the_shortest():
    a, b = np.arange(6.0).reshape(3, 2), np.zeros((4, 1))
    steps = rows_by_step(a, b)
    assert len(steps) == 3
    for t, (row, other) in enumerate(steps):
        np.testing.assert_array_equal(row, a[t])
        assert np.shares_memory(row, a)
        assert np.shares_memory(other, b[t])


def test_the_same_array_has_the_same_rows():
    a, b = np.zeros((2, 3)), np.zeros((2, 3))
    first = rows_by_step(a)
    assert all(x is y for (x,), (y, _) in zip(first, rows_by_step(a, b), strict=True))
    assert rows_by_step(b)[0][0] is not first[0][0]


def test_rows_are_forgotten_with_their_array():
    memory = np.zeros((2, 3))
    view = memory[:]
    row = weakref.ref(rows_by_step(view)[0][0])
    assert row() is not None
    del view
    gc.collect()
    assert row() is None
