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


def test_a_number_behind_a_long_table_is_none_of_its_rows():
    rows = 2**24 + 4  # float32 has no such number less one
    memory = np.zeros((rows + 1, 1), np.float32)
    numbers = np.array([[rows], [rows - 2]], np.float32)
    NativeHandler(seed=1).add_rows_mv(np.ones((2, 1), np.float32), numbers, memory[:rows])
    np.testing.assert_array_equal(memory[-4:, 0], [0, 1, 0, 0])
