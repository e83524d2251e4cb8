"""Reading HDF5: everything that h5py writes by default, and what is refused."""

import os

import h5py
import numpy as np
import pytest

from brainstorm.hdf5 import Group, MalformedError, open_hdf5
from tests.hdf5.hostile import HOSTILE


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.hdf5"


def read(path):
    """Return everything in a file as nested dicts."""

    def values(group):
        return {k: values(v) if isinstance(v, Group) else v.read() for k, v in group.items()}

    with path.open("rb") as stream:
        root = open_hdf5(stream)
        return values(root)


def write(path, content, **options):
    with h5py.File(path, "w", **options) as file:
        for name, value in content.items():
            file[name] = value


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 8, 9, 33, 1000])
@pytest.mark.parametrize("ordered", [False, True])
def test_groups_with_any_number_of_names(path, count, ordered):
    names = [f"name {i * 7919 % 1009}" for i in range(count)]
    write(path, {"ä": 1}, track_order=ordered)
    with h5py.File(path, "r+") as file:
        group = file.create_group("g/h", track_order=ordered)
        for number, name in enumerate(names):
            group[name] = number
    found = read(path)
    assert found["ä"] == 1
    assert found["g"]["h"] == {name: number for number, name in enumerate(names)}
    assert list(found["g"]["h"]) == (names if ordered else sorted(names))


def test_texts_as_attributes(path):
    with h5py.File(path, "w") as file:
        file.attrs["bytes"] = b"abc"
        file.attrs["text"] = "größer"
        file.attrs["fixed"] = np.bytes_("xyz")
        file.attrs["number"] = 5
        file.attrs["empty"] = ""
        file.create_group("g").attrs["a"] = "b"
    with path.open("rb") as stream:
        root = open_hdf5(stream)
        assert root.attrs == {"bytes": "abc", "text": "größer", "fixed": "xyz", "empty": ""}
        assert root["g"].attrs == {}


@pytest.mark.parametrize(("low", "superblock"), [("earliest", 0), ("v108", 2), ("v110", 3)])
def test_files_of_several_versions(path, low, superblock):
    write(path, {"g/x": np.arange(3.0), "t": "text"}, libver=(low, "latest"))
    assert path.read_bytes()[8] == superblock
    assert repr(read(path)) == repr({"g": {"x": np.arange(3.0)}, "t": "text"})


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "place", "text"),
    [
        ("external link", "x", "'x' is a link to another place or file"),
        ("soft link", "x", "a group has links to other places, or damaged names"),
        ("soft link", "in order/x", "'x' is a link to another place or file"),
        ("cycle", "g/again", "a group contains itself, or an object has two names"),
        ("second name", "x", "a group contains itself, or an object has two names"),
        ("deep", "", "a group contains itself, or an object has two names"),
    ],
)
def test_links_to_elsewhere_are_refused(path, what, place, text):
    with h5py.File(path, "w") as file:
        file["g/data"] = 1
        file.create_group("in order", track_order=True)
        if what == "second name":
            file[place] = file["g/data"]
        else:
            HOSTILE[what](file, place)
    with pytest.raises(MalformedError, match=text):
        read(path)


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"a letter to my aunt" * 10])
def test_what_is_no_hdf5(path, content):
    path.write_bytes(content)
    with pytest.raises(MalformedError):
        read(path)


def test_a_truncated_file_is_refused_at_every_length(path):
    write(path, {"g/x": np.arange(3.0), "t": "text"})
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        with pytest.raises(MalformedError):
            read(path)


def test_names_in_a_heap_that_overlap_do_not_take_more_than_the_file(path):
    """All entries of a group name the same long text, from other places of it."""
    write(path, {"x" * 4000 + str(number): number for number in range(8)})
    data = bytearray(path.read_bytes())
    heap = data.index(b"HEAP")
    start = int.from_bytes(data[heap + 24 : heap + 32], "little")
    size = int.from_bytes(data[heap + 8 : heap + 16], "little")
    data[start + 8 : start + size - 1] = b"y" * (size - 9)
    data[start + size - 1] = 0
    table = data.index(b"SNOD")
    for entry in range(8):
        at = table + 8 + 40 * entry
        data[at : at + 8] = (8 + entry).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(MalformedError, match="refer to the same bytes again and again"):
        read(path)


def test_a_block_that_continues_in_itself_ends(path):
    write(path, {"x": 1})
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[64:72], "little")
    data[header + 16 : header + 18] = (0x10).to_bytes(2, "little")
    data[header + 24 : header + 40] = (header + 16).to_bytes(8, "little") + (24).to_bytes(
        8, "little"
    )
    path.write_bytes(data)
    with pytest.raises(MalformedError, match="again and again"):
        read(path)


def test_the_root_may_not_be_a_data_set(path):
    write(path, {"x": np.arange(3)})
    with h5py.File(path) as file:
        address = h5py.h5o.get_info(file["x"].id).addr
    data = bytearray(path.read_bytes())
    data[64:72] = address.to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(MalformedError, match="its root is not a group"):
        read(path)
