"""Long sequences in consecutive parts."""

import numpy as np
import pytest

from brainstorm.data_iterators import Chunk, SequenceChunks
from tests.data_iterators.iterating import refused

X = np.arange(7 * 3).reshape(7, 3, 1)


def parts(iterator):
    return [(part["default"], part.continues) for part in iterator()]


def test_parts_follow_each_other():
    iterator = SequenceChunks(3, batch_size=2, shuffle=False, default=X)
    found = parts(iterator)
    assert [array.shape[:2] for array, _ in found] == [
        *((3, 2), (3, 2), (1, 2)),
        *((3, 1), (3, 1), (1, 1)),
    ]
    assert [continues for _, continues in found] == [False, True, True] * 2
    assert iterator.length == 6
    np.testing.assert_array_equal(np.concatenate([a for a, _ in found[:3]]), X[:, :2])
    np.testing.assert_array_equal(np.concatenate([a for a, _ in found[3:]]), X[:, 2:])


@pytest.mark.parametrize("shuffle", [True, "batches"])
def test_shuffled_sequences_stay_whole(shuffle):
    iterator = SequenceChunks(2, shuffle=shuffle, default=X)
    epochs = [[a for a, _ in parts(iterator)] for _ in range(20)]
    columns = [np.concatenate(arrays[i : i + 4]) for arrays in epochs for i in (0, 4, 8)]
    assert {int(column[0, 0, 0]) for column in columns} == {0, 1, 2}
    assert len({int(column[0, 0, 0]) for column in columns[::3]}) > 1
    for column in columns:
        np.testing.assert_array_equal(np.diff(column[:, 0, 0]), 3)


def test_batches_end_with_their_longest_sequence():
    mask = (np.arange(7)[:, None] < [4, 2, 7])[:, :, None]
    iterator = SequenceChunks(3, batch_size=2, shuffle=False, default=X, mask=mask)
    assert [array.shape[:2] for array, _ in parts(iterator)] == [
        *((3, 2), (1, 2)),
        *((3, 1), (3, 1), (1, 1)),
    ]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"data": 3}, "data: expected a dictionary, got 3"),
        ({"continues": "no"}, "continues: expected True or False, got 'no'"),
    ],
)
def test_a_part_has_data_and_says_whether_it_continues(wrong, text):
    for options in (wrong, {"data": {}, "continues": True, **wrong}):
        with refused(rf"^Chunk\.{text}\.$"):
            Chunk(**options)


@pytest.mark.parametrize("bad", [0, -1, 2.5, None])
def test_bad_chunk_length(bad):
    with refused(f"SequenceChunks.chunk_length: expected an int >= 1, got {bad}"):
        SequenceChunks(bad, default=X)
