"""Files that are mapped, and what becomes of them while they are read."""

import os
import re

import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches, load_data, save_data
from brainstorm.errors import FileFormatError
from tests.data_iterators.iterating import change_file


@pytest.fixture
def path(tmp_path):
    save_data(tmp_path / "x.hdf5", {"x": np.arange(40_000.0).reshape(1, 40, 1000)})
    return tmp_path / "x.hdf5"


def mapped(path):
    data = load_data(path)
    assert isinstance(data["x"], np.memmap)
    return Minibatches(4, shuffle=False, **data)


@pytest.mark.parametrize("how", ["truncated", "written"])
def test_a_mapped_file_that_changes(path, how):
    iterator = mapped(path)
    epoch = iterator()
    next(epoch)
    change_file(path, how)  # reading on after a truncation would be a bus error
    text = re.escape(f"{str(path)!r} was changed while an iterator was reading it. Create")
    for batches in (epoch, iterator()):
        with pytest.raises(FileFormatError, match=text):
            next(batches)


def test_what_is_mapped_stays(path):
    iterator, changes = mapped(path), [lambda: save_data(path, {"x": np.zeros((1, 40, 1000))})]
    for change in (*changes, path.unlink):
        change()
        batches = [batch["x"] for batch in iterator()]
        assert np.array_equal(np.concatenate(batches, axis=1).ravel(), np.arange(40_000))


def test_arrays_that_the_user_writes_to(tmp_path):
    data = np.memmap(tmp_path / "x", np.float32, "w+", shape=(1, 8, 3))
    iterator = Minibatches(4, shuffle=False, x=data)
    next(iterator())
    data[:] = 1
    data.flush()
    os.utime(tmp_path / "x", ns=(1, 1))
    assert next(iterator())["x"].sum() == 12
