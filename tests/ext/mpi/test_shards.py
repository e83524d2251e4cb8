"""The ranks' parts of a batch are the batch, for every kind of iterator and number of ranks."""

import h5py
import numpy as np
import pytest

from brainstorm.data_iterators import (
    AddGaussianNoise,
    BucketedMinibatches,
    DatasetMinibatches,
    Hdf5Minibatches,
    IterableBatches,
    Minibatches,
    SequenceChunks,
    Undivided,
)
from brainstorm.ext.mpi.shards import divide
from tests.ext.mpi.fakes import FakeWorld

N, T = 11, 5
LENGTHS = [1, 5, 3, 4, 2, 2, 5, 1, 4, 3, 2]
MASK = (np.arange(T)[:, None] < LENGTHS)[:, :, None].astype(np.float32)
NUMBERS = np.arange(N, dtype=np.float32)[None, :, None] + 1 + np.arange(T)[:, None, None] / 10
CLASSES = NUMBERS[0] * 7  # one number for each sequence, without a time axis
SEQUENCES = [NUMBERS[:length, i] for i, length in enumerate(LENGTHS)]


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file.create_dataset("x", data=NUMBERS, chunks=(T, 2, 1))
        file.create_dataset("m", data=MASK)
        file.create_dataset("y", data=CLASSES)
    with h5py.File(tmp_path / "data.hdf5", "r") as file:
        yield file


PAIRS = [(i, -i) for i in range(N)]
SHORT = [{"default": NUMBERS}, {"default": NUMBERS[:2]}]
WHOLE = {"y": CLASSES, "per_sequence": ("y",)}
ITERATORS = {
    "Minibatches": lambda _: Minibatches(4, default=NUMBERS, mask=MASK),
    "Minibatches of a file": lambda file: Minibatches(4, default=file["x"]),
    "Minibatches, per sequence": lambda _: Minibatches(4, default=NUMBERS, **WHOLE),
    "SequenceChunks": lambda _: SequenceChunks(2, 4, default=NUMBERS, mask=MASK),
    "SequenceChunks, per sequence": lambda _: SequenceChunks(
        2, 4, default=NUMBERS, mask=MASK, **WHOLE
    ),
    "BucketedMinibatches": lambda _: BucketedMinibatches(4, default=SEQUENCES),
    "BucketedMinibatches, per sequence": lambda _: BucketedMinibatches(
        4, default=SEQUENCES, **WHOLE
    ),
    "DatasetMinibatches": lambda _: DatasetMinibatches(PAIRS, 4),
    "DatasetMinibatches, per sequence": lambda _: DatasetMinibatches(
        PAIRS, 4, names=("x", "y"), per_sequence=("y",)
    ),
    "Hdf5Minibatches": lambda file: Hdf5Minibatches(
        file.filename, 4, window=2, default="x", mask="m"
    ),
    "Hdf5Minibatches, per sequence": lambda file: Hdf5Minibatches(
        file.filename, 4, window=2, default="x", y="y", per_sequence=("y",)
    ),
    "Undivided": lambda _: Undivided(default=NUMBERS),
    "IterableBatches": lambda _: IterableBatches(SHORT),
    "IterableBatches, per sequence": lambda _: IterableBatches(
        [{**batch, "y": CLASSES} for batch in SHORT], per_sequence=("y",)
    ),
}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ITERATORS)
def test_parts_are_the_batches_of_one_process(file, name, size):
    def make():
        iterator = ITERATORS[name](file)
        iterator.rnd.set_seed(3)
        return iterator

    shards = [divide(make(), FakeWorld(rank, size)) for rank in range(size)]
    whole = make()
    list(whole()), [list(shard()) for shard in shards]  # the second epoch has another order
    for batch, *of_ranks in zip(whole(), *(shard() for shard in shards), strict=True):
        busy = [part for part in of_ranks if not part.is_idle]
        for key, array in batch.items():
            axis = whole.batch_axis(key)
            joined = np.concatenate([part[key] for part in busy], axis=axis)
            np.testing.assert_array_equal(joined, array)
            assert {part[key].shape[:axis] for part in of_ranks} == {array.shape[:axis]}
            sizes = [part[key].shape[axis] for part in busy]
            assert max(sizes) - min(sizes) <= 1
            for part in of_ranks[len(busy) :]:
                assert part.is_idle
                idle = np.zeros_like(array.take([0, 0], axis))
                np.testing.assert_array_equal(part[key], idle)
        assert len({getattr(part, "continues", None) for part in of_ranks}) == 1


def test_a_shard_goes_on_where_it_was_and_is_described_as_what_it_divides():
    batches = Minibatches(4, default=NUMBERS)
    shard = divide(batches, FakeWorld(1, 2))
    assert (shard.length, shard.data_shapes) == (3, {"default": (1,)})
    state = shard.get_state()
    assert state["type"] == "Minibatches"
    whole = [part["default"] for part in shard()]
    shard.set_state(state)
    rest = [part["default"] for part in shard.resume_epoch(1)]
    assert len(rest) == 2
    for a, b in zip(whole[1:], rest, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(b["default"][0]) for b in batches()] == [4, 4, 3]  # what is divided is as before


def test_wrappers_work_on_the_part_with_numbers_of_their_own():
    def noise(rank):
        batches = AddGaussianNoise(Minibatches(N, False, default=0 * NUMBERS), {"default": 1.0})
        batches.rnd.set_seed(3)
        return next(divide(batches, FakeWorld(rank, 2))())["default"]

    first, second = noise(0), noise(1)
    assert (first.shape[1], second.shape[1]) == (6, 5)
    assert not np.isclose(first[:, :5], second).any()
    np.testing.assert_array_equal(noise(1), second)


def test_gathering_reaches_the_ranks_through_wrappers():
    world = FakeWorld(0, 2, others=["other"])
    noisy = AddGaussianNoise(Minibatches(4, default=NUMBERS), {"default": 1.0})
    assert divide(noisy, world).gather("own") == ["own", "other"]
    assert noisy.gather("own") == ["own"]
