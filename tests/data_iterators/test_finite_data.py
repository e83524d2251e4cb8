"""NaN and infinity are refused, as early as they can be seen, with their place."""

import re

import h5py
import numpy as np
import pytest

from brainstorm import data_iterators as di
from tests.data_iterators import iterating
from tests.trainings import takes_less_than

PLACE = "in time step 5 of sequence 7. Fill in what is missing, or leave the sequence out."


def data_with(bad, steps=9):
    data = np.zeros((steps, 12, 2), np.float32)
    data[steps and min(5, steps - 1), 7, 1] = bad
    return data


def refused(text):
    return iterating.refused(re.escape(text))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cls", [di.Undivided, di.Minibatches, di.SequenceChunks])
def test_arrays_in_memory(cls, bad):
    first = (3,) if cls is di.SequenceChunks else ()
    with refused(f"{cls.__name__}, data 'x': expected finite numbers, got {bad} {PLACE}"):
        cls(*first, default=np.zeros((9, 12, 1)), x=data_with(bad))


@pytest.mark.parametrize("bad", [1e300, -3.5e38])
def test_what_is_infinite_in_float32_is_refused(bad):
    data = data_with(0.0).astype(np.float64)
    data[5, 7, 1] = bad
    with refused(f"data 'x': expected finite numbers, got {bad} (infinite in float32) {PLACE}"):
        di.Minibatches(3, x=data)


def test_the_first_one_is_named_in_any_layout_and_without_a_second_array():
    data = data_with(np.inf, steps=3000)
    data[5, 8:, 0] = data[6:, 0] = np.nan
    for same in (data, np.asfortranarray(data)):
        text = refused(f"data 'x': expected finite numbers, got inf {PLACE}")
        with takes_less_than(data.nbytes / 4), text:
            di.Undivided(x=same)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint64, np.int64, bool])
def test_all_other_numbers_are_given(dtype):
    data = np.ones((2, 3, 1), dtype)
    if np.dtype(dtype).kind == "f":
        largest = np.finfo(min(dtype, np.float32, key=lambda d: np.finfo(d).max)).max
        data[0, :2, 0] = largest, -largest
    assert next(di.Minibatches(3, shuffle=False, x=data)())["x"].tobytes() == data.tobytes()


@pytest.mark.parametrize("cls", [di.Minibatches, di.SequenceChunks])
def test_files_are_not_read_for_it(tmp_path, cls):
    data = data_with(np.nan)
    np.save(tmp_path / "x.npy", data)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), file.create_dataset("x", data=data)):
            first = (2,) if cls is di.SequenceChunks else ()
            iterator = cls(*first, 3, shuffle=False, x=x)
            given = []
            with refused(f"{cls.__name__}, data 'x': expected finite numbers, got nan {PLACE}"):
                given.extend(iterator())
            assert len(given) == (12 if cls is di.SequenceChunks else 2)  # all that come before


def test_sequences_items_batches_and_whole_files(tmp_path):
    sequences = list(data_with(np.nan).swapaxes(0, 1))
    with refused(f"BucketedMinibatches, data 'x': expected finite numbers, got nan {PLACE}"):
        di.BucketedMinibatches(4, x=sequences)
    rows = data_with(np.nan, steps=1)[0]
    items = di.DatasetMinibatches([(row, 0) for row in rows], 4, shuffle=True)
    place = PLACE.replace("5", "0")
    with refused(f"DatasetMinibatches, data 'default': expected finite numbers, got nan {place}"):
        list(items())
    batches = di.IterableBatches([{"x": data_with(0)}, {"x": data_with(np.nan)}])
    with refused(f"IterableBatches, data 'x': expected finite numbers, got nan {PLACE}"):
        list(batches())
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        x = file.create_dataset("x", data=data_with(np.nan))
        with refused(f"Undivided, data 'x': expected finite numbers, got nan {PLACE}"):
            di.Undivided(x=x)
