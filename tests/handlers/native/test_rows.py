"""Rows of a table: against the reference, and numbers that are none of its rows."""

from __future__ import annotations

import numpy as np
import pytest

from brainstorm.handlers.native import NativeHandler
from tests.handlers.native.lowered import check_random_calls
from tests.handlers.running import needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("name", ["take_rows_mv", "add_rows_mv"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_rows(name, dtype):
    check_random_calls(NativeHandler(dtype, seed=1), name, 1e-6, strided=True)


def test_numbers_that_are_no_rows_touch_nothing_else():
    table, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((4, 2), np.float32)
    numbers = np.array([[-7], [1e30], [np.nan], [1]], np.float32)
    handler = NativeHandler(seed=1)
    handler.take_rows_mv(table, numbers, out)
    np.testing.assert_array_equal(out, table[[0, 2, 0, 1]])
    handler.add_rows_mv(np.ones((4, 2), np.float32), numbers, table)
    np.testing.assert_array_equal(table, [[0, 1], [3, 4], [4, 5]])


def test_a_number_behind_a_long_table_is_none_of_its_rows():
    rows = 2**24 + 4  # float32 has no such number less one
    memory = np.zeros((rows + 1, 1), np.float32)
    numbers = np.array([[rows], [rows - 2]], np.float32)
    NativeHandler(seed=1).add_rows_mv(np.ones((2, 1), np.float32), numbers, memory[:rows])
    np.testing.assert_array_equal(memory[-4:, 0], [0, 1, 0, 0])
