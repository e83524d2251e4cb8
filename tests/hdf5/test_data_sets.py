"""Data sets: every type of elements, every layout, and bombs."""

import zlib

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brainstorm.hdf5 import MalformedError, open_hdf5
from tests.hdf5.hostile import HOSTILE
from tests.trainings import takes_less_than

CODES = "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 S3"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.hdf5"


def read(path, mapped=False):
    with path.open("rb") as stream:
        root = open_hdf5(stream)
        return root["x"].map() if mapped else root["x"].read()


def equal(found, wanted):
    return (
        found.dtype == wanted.dtype
        and found.shape == wanted.shape
        and found.tobytes() == wanted.tobytes()
    )


@pytest.mark.parametrize("code", CODES.split())
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_all_types_and_shapes(path, code, order, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(order + code)
    with h5py.File(path, "w") as file:
        file["x"] = array
    assert equal(read(path), array[()])
    assert equal(read(path, mapped=True), array)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    st.sampled_from([{}, {"compression": "gzip"}, {"shuffle": True},
                     {"compression": 9, "shuffle": True}]),
    st.sampled_from(["f4", ">i2", "c16", "?"]),
)  # fmt: skip
def test_chunks_of_all_sizes(tmp_path_factory, dims, options, code):
    shape = tuple(size for size, _ in dims)
    chunks = tuple(min(size, chunk) for size, chunk in dims)
    array = (np.arange(np.prod(shape)).reshape(shape) % 7).astype(code)
    path = tmp_path_factory.mktemp("chunks") / "file.hdf5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=chunks, **options)
    assert equal(read(path), array)


def test_many_chunks(path):
    array = np.arange(5000.0).reshape(50, 100)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=(1, 7))
    assert equal(read(path), array)


def test_texts(path):
    for value in ("größer", ["a", "", "längerer Text" * 50], [["a", "b"]]):
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=value, dtype=h5py.string_dtype())
        assert read(path) == value


def test_an_array_that_was_read_may_be_written_to_but_a_mapped_one_outlives_its_file(path):
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(12.0).reshape(3, 4)
    read(path)[0] = 5.0
    array = read(path, mapped=True)
    assert isinstance(array, np.memmap)
    assert not array.flags.writeable
    assert array[1].tolist() == [4.0, 5.0, 6.0, 7.0]


def _written_terabytes(file):
    file.create_dataset("x", (10**7, 10**7), "f4", chunks=(10, 10))[0, 0] = 1


def _bomb(file):
    file.create_dataset("x", (2**30,), "u1", chunks=(2**30,), compression="gzip")
    file["x"].id.write_direct_chunk((0,), b"\x78\x9c" + b"\0" * 100)


def _many_names_of_one_text(file):
    size = 4_000_000
    file["one"] = ["a text"]
    file.flush()
    with open(file.filename, "rb") as raw:
        raw.seek(file["one"].id.get_offset())
        reference = raw.read(16)
    file.create_dataset("x", (size,), h5py.string_dtype(), chunks=(size,), compression="gzip")
    file["x"].id.write_direct_chunk((0,), zlib.compress(reference * size, 9))


def _rows_of_nothing(file, dtype):
    file.create_dataset("x", (2**40, 0), dtype)


def _repeated(file, times, name):
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_chunk((2**20,))
    for _ in range(times):
        getattr(options, f"set_{name}")(*[9] * (name == "deflate"))
    space = h5py.h5s.create_simple((2**20,))
    made = h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, space, options)
    made.write(h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(2**20))


def _committed(file):
    file["t"] = np.dtype("f8")
    file.create_dataset("x", data=[1.0], dtype=file["t"])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_written_terabytes, "a data set lacks chunks, or has too many"),
        (_bomb, "a chunk has fewer bytes than its shape says"),
        (_many_names_of_one_text, "refer to the same bytes again and again"),
        (lambda f: _rows_of_nothing(f, "f4"), "refer to the same bytes again and again"),
        (lambda f: _rows_of_nothing(f, h5py.string_dtype()), "the same bytes again and again"),
        (lambda f: _repeated(f, 31, "shuffle"), "a data set has passed the filter shuffle twice"),
        (lambda f: _repeated(f, 2, "deflate"), "a data set has passed the filter deflate twice"),
        (_committed, "in other places|neither numbers nor texts|lacks its shape"),
        ("terabytes", "a data set lacks chunks, or has too many"),
        ("external data", "a data set lies in other files"),
        ("virtual", "a data set is virtual, or stored in an unsupported way"),
        ("filter", "passed filter 32000, not"),
        ("checked", "passed filter 3, not"),
        ("scaled", "passed filter 6, not"),
        ("records", "neither numbers nor texts"),
        ("references", "neither numbers nor texts"),
        ("nothing", "an unsupported shape"),
    ],
)
def test_what_is_refused_without_taking_memory(path, make, text):
    with h5py.File(path, "w") as file:
        HOSTILE[make](file, "x") if isinstance(make, str) else make(file)
    with takes_less_than(2**20), pytest.raises(MalformedError, match=text):
        read(path)


def test_a_deflated_chunk_that_is_larger_than_its_shape(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros(10**6, "u1"), chunks=(10**6,), compression="gzip")
        _, packed = file["x"].id.read_direct_chunk((0,))
        del file["x"]
        file.create_dataset("x", (1000,), "u1", chunks=(1000,), compression="gzip")
        file["x"].id.write_direct_chunk((0,), packed)
    with pytest.raises(MalformedError, match="it is cut off|bytes in place of 1000"):
        read(path)


def test_a_damaged_chunk(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(1000), chunks=(1000,), compression="gzip")
        _, packed = file["x"].id.read_direct_chunk((0,))
    data = path.read_bytes()
    middle = data.index(packed) + len(packed) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    with pytest.raises(MalformedError, match="a chunk cannot be unpacked|bytes in place of"):
        read(path)
