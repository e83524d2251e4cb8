"""Batches from HDF5 files: their order, what is in memory, threads, and what can go wrong."""

import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from itertools import chain

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.data_iterators import Hdf5Minibatches, Minibatches, load_data
from brainstorm.errors import FileFormatError, IteratorValidationError
from tests.data_iterators.iterating import (
    change_file,
    check_epochs,
    numbered,
    order_of,
    refused,
    threads,
)
from tests.trainings import in_a_fork, needs_fork

X = np.zeros((1, 2, 3))


def write(path, chunk=None, **arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            chunks = chunk and (array.shape[0], min(chunk, array.shape[1]), *array.shape[2:])
            file.create_dataset(name, data=array, chunks=chunks)
    return path


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "data.hdf5", chunk=5, default=numbered(40, 3))


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    assert not threads()


# -- the order ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    window=st.integers(1, 5),
    chunk=st.sampled_from([None, 1, 3, 7, 50]),
    shuffle=st.sampled_from([True, False, "batches"]),
)
def test_every_sequence_comes_once_per_epoch(
    tmp_path_factory, samples, batch_size, window, chunk, shuffle
):
    file = write(tmp_path_factory.mktemp("a") / "x.hdf5", chunk=chunk, default=numbered(samples, 2))
    iterator = Hdf5Minibatches(file, batch_size, shuffle, window=window, default="default")
    check_epochs(iterator, samples, batch_size, shuffle)


def test_chunks_are_shuffled_and_sequences_mixed_in_a_window(tmp_path):
    file = write(tmp_path / "x.hdf5", chunk=10, default=numbered(400))
    iterator = Hdf5Minibatches(file, 5, window=8, default="default")
    assert iterator.chunk_size == 10
    first, second = order_of(iterator()), order_of(iterator())
    assert first != second
    windows = [list(chain(*first[i : i + 8])) for i in range(0, len(first), 8)]
    for window in windows:  # 4 whole chunks, mixed
        chunks = {number // 10 for number in window}
        assert sorted(window) == sorted(10 * c + i for c in chunks for i in range(10))
        assert window != sorted(window)
    assert sorted(windows) != windows
    assert any(max(w) - min(w) > 100 for w in windows)


@pytest.mark.parametrize("shuffle", [True, False, "batches"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, ">f4", np.float64, bool, np.int64])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_batches_hold_what_is_in_the_file(tmp_path, shuffle, dtype, compression):
    data = np.random.RandomState(0).randint(0, 2, (3, 23, 2, 2)).astype(dtype)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file.create_dataset("a/x", data=data, compression=compression)
        file["b"] = numbered(23, 3)
    iterator = Hdf5Minibatches(tmp_path / "x.hdf5", 4, shuffle, window=2, images="a/x", default="b")
    assert iterator.data_shapes == {"images": (2, 2), "default": (2,)}
    assert (iterator.sample_size, iterator.time_size, iterator.length) == (23, 3, 6)
    batches = list(iterator())  # all of them: none may lie in memory that was used again
    for batch, numbers in zip(batches, order_of(batches), strict=True):
        assert type(batch["images"]) is np.ndarray
        assert batch["images"].dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(batch["images"], data[:, numbers])
        batch["images"][:] = 0


def test_batches_are_cut_as_by_minibatches(tmp_path):
    lengths = np.random.RandomState(0).randint(1, 6, 23)
    mask = (np.arange(6)[:, None] < lengths)[:, :, None]
    file = write(tmp_path / "x.hdf5", default=numbered(23, 6), mask=mask)
    paths = {"default": "default", "mask": "mask"}
    stored = Hdf5Minibatches(file, 4, False, window=2, **paths)
    plain = Minibatches(4, False, default=numbered(23, 6), mask=mask)
    for found, expected in zip(stored(), plain(), strict=True):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    whole = Hdf5Minibatches(file, 4, cut_according_to=None, **paths)
    assert {batch["mask"].shape[0] for batch in whole()} == {6}
    renamed = Hdf5Minibatches(file, 1, False, "m", default="default", m="mask")
    assert [len(batch["m"]) for batch in renamed()] == lengths.tolist()


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [4, 40])
def test_never_more_batches_in_memory_than_two_windows_and_those_given(tmp_path, windows):
    batch_bytes, window = 800_000, 3
    features = batch_bytes // 20
    with h5py.File(tmp_path / "large.hdf5", "w") as file:
        shape, chunks = (1, windows * window * 5, features), (1, 5, features)
        file.create_dataset("x", shape, "f4", chunks=chunks, fillvalue=1.0)
    iterator = Hdf5Minibatches(tmp_path / "large.hdf5", 5, window=window, default="x")
    assert iterator.length == windows * window
    tracemalloc.start()
    try:
        for batch in iterator():  # noqa: B007
            pass  # it is there until the next one is
        peak = tracemalloc.get_traced_memory()[1] / batch_bytes
    finally:
        tracemalloc.stop()
    assert 2 * window + 1 < peak < 2 * window + 2.2


def test_what_was_given_is_not_read_again(path, monkeypatch):
    read = []
    monkeypatch.setattr(
        h5py.Dataset,
        "read_direct",
        lambda self, dest, source, _: read.append(source[1].stop - source[1].start),
    )
    iterator = Hdf5Minibatches(path, 4, window=2, check_finite=False, default="default")
    epoch = iterator.resume_epoch(7)
    assert read == []
    assert sum(1 for _ in epoch) == 3
    assert sum(read) == 16  # the two windows from the sixth batch on
    assert list(iterator.resume_epoch(10)) == []


# -- threads --------------------------------------------------------------------------------------


def test_the_thread_ends_with_the_epoch(path):
    iterator = Hdf5Minibatches(path, 4, window=2, default="default")
    assert not threads()
    epoch = iterator()
    assert not threads()
    next(epoch)
    assert len(threads()) == 1
    other = iterator()  # an evaluation meanwhile
    next(other)
    assert len(threads()) == 2
    list(other)
    assert len(threads()) == 1
    epoch.close()
    assert not threads()
    assert not open_files(path)


def open_files(path):
    folder = f"/proc/{os.getpid()}/fd"
    links = [os.path.join(folder, name) for name in os.listdir(folder)]
    return [link for link in links if os.path.exists(link) and os.path.samefile(link, path)]


@pytest.mark.parametrize(
    ("link", "why"),
    [("it", "Too many levels of symbolic links"), ("x" * 300, "File name too long"), ("none", "")],
)
def test_names_that_lead_to_no_file_are_refused_by_every_reader(tmp_path, link, why):
    name = str(tmp_path / link)
    if link == "it":
        os.symlink("it", name)
    error, text = FileFormatError, f"^{re.escape(repr(name))} cannot be op.*: {why}"
    if link == "none":
        error, text = FileNotFoundError, f"^there is no file {re.escape(repr(name))}"
    for read in (lambda: Hdf5Minibatches(name, default="x"), lambda: load_data(name)):
        with pytest.raises(error, match=text):
            read()


def test_a_copy_in_another_process_iterates_alike(path):
    iterator = Hdf5Minibatches(path, 4, window=2, default="default")
    next(iterator())
    copy = pickle.loads(pickle.dumps(iterator))
    assert order_of(copy()) == order_of(iterator())


def test_an_epoch_that_is_left_alone_does_not_keep_the_process(path):
    code = f"""if True:
        from brainstorm.data_iterators import Hdf5Minibatches
        epoch = Hdf5Minibatches({str(path)!r}, 4, window=2, default="default")()
        next(epoch)
        kept = [epoch]
        kept.append(kept)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b""


@needs_fork
@pytest.mark.parametrize("taken", [1, 8])
def test_an_epoch_does_not_go_on_in_a_forked_process(path, taken):
    iterator = Hdf5Minibatches(path, 4, window=2, default="default")
    epoch = iterator()
    for _ in range(taken):
        next(epoch)

    def go_on():
        with pytest.raises(IteratorValidationError, match="in the forked one. Begin another: next"):
            list(epoch)
        return b"%d" % len(list(iterator()))

    assert in_a_fork(go_on) == b"10"
    assert len(list(epoch)) == 10 - taken


# -- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["replaced", "written", "truncated", "removed"])
def test_a_file_that_changes(path, how):
    iterator = Hdf5Minibatches(path, 4, window=1, default="default")
    epoch = iterator()
    next(epoch)
    if how == "replaced":
        write(path.with_name("new"), default=numbered(40, 3)).replace(path)
    else:
        change_file(path, how)
    change = how if how in ("removed", "replaced") else "changed"
    text = re.escape(f"{str(path)!r} was {change} while an iterator was reading it. Create")
    for batches in (epoch, iterator()):
        with pytest.raises(FileFormatError, match=text):
            list(batches)


@pytest.mark.parametrize("content", [b"hello", None], ids=["text", "cut"])
def test_a_damaged_file(path, content):
    with h5py.File(path) as file:
        chunk = file["default"].id.get_chunk_info(7)
    path.write_bytes(content or path.read_bytes()[: chunk.byte_offset + 3])
    with pytest.raises(FileFormatError, match="data.hdf5' cannot be read as a data file: it is tr"):
        Hdf5Minibatches(path, default="default")


def test_a_chunk_that_cannot_be_read(tmp_path):
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", data=numbered(40), chunks=(1, 5, 2), compression="gzip")
        chunk = data.id.get_chunk_info(7)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(content)
    iterator = Hdf5Minibatches(path, 5, shuffle=False, window=1, default="x")
    done = []
    with pytest.raises(FileFormatError, match="x.hdf5' cannot be read as a data file: .*"):
        done.extend(batch["default"] for batch in iterator())
    assert [array[0, 0, 0] for array in done] == list(range(0, 35, 5))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shuffle", [True, False])
def test_numbers_that_are_not_finite(tmp_path, bad, shuffle):
    data = numbered(40, 3).copy()
    data[2, 17, 1] = bad
    file = write(tmp_path / "x.hdf5", y=data)
    with pytest.raises(FileFormatError, match=(
        rf"x.hdf5', data 'default': expected finite numbers, got {bad} in time step 2 of sequence "
        r"17. Correct the file, or allow it: check_finite=False."
    )):  # fmt: skip
        list(Hdf5Minibatches(file, 4, shuffle, window=3, default="y")())
    allowed = Hdf5Minibatches(file, 4, shuffle, window=3, check_finite=False, default="y")
    assert sum((~np.isfinite(batch["default"])).sum() for batch in allowed()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"default": X}, "data 'default': expected the path of a data set, got a ndarray"),
        ({}, "Hdf5Minibatches: expected at least one named array"),
        ({"x": "g/x"},
         r"data 'x': expected \(T, B\) = \(3, 40\) as 'default' has, got shape \(1, 2"),
        ({"window": 0}, "Hdf5Minibatches.window: expected an int >= 1, got 0"),
        ({"cut_according_to": "m"},
         "cut_according_to: unknown data name 'm'. Choices are: default"),
    ],
)  # fmt: skip
def test_unfit_arguments(path, arguments, text):
    with h5py.File(path, "a") as file:
        file["g/x"] = X
    paths = {"default": "default"} if arguments else {}
    with refused(text):
        Hdf5Minibatches(path, **{**paths, **arguments})


@pytest.mark.parametrize("name", ["dfault", "g"])
def test_what_is_no_data_set(path, name):
    with h5py.File(path, "a") as file:
        file["g/x"] = X
    text = f"data.hdf5', data 'default': unknown data set '{name}'. Choices are: default, g/x."
    with pytest.raises(FileFormatError, match=text):
        Hdf5Minibatches(path, default=name)
