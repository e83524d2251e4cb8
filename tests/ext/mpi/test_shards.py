"""The ranks' parts of a batch are the batch, for every kind of iterator and number of ranks."""

import numpy as np
import pytest

from brainstorm.data_iterators import AddGaussianNoise, Minibatches, SequenceChunks, Wrapper
from brainstorm.ext.mpi.shards import divide, is_new
from tests.data_iterators.iterating import NUMBERS, N, iterators_of_every_kind, store_sequences
from tests.ext.mpi.fakes import FakeWorld

ITERATORS = {
    f"{name}{', per sequence' * with_labels}": make
    for with_labels in (False, True)
    for name, make in iterators_of_every_kind(with_labels).items()
}


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ITERATORS)
def test_parts_are_the_batches_of_one_process(tmp_path, name, size):
    file = store_sequences(tmp_path)

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
    assert (shard.length, shard.data_shapes) == (2, {"default": (1,)})
    assert not shard.gives_sequences
    assert divide(SequenceChunks(2, 3, default=NUMBERS), FakeWorld(0, 2)).gives_sequences
    state = shard.get_state()
    assert state["type"] == "Minibatches"
    whole = [part["default"] for part in shard()]
    shard.set_state(state)
    rest = [part["default"] for part in shard.resume_epoch(1)]
    assert len(rest) == 1
    for a, b in zip(whole[1:], rest, strict=True):
        np.testing.assert_array_equal(a, b)
    assert [len(b["default"][0]) for b in batches()] == [4, 3]  # what is divided is as before


def test_wrappers_work_on_the_part_with_numbers_of_their_own():
    def noise(rank):
        batches = AddGaussianNoise(Minibatches(N, False, default=0 * NUMBERS), {"default": 1.0})
        batches.rnd.set_seed(3)
        return next(divide(batches, FakeWorld(rank, 2))())["default"]

    first, second = noise(0), noise(1)
    assert (first.shape[1], second.shape[1]) == (4, 3)
    assert not np.isclose(first[:, :3], second).any()
    np.testing.assert_array_equal(noise(1), second)


class Shift(Wrapper):
    """Adds a strength that scripts may change, and counts its arrays."""

    strength, count = 0.0, 0

    def transform(self, name, array):
        self.count += 1
        return array + self.strength


@pytest.mark.parametrize("rank", [0, 1])
def test_wrappers_get_what_is_set_between_two_trainings(rank):
    known, world = {}, FakeWorld(rank, 2)
    inner, other = (Minibatches(N, False, default=x + 0 * NUMBERS) for x in (0, 5))
    wrapper = AddGaussianNoise(Shift(inner, {"default": None}), {"default": 0.0})

    def first_value():
        return next(divided())["default"][0, 0]

    divided = divide(wrapper, world, known)
    rnd = divided.rnd
    assert first_value() == 0
    wrapper.iter.strength = 2.0
    assert divide(wrapper, world, known) is divided
    assert first_value() == 2
    assert not is_new(wrapper, known)
    wrapper.iter.iter = other
    assert is_new(wrapper, known)  # so that it is compared with that of other ranks
    divide(wrapper, world, known)
    assert not is_new(wrapper, known)
    assert first_value() == 7
    assert divided.rnd is rnd
    assert divided.iter.count == 3  # what it counts itself goes on


def test_gathering_reaches_the_ranks_through_wrappers():
    world = FakeWorld(0, 2, others=["other"])
    noisy = AddGaussianNoise(Minibatches(4, default=NUMBERS), {"default": 1.0})
    assert divide(noisy, world).gather("own") == ["own", "other"]
    assert noisy.gather("own") == ["own"]
