"""Undivided, Minibatches and Online: order, cutting, sources on disk, and errors."""

import copy
import re
from itertools import pairwise

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.data_iterators import (
    AddGaussianNoise,
    BucketedMinibatches,
    DataIterator,
    Minibatches,
    Online,
    SequenceChunks,
    Undivided,
)
from tests.data_iterators.iterating import Counted, check_epochs, numbered, order_of, refused
from tests.trainings import takes_less_than


@pytest.fixture(params=["array", "memmap", "hdf5", "wrapped"])
def stored(request, tmp_path):
    """Return a function that puts an array somewhere."""

    def store(array):
        if request.param == "memmap":
            file = np.memmap(tmp_path / "data", array.dtype, "w+", shape=array.shape)
            file[:] = array
            return file
        if request.param == "hdf5":
            return h5py.File(tmp_path / "data.h5", "w").create_dataset("x", data=array)
        return Counted(array) if request.param == "wrapped" else array

    return store


# -- Undivided ----------------------------------------------------------------------------------


def test_undivided_yields_the_same_batch(stored):
    data = np.random.RandomState(0).standard_normal((2, 3, 4))
    iterator = Undivided(default=stored(data), targets=np.zeros((2, 3, 1)))
    (first,), (second,) = list(iterator()), list(iterator(handler=None))
    assert first is second
    assert type(first["default"]) is np.ndarray
    assert np.array_equal(first["default"], data)
    assert iterator.length == 1
    assert iterator.total_size == 24 + 6
    assert iterator.data_shapes == {"default": (4,), "targets": (1,)}


def test_undivided_shares_memory_but_does_not_allow_writing():
    data = np.zeros((1, 2, 3))
    (batch,) = Undivided(default=data)()
    data[:] = 5
    assert np.array_equal(batch["default"], data)
    with pytest.raises(ValueError, match="read-only"):
        batch["default"][:] = 1
    data[:] = 6


# -- Minibatches --------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    samples=st.integers(1, 12),
    batch_size=st.integers(1, 14),
    shuffle=st.sampled_from([True, False, "batches"]),
)
def test_every_instance_comes_once_per_epoch(samples, batch_size, shuffle):
    iterator = Minibatches(batch_size, shuffle, default=numbered(samples))
    check_epochs(iterator, samples, batch_size, shuffle)


def test_shuffle_mixes_instances_or_batches_anew_in_every_epoch():
    iterator = Minibatches(np.int64(10), np.bool_(True), default=numbered(100))
    first, second = order_of(iterator()), order_of(iterator())
    assert iterator.shuffle is True
    assert first != second
    neighbours = np.diff(np.ravel(first)) == 1
    assert neighbours.sum() < 10
    assert not any(set(batch) <= set(range(10)) for batch in first)
    iterator = Minibatches(2, "batches", default=numbered(40))
    assert order_of(iterator()) != order_of(iterator())


@pytest.mark.parametrize("shuffle", [True, False, "batches"])
def test_batches_share_nothing_with_the_data(shuffle):
    data = np.zeros((2, 5, 3))
    before = data.copy()
    collected = []
    for batch in Minibatches(2, shuffle, default=data)():
        batch["default"][:] = 7
        collected.append(batch["default"])
    assert np.array_equal(data, before)
    assert not any(np.shares_memory(a, b) for a, b in pairwise(collected))


@pytest.mark.parametrize("shuffle", [True, False, "batches"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_sources_and_dtypes(stored, shuffle, dtype):
    data = np.random.RandomState(0).randint(0, 2, (3, 7, 2)).astype(dtype)
    data[0, :, 0] = np.arange(7).astype(dtype)
    numbers = numbered(7, 3)
    for _ in range(3):
        for batch in Minibatches(3, shuffle, default=stored(data), n=numbers)():
            assert type(batch["default"]) is np.ndarray
            assert batch["default"].dtype == dtype
            assert batch["default"].flags.writeable
            assert np.array_equal(batch["default"], data[:, batch["n"][0, :, 0].astype(int)])


@pytest.mark.parametrize("make", [Undivided, Minibatches])
def test_copies_share_the_data_and_draw_the_same(stored, make):
    iterator = make(default=stored(numbered(7, 3)))
    copied = copy.deepcopy(iterator)
    assert copied.data["default"] is iterator.data["default"]
    for ours, theirs in zip(iterator(), copied(), strict=True):
        assert np.array_equal(ours["default"], theirs["default"])
    copied.data["default"] = None  # only in the copy
    assert iterator.data["default"] is not None


@pytest.mark.parametrize("shuffle", [True, False])
def test_only_the_batch_is_read(shuffle):
    data = Counted(np.zeros((2, 1000, 1), np.float32))
    list(Minibatches(10, shuffle, cut_according_to=[1] * 1000, default=data)())
    assert data.read == [10] * 100


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_views_are_not_copied_for_each_batch(axes):
    data = np.zeros((200, 200, 200), np.float32).transpose(axes)
    with takes_less_than(data.nbytes / 10):
        next(Minibatches(2, default=data)())


# -- cutting ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    batch_size=st.integers(1, 4),
    by_mask=st.booleans(),
)
def test_batches_are_cut_to_their_longest_sequence(lengths, batch_size, by_mask):
    steps = np.arange(5)[:, None, None]
    mask = (steps < np.array(lengths)[None, :, None]).astype(float)
    cut = {} if by_mask else {"cut_according_to": lengths}
    data = numbered(len(lengths), 5)
    iterator = Minibatches(batch_size, default=data, **{"mask" if by_mask else "m": mask}, **cut)
    assert list(iterator.seq_lens) == lengths
    for batch in iterator():
        members = batch["default"][0, :, 0].astype(int)
        longest = max(lengths[b] for b in members)
        assert {array.shape[:2] for array in batch.values()} == {(longest, len(members))}


def test_a_sequence_ends_at_the_last_non_zero_of_its_mask(stored):
    mask = np.array([[0, 1, 0, 2], [1, 0, 0, 0], [0, 1, 0, 0]])[:, :, None]
    iterator = Online(False, "m", default=numbered(4, 3), m=mask)
    assert list(iterator.seq_lens) == [2, 3, 0, 1]
    assert [len(batch["m"]) for batch in iterator()] == [2, 3, 1, 1]
    mask = np.zeros((4, 2, 3))  # with features, and perhaps on disk
    mask[1, 0, 2] = mask[0, 1, 0] = 1
    data = {"default": numbered(2, 4), "mask": stored(mask)}
    for cut, lengths, steps in (("mask", [2, 1], 2), (None, None, 4)):
        iterator = Minibatches(2, cut_according_to=cut, **data)
        assert (iterator.seq_lens is None) == (cut is None)
        assert lengths is None or list(iterator.seq_lens) == lengths
        assert next(iterator())["default"].shape == (steps, 2, 2)


def test_a_batch_size_that_is_set_later_changes_the_number_of_batches():
    data = numbered(7, 6)
    iterators = [Minibatches(4, default=data), SequenceChunks(4, 4, default=data)]
    for iterator, chunks in zip(iterators, (1, 2), strict=True):
        noise = AddGaussianNoise(iterator, {"default": 0.1})
        assert noise.length == 2 * chunks
        iterator.batch_size = 2
        assert noise.length == iterator.length == 4 * chunks == len(list(noise()))
        assert len(list(iterator.resume_epoch(3 * chunks))) == chunks
    iterators[1].chunk_length = 3
    assert iterators[1].length == len(list(iterators[1]())) == 8


# -- errors -------------------------------------------------------------------------------------

X = np.zeros((2, 3, 1))


class Tensor:
    shape, dtype = (1, 2, 3), "torch.float32"


@pytest.mark.parametrize("cls", [Undivided, Minibatches, Online])
@pytest.mark.parametrize(
    ("x", "text"),
    [
        (X[..., 0], "got shape (2, 3). Add an axis: x[None] for rows that are not sequences, x["),
        (X[0, :, 0], "got shape (3,). Add a time axis and a feature axis: x[None, :, None]."),
        (X[:1, :, 0], "got shape (1, 3). Add a feature axis: x[..., None]."),
        ([[[1]]], "got a list. Convert it with numpy.asarray."),
        ([X, X[:1]], "got a list. Sequences of different lengths are for BucketedMinibatches."),
        (None, "got a NoneType"),
        (Tensor(), "got a Tensor. Convert it with numpy"),
        (X.astype(object), "got dtype object. Convert it to float32. Number words: words, n"),
        (X.astype(str), "got dtype <U32. Number words: words, numbers = numpy.unique("),
        (X.astype(complex), "got dtype complex128"),
        (np.ma.masked_invalid(X), "got a masked array. Fill it, x.filled(0), and give the mask as"),
        *((empty, f"got shape {empty.shape}") for empty in (X[:0], X[:, :0], X[..., :0])),
    ],
)
def test_unfit_data(cls, x, text):
    expected = r"expected a numeric array \(T, B, features...\)( that is not empty)?"
    with refused(f"^{cls.__name__}, data 'x': {expected}, {re.escape(text)}"):
        cls(x=x)


@pytest.mark.parametrize("cls", [Minibatches, BucketedMinibatches, Online])
def test_options_that_are_misspelt(cls):
    with refused(rf"^{cls.__name__}, data 'suffle': .* unknown option 'suffle'.*mean 'shuffle'\?$"):
        cls(suffle=False, default=X)


@pytest.mark.parametrize("cls", [Undivided, Minibatches, Online])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, ": expected at least one named array, e.g. default=x, got none"),
        ({"x": np.zeros(())}, r".*, got shape \(\)\.$"),
        ({"x": X[:0]}, ".* that is not empty, got"),
        ({"a": X, "b": X[:1]},
         r", data 'b': expected \(T, B\) = \(2, 3\) as 'a' has, got shape \(1, 3, 1\). All "
         "arrays need the same number of time steps and of sequences. Labels of CTC are filled up "
         r"with zeros; inputs of a second length, S, are for Minibatches\(over_s=\['b'\]\)\.$"),
        ({"a": X, "b": X[:, :2]}, r".* as 'a' has, got shape \(2, 2, 1\).* of sequences.$"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit_together(cls, data, text):
    with refused(f"^{cls.__name__}{text}"):
        cls(**data)


def test_arrays_of_a_second_length_are_not_cut():
    past, mask = numbered(3, 4), np.ones((2, 3, 1))
    mask[1, :2] = 0
    given = {"label": np.arange(3)[:, None], "past": past, "default": X, "mask": mask}
    iterator = Minibatches(2, shuffle=False, per_sequence="label", over_s="past", **given)
    first, second = iterator()
    assert (iterator.time_size, iterator.sample_size) == (2, 3)
    assert "past     (S, B, 2)" in str(iterator.tree())
    np.testing.assert_array_equal(first["past"], past[:, :2])
    np.testing.assert_array_equal(second["past"], past[:, 2:])
    assert [len(batch["default"]) for batch in (first, second)] == [1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"more": X}, r", data 'more': expected \(S, B\) = \(4, 3\) as 'past' has, got shape \(2"),
        ({"default": X[:, :2]}, r", data 'past': expected \(S, B\) = \(4, 2\) as 'default' has,"),
        ({"per_sequence": ["past"]}, ", data 'past': expected a name of over_s or of per_sequence"),
        ({"cut_according_to": "past"}, ": cut_according_to: unknown data name 'past'. Choices are"),
    ],
)  # fmt: skip
def test_second_lengths_that_do_not_fit(change, text):
    given = {"default": X, "past": np.ones((4, 3, 1)), **change}
    with refused(f"^Minibatches{text}"):
        Minibatches(over_s=["past", "more"][: 1 + ("more" in change)], **given)


BATCH_SIZE = "Minibatches.batch_size: expected an int >= 1, got "
SHUFFLE = "Minibatches.shuffle: expected True, False, 'batches' or, at first, weights, got "
LENGTHS = "Minibatches: cut_according_to: expected a data name, None or 3 ints from 1 to 2 "


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"batch_size": wrong}, BATCH_SIZE) for wrong in (0, -1, 2.0, "2", None)),
        *(({"shuffle": wrong}, SHUFFLE) for wrong in ("yes", None, 2)),
        *(({"cut_according_to": wrong}, LENGTHS) for wrong in ([1, 2], [1, 2, 3], [0, 1, 2], 3)),
        *(({"cut_according_to": wrong}, LENGTHS) for wrong in ([1.0, 2.0, 2.0], {"a": 1})),
        *(({"cut_according_to": wrong}, LENGTHS) for wrong in ([[1], 2], np.ones((3, 1), int))),
        ({"cut_according_to": "msk"}, "cut_according_to: unknown data name 'msk'.*mean 'mask'"),
    ],
)
def test_unfit_options(options, text):
    with refused(text):
        Minibatches(**{"default": X, "mask": X, **options})


def test_base_is_abstract():
    with pytest.raises(NotImplementedError, match="DataIterator does not define __call__"):
        DataIterator({}, 0)()


def test_a_data_set_that_changes_while_it_is_read(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        data = file.create_dataset("x", data=np.ones((1, 9, 2)), maxshape=(1, None, 2))
        batches = Minibatches(3, shuffle=False, default=data)()
        next(batches)
        data.resize(4, axis=1)
        with refused("^Minibatches, data 'default': expected a data set that stays as it was, got"):
            next(batches)
        closed = Minibatches(2, default=data)
    with refused("Keep its file open and unchanged"):
        next(closed())
