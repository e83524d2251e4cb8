"""Batches that a thread makes ahead; states and the rest of epochs are in test_resuming."""

import copy
import pickle
import threading

import numpy as np
import pytest

from brainstorm.data_iterators import AddGaussianNoise, DataIterator, Minibatches, Prefetch
from brainstorm.data_iterators.prefetch import read_ahead
from tests.data_iterators.iterating import numbered, refused, threads


def noisy(seed=7):
    iterator = AddGaussianNoise(Minibatches(4, default=numbered(20)), {"default": 0.1})
    iterator.rnd.set_seed(seed)
    iterator.iter.rnd.set_seed(seed)
    return iterator


def values(batches):
    return [batch["default"].tolist() for batch in batches]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not threads()


def test_one_task_is_read_ahead_and_no_more():
    begun, done, reading = [], [], threading.Event()

    def read(task):
        begun.append(task)
        if task == 1:
            reading.set()
        return task

    for task in read_ahead(read, range(20)):
        assert reading.wait(10)  # the next one is read while this one is used
        assert len(begun) - len(done) <= 2
        done.append(task)
    assert done == begun == list(range(20))
    assert list(read_ahead(read, [])) == []


def test_batches_and_states_are_those_of_the_wrapped_iterator():
    plain, ahead = noisy(), Prefetch(noisy())
    for _ in range(2):
        for expected, batch in zip(plain(), ahead(), strict=True):
            assert np.array_equal(batch["default"], expected["default"])
            assert len(threads()) == 1
            np.testing.assert_equal(ahead.get_state()["iter"], plain.get_state())
        assert not threads()


def test_an_epoch_that_is_left_takes_no_random_numbers_for_what_was_made_ahead():
    plain, ahead = noisy(), Prefetch(noisy())
    for iterator in (plain, ahead):
        epoch = iterator()
        next(epoch)
        epoch.close()
    np.testing.assert_equal(ahead.iter.get_state(), plain.get_state())
    assert values(ahead()) == values(plain())


def test_two_epochs_at_a_time_take_turns():
    def by_turns(iterator):
        first, second = iterator(), iterator()
        return values(next(epoch) for _ in range(5) for epoch in (first, second))

    assert by_turns(Prefetch(noisy())) == by_turns(noisy())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_in_an_epoch_has_the_present_state_and_the_epoch_goes_on(copied):
    plain, ahead = noisy(), Prefetch(noisy())
    expected, epoch = plain(), ahead()
    assert values([next(epoch)]) == values([next(expected)])
    other, same = copied(ahead), copied(plain)
    assert values(epoch) == values(expected)
    assert values(other()) == values(same())


def test_errors_come_with_their_batch():
    class Broken(DataIterator):
        def __call__(self, handler=None):
            for number in range(3):
                yield {"default": numbered(4) + number}
            raise KeyError("mine")

    given = []
    with pytest.raises(KeyError, match="mine"):
        given.extend(Prefetch(Broken({"default": (2,)}, None))())
    assert len(given) == 3
    with refused("Prefetch: expected a DataIterator to wrap, got ndarray"):
        Prefetch(numbered(4))
