"""What several tests of data iterators use."""

import os
import threading
from itertools import chain

import h5py
import numpy as np
import pytest

from brainstorm import data_iterators as di
from brainstorm.data_iterators.prefetch import THREAD
from brainstorm.errors import IteratorValidationError


def refused(text):
    """Expect an error of an iterator whose message matches a regular expression."""
    return pytest.raises(IteratorValidationError, match=text)


def numbered(samples, steps=1):
    """Return data (T, B, 2) in which sequence b holds the number b."""
    numbers = np.arange(samples, dtype=np.float32)[None, :, None]
    return np.broadcast_to(numbers, (steps, samples, 2))


def order_of(batches):
    """Return the numbers of the sequences of each batch."""
    return [batch["default"][0, :, 0].astype(int).tolist() for batch in batches]


def check_epochs(iterator, samples, batch_size, shuffle):
    """Check that in epochs every sequence comes once, and only one batch is smaller."""
    for _ in range(2):
        batches = order_of(iterator())
        assert len(batches) == iterator.length
        assert sorted(chain(*batches)) == list(range(samples))
        sizes = sorted(len(batch) for batch in batches)
        assert sizes[1:] == [batch_size] * (len(sizes) - 1)
        if shuffle == "batches":
            assert all(np.diff(batch).tolist() == [1] * (len(batch) - 1) for batch in batches)
        if shuffle is False:
            assert list(chain(*batches)) == list(range(samples))


def only(iterator, name="default"):
    """Return some data of the only batch."""
    (batch,) = list(iterator())
    return batch[name]


def threads():
    """Return the threads in which iterators read ahead, once those of ended epochs have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith(THREAD):
            thread.join(0.2)
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


class Counted:
    """An array on disk, as it were, and how many numbers each access has read."""

    def __init__(self, array):
        self.array, self.read = array, []
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key):
        self.read.append(self.array[key].size)
        return self.array[key]


class Replacing(di.Wrapper):
    """Gives other data than the iterator that it wraps, which would refuse them."""

    def transform(self, name, array):
        return self.settings[name]


def change_file(path, how):
    """Remove, truncate or write to a file."""
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, 1000)
    else:
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        os.utime(path, ns=(1, 1))


# -- the same sequences by iterators of every kind ----------------------------------------------

T, N = 6, 7
LENGTHS = np.array([3, 6, 1, 4, 2, 5, 3])
NUMBERS = np.arange(N, dtype=np.float32)[None, :, None] + np.arange(T)[:, None, None] / 10
MASK = (np.arange(T)[:, None] < LENGTHS)[:, :, None]
#: Which sequence it is: what belongs to a sequence must stay with it.
LABELS = np.arange(N)[:, None]
SEQUENCES = [NUMBERS[:length, b] for b, length in enumerate(LENGTHS)]


def store_sequences(folder):
    """Return an HDF5 file with the sequences, open for reading."""
    with h5py.File(folder / "data.hdf5", "w") as file:
        file.create_dataset("x", data=NUMBERS, chunks=(T, 2, 1))
        file.create_dataset("m", data=MASK)
        file.create_dataset("y", data=LABELS, chunks=(3, 1))
        file.create_dataset("bad", data=np.where(LABELS == 4, np.nan, LABELS))
    return h5py.File(folder / "data.hdf5")


def iterators_of_every_kind(with_labels):
    """Return functions of a file that make an iterator, by name.

    Args:
        with_labels: Whether there are ``targets``, without a time axis: the label of each sequence.
    """
    whole = {"per_sequence": ("targets",)} if with_labels else {}
    labels = {"targets": LABELS, **whole} if with_labels else {}
    data, paths = {"default": NUMBERS, "mask": MASK, **labels}, {"default": "x", "mask": "m"}
    of_file = {**paths, **({"targets": "y"} if with_labels else {})}
    items = [(i, i)[: 1 + with_labels] for i in range(N)]
    names = ("default", "targets")[: 1 + with_labels]
    batches = [{"default": NUMBERS[:, :3], **({"targets": LABELS[:3]} if with_labels else {})}]
    return {
        "Undivided": lambda _: di.Undivided(**data),
        "Minibatches": lambda _: di.Minibatches(3, **data),
        "Minibatches of a file": lambda file: di.Minibatches(
            3, **{name: file[path] for name, path in of_file.items()}, **whole
        ),
        "Online": lambda _: di.Online(**data),
        "SequenceChunks": lambda _: di.SequenceChunks(2, 3, **data),
        "BucketedMinibatches": lambda _: di.BucketedMinibatches(3, default=SEQUENCES, **labels),
        "Hdf5Minibatches": lambda file: di.Hdf5Minibatches(
            file.filename, 3, window=2, **of_file, **whole
        ),
        "DatasetMinibatches": lambda _: di.DatasetMinibatches(items, 3, names=names, **whole),
        "IterableBatches": lambda _: di.IterableBatches(batches, **whole),
    }
