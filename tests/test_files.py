"""Network files and run files: the content, and what is refused."""

import functools
import math
import os
import re
from collections import OrderedDict

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brainstorm.errors import FileFormatError, TrainingError, ValidationError
from brainstorm.files import (
    NetworkFile,
    RunFile,
    read_network_file,
    read_run_file,
    write_network_file,
    write_run_file,
)
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


def assert_same(again, content):
    assert (again.description, again.comment) == (content.description, content.comment)
    assert again.parameters.dtype == content.parameters.dtype
    assert np.array_equal(again.parameters, content.parameters)
    assert again.persistent.keys() == content.persistent.keys()
    for path, values in content.persistent.items():
        assert np.array_equal(again.persistent[path], values)


DEEP = functools.reduce(lambda inner, _: [inner], range(70), 0)
LARGE = {"integers": [2**64 - 1, -(2**63), 10**20 - 1]}


@pytest.mark.parametrize(
    "content", [CONTENT, NetworkFile({}, np.zeros(0), {}, ""), CONTENT._replace(description=LARGE)]
)
def test_what_was_written_is_read(tmp_path, content):
    write_network_file(tmp_path / "net.hdf5", content)
    assert_same(read_network_file(str(tmp_path / "net.hdf5")), content)


def test_the_file_says_what_it_is(file):
    with h5py.File(file) as opened:
        assert opened.attrs["format"] == "Network file v2.0"
        assert opened.attrs["info"] == get_brainstorm_info().decode()
        assert opened["parameters"].compression == "gzip"
    for comment, written in (("größer", "größer"), ("", None), (3, "3"), ("a\udcff", "a?")):
        write_network_file(file, CONTENT._replace(comment=comment))
        with h5py.File(file) as opened:
            assert opened.attrs.get("comment") == written


@pytest.mark.parametrize(
    "unwritable",
    [
        CONTENT._replace(description={"x": float("nan")}),
        CONTENT._replace(description={"x": DEEP}),
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


def put(filename, name, value):
    """Replace the format or a data set in a file; `None` removes it."""
    with h5py.File(filename, "r+") as file:
        place = file.attrs if name == "format" else file
        del place[name.partition("/")[0]]
        if value is not None:
            place[name] = value


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("format", None, "expected a 'Network file', got 'an HDF5 file without a format'."),
        ("format", b"Logs file v1.0", "expected a 'Network file', got 'Logs file v1.0'."),
        ("format", "Network file v3.1",
         "format version 3.1 is newer than the 2.x that this brainstorm reads. "
         "Install a newer brainstorm."),
        *((name, None, "truncated or of another kind") for name in ("parameters", "description")),
        ("description", b"{", "truncated or of another kind"),
        ("description", b'{"x": NaN}', "description: NaN is not a number that a description can"),
        ("description", b'{"x": 123456789012345678901}', "description: 12345678901234567890... is"),
        ("description", b'{"x": -123456789012345678901}', "description: -1234567890123456789... "),
        ("description", b"[]", "description: expected a dict"),
        ("description", b"[" * 100_000, "recursion"),
        ("description", b'{"a":' * 99 + b"0" + b"}" * 99, "description: expected at most 64 le"),
        ("description", np.arange(3), "description: expected a text"),
        ("description", b"\xff", "can't decode byte"),
        ("parameters", b"text", "parameters: expected an array of numbers"),
        ("parameters/x", 5, "parameters: expected an array of numbers"),
        ("parameters", h5py.SoftLink("/persistent"), "a group has links to other places"),
        ("parameters", h5py.ExternalLink("/etc/passwd", "/"), "is a link to another place or file"),
    ],
)  # fmt: skip
def test_a_foreign_damaged_or_hostile_file(file, name, value, text):
    put(file, name, value)
    with pytest.raises(FileFormatError, match=f"net.hdf5'.*{re.escape(text)}"):
        read_network_file(file)


# -- run files ----------------------------------------------------------------------------------


def through_file(folder, state):
    path = folder / "run.hdf5"
    write_run_file(path, RunFile(CONTENT, {"@type": "Trainer"}, state))
    return read_run_file(path)


def alike(a, b):
    """Return whether two values are equal, with their types, and NaN equal to NaN."""
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and (a == b or (math.isnan(a) and math.isnan(b)))


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
ARRAYS = st.builds(
    lambda shape, dtype: (np.arange(np.prod(shape, dtype=int)).reshape(shape) - 3).astype(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["f4", "f8", "u4", "i8", "?", "c16"]),
)
NAMES = st.text(st.sampled_from("ab./@|'%é \0"), max_size=4)
STATES = st.dictionaries(
    NAMES,
    st.recursive(
        PLAIN | ARRAYS.filter(lambda a: a.ndim > 0),
        lambda below: st.lists(below)
        | st.lists(below).map(tuple)
        | st.dictionaries(NAMES, below),
        max_leaves=8,
    ),
)  # fmt: skip


@settings(max_examples=30)
@given(STATES)
@example({".": np.arange(3)})
def test_a_state_comes_back_as_it_was(tmp_path_factory, state):
    again = through_file(tmp_path_factory.mktemp("state"), state)
    assert alike(again.state, state)


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([0.1 * n for n in range(100)], (100,)),
        ([math.nan, -0.0, math.inf] * 40, (120,)),
        (list(range(100)), (100,)),
        ([2**70, *range(100)], None),
        ([*range(2**63 - 50, 2**63 + 50)], None),
        ([1, 2.0] * 40, None),
        ([True, False] * 40, (80,)),
        ([[0.5], [1.5]] * 40, (80, 1)),
        ([[[0, 1, 2]] * 5] * 6, (6, 5, 3)),
        ([[0.5] * 50, [0.5] * 49], None),
        ([[0.5] * 50, 0.5], None),
        ([np.float64(0.5)] * 80, None),
        ([[]] * 80, None),
    ],
)
def test_long_lists_keep_their_types(tmp_path, values, shape):
    again = through_file(tmp_path, {"logs": {"loss": values}})
    assert alike(again.state["logs"]["loss"], values)
    with h5py.File(tmp_path / "run.hdf5") as file:
        arrays = file.get("arrays", {})
        assert getattr(arrays.get("logs.loss"), "shape", None) == shape


def test_a_list_that_contains_itself_is_an_error(tmp_path):
    inner = []
    inner.append([inner])
    with pytest.raises(RecursionError):
        through_file(tmp_path, {"a": inner})


def test_long_lists_of_descriptions_are_arrays_in_all_files(tmp_path):
    mask = [[0.0] * 1000, [1.0] * 1000] * 50
    network = CONTENT._replace(description={"mask": mask, "inf": [{"@float": "inf"}] * 80})
    write_network_file(tmp_path / "net.hdf5", network)
    assert os.path.getsize(tmp_path / "net.hdf5") < 50_000  # compressed
    assert_same(read_network_file(tmp_path / "net.hdf5"), network)
    state = {"description": {"mask": np.ones(3)}}
    write_run_file(tmp_path / "run.hdf5", RunFile(network, {"mask": [mask]}, state))
    again = read_run_file(tmp_path / "run.hdf5")
    assert_same(again.network, network)
    assert again.trainer == {"mask": [mask]}
    assert alike(again.state, state)
    assert_same(read_network_file(tmp_path / "run.hdf5"), network)
    with h5py.File(tmp_path / "net.hdf5", "r+") as file:
        file["arrays/description.mask"][3, 3] = math.nan
    with pytest.raises(FileFormatError, match="arrays/description.mask: expected finite numbers"):
        read_network_file(tmp_path / "net.hdf5")
    odd = CONTENT._replace(description={"a": [{"@list": "x"}]})
    with pytest.raises(ValidationError, match=r"^description.a\[0\]: expected no key of \['@arr"):
        write_network_file(tmp_path / "net.hdf5", odd)


def test_a_run_file_is_a_network_file_with_more(tmp_path):
    again = through_file(tmp_path, OrderedDict(a={"b": np.float32(0.5), "c": np.arange(3)}))
    assert again.trainer == {"@type": "Trainer"}
    assert alike(again.state, {"a": {"b": np.float32(0.5), "c": np.arange(3)}})
    for network in (again.network, read_network_file(tmp_path / "run.hdf5")):
        assert_same(network, CONTENT)
    with h5py.File(tmp_path / "run.hdf5") as file:
        assert file.attrs["format"] == "Run file v1.0"
        assert set(file["arrays"]) == {"a.b", "a.c"}
        assert file["parameters"].compression is None  # it is written often


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"hooks": {"A": [0, {"b": object()}]}}, "hooks.A[1].b"),
        ({"hooks": {1: 2}}, "hooks"),
        ({"hooks": {"@array": "x"}}, "hooks"),
        ({"a": np.array(["text"])}, "a"),
        ({"a": {1, 2}}, "a"),
        ({"a": np.ones(2, np.longdouble)}, "a"),
    ],
)
def test_what_no_run_file_can_hold(tmp_path, state, where):
    text = f"^run file, {re.escape(where)}: expected numbers, texts, None, Num"
    with pytest.raises(TrainingError, match=text):
        through_file(tmp_path, state)
    with pytest.raises(ValidationError, match="^state: expected at most 64 levels of lists and"):
        through_file(tmp_path, {"a": DEEP})
    assert os.listdir(tmp_path) == []


def test_older_minor_versions_newer_ones_and_files_of_networks(tmp_path, file):
    for version in ("1.0", "2.7"):
        put(file, "format", f"Network file v{version}".encode())
        assert read_network_file(file).description == CONTENT.description
    with pytest.raises(FileFormatError, match="expected a 'Run file', got 'Network file v2.7'"):
        read_run_file(file)
    through_file(tmp_path, {"a": 1})
    path = tmp_path / "run.hdf5"
    put(path, "format", b"Run file v1.9")
    assert read_run_file(path).state == {"a": 1}
    put(path, "format", b"Run file v2.0")
    for read in (read_run_file, read_network_file):
        with pytest.raises(FileFormatError, match="version 2.0 is newer than the 1.x that this"):
            read(path)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (b'{"a": {"@array": "x"}, "b": {"@array": "x"}}', "'x'"),
        (b'{"a": [{"@list": "x"}, {"@list": "x"}]}', "'x'"),
        (b'{"a": {"@array": []}}', "unhashable"),
        (b'{"a": {"@tuple": 5}}', "not iterable"),
    ],
)
def test_references_to_arrays_that_make_no_sense(tmp_path, state, text):
    through_file(tmp_path, {"x": np.arange(100)})
    path = tmp_path / "run.hdf5"
    put(path, "state", state)
    with pytest.raises(FileFormatError, match=re.escape(text)):
        read_run_file(path)
