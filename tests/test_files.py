"""Network files: the content, and what is refused."""

import os
import re

import h5py
import numpy as np
import pytest

from brainstorm.errors import FileFormatError
from brainstorm.files import NetworkFile, read_network_file, write_network_file
from brainstorm.utils import get_brainstorm_info

CONTENT = NetworkFile(
    description={"@type": "Network", "layers": ["ä", 1.5, None]},
    parameters=np.arange(5, dtype=np.float32),
    persistent={"BatchNorm.internals.mean": np.ones((2, 3)), "B.internals.var": np.zeros(1)},
    comment="größer",
)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.hdf5"
    write_network_file(path, CONTENT)
    return path


def test_what_was_written_is_read(file):
    again = read_network_file(str(file))
    assert again.description == CONTENT.description
    assert again.comment == CONTENT.comment
    assert again.parameters.dtype == np.float32
    assert np.array_equal(again.parameters, CONTENT.parameters)
    assert again.persistent.keys() == CONTENT.persistent.keys()
    for path, values in CONTENT.persistent.items():
        assert np.array_equal(again.persistent[path], values)


def test_the_file_says_what_it_is(file):
    with h5py.File(file) as opened:
        assert opened.attrs["format"] == "Network file v2.0"
        assert opened.attrs["info"] == get_brainstorm_info().decode()
        assert opened.attrs["comment"] == "größer"
        assert opened["parameters"].compression == "gzip"


def test_a_network_without_parameters_statistics_or_comment(tmp_path):
    path = tmp_path / "net.hdf5"
    write_network_file(path, NetworkFile({}, np.zeros(0), {}, ""))
    again = read_network_file(path)
    assert again.parameters.shape == (0,)
    assert (again.description, again.persistent, again.comment) == ({}, {}, "")
    with h5py.File(path) as opened:
        assert "comment" not in opened.attrs


@pytest.mark.parametrize(
    "unwritable",
    [
        CONTENT._replace(description={"x": float("nan")}),
        CONTENT._replace(persistent={"x": np.array([object()])}),
    ],
)
def test_a_failure_while_writing_leaves_the_old_file_and_no_temporary(file, unwritable):
    before = file.read_bytes()
    with pytest.raises((ValueError, TypeError)):
        write_network_file(file, unwritable)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


# -- refusals -----------------------------------------------------------------------------------


def test_a_missing_file(tmp_path):
    path = tmp_path / "nothing.hdf5"
    with pytest.raises(FileNotFoundError, match=f"^there is no file '{re.escape(str(path))}'$"):
        read_network_file(path)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.9, 0.99])
def test_a_truncated_file(file, fraction):
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * fraction)])
    with pytest.raises(FileFormatError, match=r"net.hdf5' cannot be read as a network file: it is "
                       r"truncated or of another kind"):  # fmt: skip
        read_network_file(file)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "net.hdf5"
    path.write_text("a letter to my aunt")
    with pytest.raises(FileFormatError, match="truncated or of another kind"):
        read_network_file(path)


def _change(file, change):
    with h5py.File(file, "r+") as opened:
        change(opened)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.attrs.__delitem__("format"),
            "net.hdf5': expected a 'Network file', got 'an HDF5 file without a format'.",
        ),
        (
            lambda f: f.attrs.__setitem__("format", b"Logs file v1.0"),
            "net.hdf5': expected a 'Network file', got 'Logs file v1.0'.",
        ),
        (
            lambda f: f.attrs.__setitem__("format", "Network file v3.1"),
            "net.hdf5': format version 3.1 is newer than the 2.x that this brainstorm reads. "
            "Install a newer brainstorm.",
        ),
        (lambda f: f.__delitem__("parameters"), "truncated or of another kind"),
        (lambda f: f.__delitem__("description"), "truncated or of another kind"),
        (lambda f: (f.__delitem__("description"), f.__setitem__("description", b"{")),
         "truncated or of another kind"),
    ],
)  # fmt: skip
def test_a_foreign_or_damaged_file(file, change, message):
    _change(file, change)
    with pytest.raises(FileFormatError, match=re.escape(message)):
        read_network_file(file)


@pytest.mark.parametrize("version", ["1.0", "2.7"])
def test_an_older_or_slightly_newer_version_is_read(file, version):
    _change(file, lambda f: f.attrs.__setitem__("format", f"Network file v{version}".encode()))
    assert read_network_file(file).description == CONTENT.description
