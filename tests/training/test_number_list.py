"""Lists of numbers of one type: they read like lists, at eight bytes each."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from brainstorm.training.number_list import NumberList

both = pytest.mark.parametrize(
    "numbers", [lambda n: [i / 7 for i in range(n)], lambda n: [3 * i - 5 for i in range(n)]],
    ids=["floats", "ints"],
)  # fmt: skip


@both
@pytest.mark.parametrize("size", [1, 100, 5000])
def test_it_reads_like_a_list(numbers, size):
    values = numbers(size)
    found = NumberList(values[:1])
    for value in values[1:]:
        found.append(value)
    assert len(found) == size
    assert list(found) == values == found != [*values, values[0]]
    assert repr(found) == repr(values)
    assert [type(v) for v in found[-2:]] == [type(v) for v in values[-2:]]
    for index in (0, -1, size // 2, size - 1, -size):
        assert found[index] == values[index]
    for part in (
        slice(None), slice(-1, None), slice(None, None, -1), slice(size // 2, size // 2 + 3),
        slice(size, None), slice(5, 4000, 1000), slice(None, -50, -7),
    ):  # fmt: skip
        assert found[part] == values[part]
    with pytest.raises(IndexError):
        found[size]
    array = np.asarray(found)
    assert array.dtype == type(values[0])
    assert array.tolist() == values
    assert np.array(found, np.float32).dtype == np.float32
    found.append(values[0])  # while the array is held, which is a copy
    array[:] = 0
    assert found == [*values, values[0]]


def test_every_bit_of_a_float_is_kept():
    values = [math.nan, -0.0, math.inf, 5e-324, 0.1] * 100
    assert np.array(values).tobytes() == np.asarray(NumberList(values)).tobytes()


@both
def test_copies_are_their_own(numbers):
    values = numbers(100)
    ways = NumberList.copy, copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))
    for duplicate in ways:
        found = NumberList(values)
        other = duplicate(found)
        found.append(values[0])
        other.append(values[1])
        assert found == [*values, values[0]]
        assert other == [*values, values[1]]


def test_what_is_no_number_of_its_type():
    for values in ([], np.zeros(0), ["a"], [True], [1, 2.0], [None], [np.float32(1)]):
        with pytest.raises(TypeError, match="expected numbers of one type"):
            NumberList(values)
    found = NumberList([1.0])
    with pytest.raises(TypeError, match="expected a float, got 1"):
        found.append(1)
    with pytest.raises(OverflowError):
        NumberList([1]).append(1 << 64)
    assert found == [1.0]


@both
def test_a_number_takes_eight_bytes(numbers):
    sizes = [len(pickle.dumps(NumberList(numbers(n)))) for n in (1000, 2000)]
    assert 8000 <= sizes[1] - sizes[0] < 8100
