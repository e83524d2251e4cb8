"""Batches that a thread makes ahead; states and the rest of epochs are in test_resuming."""

import concurrent.futures
import copy
import pickle
import threading

import numpy as np
import pytest

from brainstorm.data_iterators import (
    AddGaussianNoise,
    DataIterator,
    Flip,
    Minibatches,
    Prefetch,
    SequenceChunks,
    Wrapper,
)
from brainstorm.data_iterators.prefetch import read_ahead
from tests.data_iterators.iterating import numbered, refused, threads
from tests.trainings import in_a_fork, needs_fork


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


class Slow(Wrapper):
    """Makes a batch as long as nobody wants it."""

    def __init__(self, iter):
        super().__init__(iter, {})
        self.begun, self.wanted = threading.Event(), threading.Event()

    def transform_batch(self, batch):
        self.begun.set()
        assert self.wanted.wait(60)
        return {"default": batch["default"] + self.rnd.normal()}


def slow():
    return Slow(Minibatches(4, shuffle=False, default=numbered(20)))


def begun(ahead):
    """Return an epoch of which two batches were given, while the third one is made."""
    ahead.iter.wanted.set()
    epoch = ahead()
    next(epoch)
    concurrent.futures.wait([ahead._epoch.future])
    ahead.iter.wanted.clear()
    ahead.iter.begun.clear()
    next(epoch)
    assert ahead.iter.begun.wait(60)
    return epoch


def test_an_epoch_is_left_without_waiting_and_what_comes_next_waits():
    """The garbage collector may close it in any thread: in the one that makes the batch, too."""
    ahead, plain = Prefetch(slow()), slow()
    for iterator in (ahead.iter, plain):
        iterator.rnd.set_seed(3)
    begun(ahead).close()
    assert ahead._epoch.is_left
    plain.wanted.set()
    same = plain()
    next(same), next(same)
    same.close()
    ahead.iter.wanted.set()
    assert values(ahead()) == values(plain())


def test_the_wrapped_iterator_may_be_used_and_changed_after_an_epoch():
    plain, ahead = noisy(), Prefetch(noisy())
    expected = []
    for iterator, inner, found in ((plain, plain, expected), (ahead, ahead.iter, [])):
        list(iterator())
        next(inner())
        inner.iter.batch_size = 5
        found += values(iterator())
        for _ in iterator():
            inner.iter.batch_size = 10
            break
        found += values(iterator())
    assert found == expected


@pytest.mark.parametrize("prefetches", [1, 2])
def test_chunks_of_the_same_sequences_have_the_same_random_numbers(prefetches):
    """Also if a part of an epoch is used within an epoch."""
    images = np.random.RandomState(0).rand(6, 8, 4, 4, 1)

    def peeked(wrapped):
        iterator = Flip(SequenceChunks(2, 3, default=images))
        iterator.rnd.set_seed(5)
        iterator.iter.rnd.set_seed(5)
        for _ in range(wrapped):
            iterator = Prefetch(iterator)
        return values(batch for b in iterator() for batch in (b, next(iterator())))

    assert peeked(prefetches) == peeked(0)


@needs_fork
def test_what_was_being_made_at_a_fork_never_ends_there():
    ahead = Prefetch(slow())
    epoch = begun(ahead)

    def go_on():
        for use in (lambda: list(epoch), lambda: list(ahead()), ahead.get_state):
            with refused("forked"):
                use()
        return b"refused"

    assert in_a_fork(go_on) == b"refused"
    ahead.iter.wanted.set()
    assert len(list(epoch)) == 3


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
