"""Which sequences an epoch has: without the last batch, or drawn by weights."""

import io
import os
import re

import h5py
import numpy as np
import pytest
from scipy import stats

import brainstorm as bs
from brainstorm import data_iterators as di
from tests.data_iterators.iterating import order_of, refused

COUNT = 11
DATA = np.broadcast_to(np.arange(1.0, COUNT + 1)[None, :, None], (3, COUNT, 1))
#: Some sequences never come.
WEIGHTS = np.array([0, 1, 2, 3, 0, 1, 1, 1, 0, 5, 2])


def in_a_file(batch_size, shuffle, **options):
    if not os.path.exists("data.hdf5"):
        with h5py.File("data.hdf5", "w") as file:
            file.create_dataset("x", data=DATA, chunks=(3, 4, 1))
    return di.Hdf5Minibatches("data.hdf5", batch_size, shuffle, default="x", **options)


def of_unequal_lengths(batch_size, shuffle, **options):
    default = [np.full((1 + number % 3, 1), 1.0 + number) for number in range(COUNT)]
    return di.BucketedMinibatches(batch_size, shuffle, default=default, **options)


def stored(batch_size, shuffle, **options):
    data = h5py.File(io.BytesIO(), "w").create_dataset("x", data=DATA)
    return di.Minibatches(batch_size, shuffle, default=data, **options)


MAKERS = {
    "Minibatches": lambda *args, **options: di.Minibatches(*args, default=DATA, **options),
    "SequenceChunks": lambda *args, **options: di.SequenceChunks(3, *args, default=DATA, **options),
    "BucketedMinibatches": of_unequal_lengths,
    "DatasetMinibatches": lambda *args, **options: di.DatasetMinibatches(
        [(row,) for row in DATA[0]], *args, names=["default"], **options
    ),
    "Hdf5Minibatches": in_a_file,
    "Minibatches of a data set": stored,
}


@pytest.fixture(params=MAKERS)
def make(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bs.global_rnd.set_seed(3)
    return MAKERS[request.param]


def numbers(batches):
    """Return the numbers of the sequences of each batch, from 0 on."""
    return [[number - 1 for number in batch] for batch in order_of(batches)]


@pytest.mark.parametrize("shuffle", [True, False, "batches", list(WEIGHTS)])
@pytest.mark.parametrize("batch_size", [1, 4, COUNT])
def test_a_smaller_last_batch_is_left_out(make, shuffle, batch_size):
    iterator = make(batch_size, shuffle, drop_last=True)
    for _ in range(2):
        batches = numbers(iterator())
        assert len(batches) == iterator.length == COUNT // batch_size
        assert {len(batch) for batch in batches} == {batch_size}
    if shuffle is False:
        assert np.concatenate(batches).tolist() == list(range(COUNT // batch_size * batch_size))


def test_the_rest_of_an_epoch_is_that_of_the_whole(make):
    first, second = (make(4, WEIGHTS, drop_last=True) for _ in range(2))
    second.set_state(first.get_state())
    whole = numbers(first())
    assert numbers(second.resume_epoch(1)) == whole[1:]


def test_weights_are_those_with_which_sequences_are_drawn(make):
    iterator = make(4, WEIGHTS)
    drawn = np.concatenate([number for _ in range(100) for number in numbers(iterator())])
    assert len(drawn) == 100 * COUNT
    counts = np.bincount(drawn, minlength=COUNT)
    assert not counts[WEIGHTS == 0].any()
    there = WEIGHTS > 0
    expected = WEIGHTS[there] / WEIGHTS.sum() * len(drawn)
    # One in 10,000 correct programs would fail with a seed of chance; the seed is fixed.
    assert stats.chisquare(counts[there], expected).pvalue > 1e-4


def test_single_sequences_may_be_drawn_by_weights_whose_sum_would_overflow():
    assert numbers(di.Online(np.eye(COUNT)[3], default=DATA)()) == [[3]] * COUNT
    shares, data = np.array([1.0, 0.5, 0.5]), np.zeros((1, 3, 1))
    found = di.Minibatches(shuffle=1.6e308 * shares, default=data).weights
    np.testing.assert_allclose(found, shares / 2)


def test_runs_with_other_weights_are_not_gone_on_with(make):
    state = make(4, WEIGHTS).get_state()
    with refused("weights"):
        make(4, WEIGHTS[::-1]).set_state(state)


@pytest.mark.parametrize(
    "weights", [WEIGHTS[:-1], -WEIGHTS, 0 * WEIGHTS, np.where(WEIGHTS, np.nan, 1), ["a"] * COUNT]
)
def test_senseless_weights(make, weights):
    text = f"shuffle: expected {COUNT} weights >= 0 (one for each sequence), not all 0, got"
    with refused(re.escape(text)):
        make(4, weights)


def test_an_epoch_without_a_batch_is_refused(make):
    text = f"expected at least 12 sequences for one batch, got {COUNT}. Take a smaller batch_size"
    with refused(text):
        make(12, drop_last=True, shuffle=True)
