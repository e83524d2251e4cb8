"""Columns: they read like lists, and lie in a file but for their ends."""

from __future__ import annotations

import copy
import math
import os
import pickle

import numpy as np
import pytest

from brainstorm.training import columns
from brainstorm.training.columns import BLOCK, Column

SIZES = [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5]


@pytest.fixture(params=["floats", "ints"])
def numbers(request):
    return (lambda n: [i / 7 for i in range(n)]) if request.param == "floats" else list_of_ints


def list_of_ints(count):
    return [3 * i - 5 for i in range(count)]


@pytest.mark.parametrize("size", SIZES)
def test_it_reads_like_a_list(numbers, size):
    values = numbers(size)
    column = Column(values[:1])
    for value in values[1:]:
        column.append(value)
    assert len(column) == size
    assert column == values
    assert list(column) == values
    assert repr(column) == repr(values)
    assert [type(v) for v in column[-2:]] == [type(v) for v in values[-2:]]
    for index in {0, -1, size // 2, size - 1, -size}:
        assert column[index] == values[index]
    for part in (
        slice(None), slice(-1, None), slice(None, None, -1), slice(BLOCK - 3, BLOCK + 3),
        slice(size, None), slice(5, 2 * BLOCK + 1, 1000), slice(None, -BLOCK, -7),
    ):  # fmt: skip
        assert column[part] == values[part]
    assert column != [*values, values[0]]
    with pytest.raises(IndexError):
        column[size]
    array = np.asarray(column)
    assert array.dtype == type(values[0])
    assert array.tolist() == values
    assert np.array(column, np.float32).dtype == np.float32


def test_every_bit_of_a_float_is_kept():
    values = [math.nan, -0.0, math.inf, 5e-324, 0.1] * BLOCK
    assert np.array(values).tobytes() == np.asarray(Column(values)).tobytes()


@pytest.mark.parametrize(
    "duplicate", [Column.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_are_their_own(numbers, duplicate):
    values = numbers(2 * BLOCK - 1)
    column = Column(values)
    other = duplicate(column)
    column.append(values[0])
    other.append(values[1])
    assert column == [*values, values[0]]
    assert other == [*values, values[1]]


def test_what_is_no_number_of_its_type():
    for values in (["a"], [True], [1, 2.0], [None], [np.float32(1)]):
        with pytest.raises(TypeError, match="expected numbers of one type"):
            Column(values)
    column = Column([1.0])
    with pytest.raises(TypeError, match="expected a float, got 1"):
        column.append(1)
    with pytest.raises(OverflowError):
        Column([1]).append(1 << 64)
    assert column == [1.0]


def test_memory_holds_one_block(numbers):
    column = Column(numbers(5 * BLOCK + 1))
    assert len(column._last) == 1


def test_without_space_they_stay_in_memory(numbers, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    values = numbers(4 * BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", refuse)
        column = Column(values[: 2 * BLOCK + 7])
        assert column == values[: 2 * BLOCK + 7]
        assert column[BLOCK + 5 : BLOCK + 7] == values[BLOCK + 5 : BLOCK + 7]
    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", lambda handle, content, offset: len(content) - 1)
        for value in values[2 * BLOCK + 7 : 3 * BLOCK]:
            column.append(value)
        assert len(column._last) == 3 * BLOCK
    for value in values[3 * BLOCK :]:
        column.append(value)
    assert len(column._last) == 0
    assert column == values


def open_files():
    return len(os.listdir("/dev/fd"))


def test_files_are_closed_when_nobody_needs_them(monkeypatch):
    monkeypatch.setattr(columns, "_file", None)
    monkeypatch.setattr(columns, "MOST_BYTES", 2 * 8 * BLOCK)
    before = open_files()
    held = [Column(list_of_ints(4 * BLOCK)) for _ in range(3)]
    assert open_files() == before + 6
    assert all(column == list_of_ints(4 * BLOCK) for column in held)
    del held
    columns._file = None
    assert open_files() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_writes_elsewhere():
    values = list_of_ints(BLOCK)
    column = Column(values)
    child = os.fork()
    if child == 0:
        for value in values:
            column.append(-value)
        os._exit(0 if column == [*values, *(-v for v in values)] else 1)
    for value in values:
        column.append(value)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert column == values * 2
