"""Data files: what is given, and what the errors say."""

import re

import h5py
import numpy as np
import pytest

from brainstorm.data_iterators import Minibatches, load_data, save_data
from brainstorm.errors import FileFormatError, ValidationError


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "data.hdf5"
    with h5py.File(path, "w") as file:
        file["a/training/default"] = np.arange(60.0).reshape(2, 10, 3)
        file.create_dataset(
            "a/training/targets", data=np.ones((2, 10, 1), "u1"), compression="gzip"
        )
        file["top"] = np.zeros(3)
    return path


def test_the_arrays_of_a_group_feed_an_iterator(path):
    data = load_data(path, "a/training")
    assert list(data) == ["default", "targets"]
    assert isinstance(data["default"], np.memmap)
    batch = next(Minibatches(4, shuffle=False, **data)())
    assert np.array_equal(batch["default"], np.arange(60.0).reshape(2, 10, 3)[:, :4])
    assert list(load_data(path)) == ["top"]


def test_what_is_not_there(path):
    with pytest.raises(FileFormatError, match=re.escape(
        "group 'a/trainin': unknown group 'trainin'. Choices are: training. Did you mean 'training'"
    )):  # fmt: skip
        load_data(path, "a/trainin")


def test_saved_data_are_loaded(tmp_path):
    images = np.arange(2 * 5 * 5 * 3, dtype="u1").reshape(1, 2, 5, 5, 3)
    sequences = np.arange(50 * 9000.0).reshape(50, 9000, 1)
    path = tmp_path / "x.hdf5"
    path.write_text("old")
    save_data(path, {"training": {"default": images, "deep": {"x": 1.5}}, "sequences": sequences})
    assert np.array_equal(load_data(path, "training")["default"], images)
    assert isinstance(load_data(path, "training")["default"], np.memmap)
    assert load_data(path, "training/deep")["x"] == 1.5
    assert np.array_equal(load_data(path)["sequences"], sequences)
    with h5py.File(path) as file:
        assert file["training/default"].chunks is None
        assert file["sequences"].chunks == (50, 655, 1)  # 256 KiB


def test_a_file_that_cannot_be_saved_is_as_it_was(tmp_path):
    path = tmp_path / "x.hdf5"
    save_data(path, {"x": np.ones(3)})
    long = np.ones(2, np.longdouble)
    refused = [(np.array([object()]), "object"), (["a"], "<U1"), (long, long.dtype)]
    for bad, dtype in refused[: 2 + (long.itemsize > 8)]:  # elsewhere it is float64
        with pytest.raises(ValidationError, match=(
            f"^save_data, 'y': expected an array of numbers, got dtype {dtype}. Convert it, texts"
        )):  # fmt: skip
            save_data(path, {"x": np.zeros(3), "y": bad})
    for name in ("", ".", 3, "a/b"):
        with pytest.raises(ValidationError, match=f"text without slashes as name, got {name!r}"):
            save_data(path, {name: np.zeros(3)})
    with pytest.raises(ValidationError, match="save_data: expected a dict from names to arrays, g"):
        save_data(path, np.zeros(3))
    assert load_data(path)["x"].tolist() == [1, 1, 1]
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.hdf5"]
