"""Data from outside: which T and B they have, and the text of every refusal."""

import re

import numpy as np
import pytest

from brainstorm.errors import MissingDataError, NetworkValidationError
from brainstorm.network.external_data import DataCheck, split_batch
from brainstorm.structure.buffer_structure import BufferStructure

EXPECTED = {
    "default": BufferStructure("T", "B", 8, 8, 1),
    "label": BufferStructure("B", 2),
    "fixed": BufferStructure(3, 2),
}
#: What it has accepted or refused must not change what it says of other data.
CHECK = DataCheck(EXPECTED)


def data(T=4, B=5, **changes):
    arrays = {
        "default": np.zeros((T, B, 8, 8, 1), np.float32),
        "label": np.zeros((B, 2), int),
        "fixed": np.zeros((3, 2)),
    }
    return {**arrays, **changes}


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("default", "label", "fixed", "extra"), (4, 5, 3)),
        (("label", "fixed"), (7, 5, 3)),
        (("fixed",), (7, 9, 3)),
    ],
)
def test_sizes_that_no_data_have_are_the_present_ones(names, sizes):
    some = data(extra="is ignored")
    given = {name: some[name] for name in names}
    assert CHECK(given, False, (7, 9, 3)) == sizes


@pytest.mark.parametrize("size", [0, -1, 1.5, None])
def test_batches_have_at_least_one_sequence(size):
    with pytest.raises(
        NetworkValidationError, match=f"batch_size: expected an int >= 1, got {size}"
    ):
        next(split_batch(data(), CHECK, size))


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float64])
def test_all_real_numbers_are_taken(dtype):
    assert CHECK(data(label=np.zeros((5, 2), dtype)), True) == (4, 5, 1)


def test_arrays_of_other_handlers_need_only_a_shape():
    class DeviceArray:
        shape = (4, 5, 8, 8, 1)

    assert CHECK({"default": DeviceArray()}, False) == (4, 5, 1)


SHAPES = "expected (T, B, 8, 8, 1), got "

REFUSALS = [
    ([1, 2], "data: expected a dict from input names to arrays, got list."),
    (data(default=[[1.0]]), "data 'default': expected an array, got list. Use np.asarray."),
    (data(label=np.zeros((5, 2), complex)),
     "data 'label': expected numbers, got dtype complex128. Convert it first."),
    (data(label=np.ma.masked_array(np.zeros((5, 2)), True)),
     "data 'label': expected a plain array, got a masked one. Fill it, x.filled(0), and give"),
    (data(label=np.array([["a"] * 2] * 5)), "data 'label': expected numbers, got dtype <U1."),
    (data(default=np.zeros((4, 5, 8, 8, 3))), f"data 'default': {SHAPES}(4, 5, 8, 8, 3)."),
    (data(default=np.zeros((5, 8, 8, 1))),
     f"data 'default': {SHAPES}(5, 8, 8, 1). Add an axis: array[None] without time steps, "
     "array[:, None] for one sequence."),
    (data(default=np.zeros((8, 8, 1))),
     f"data 'default': {SHAPES}(8, 8, 1). For a single row add two axes: array[None, None]."),
    (data(default=np.zeros((4, 5, 64))),
     f"data 'default': {SHAPES}(4, 5, 64). The same values fit as array.reshape(T, B, 8, 8, 1)."),
    (data(default=np.zeros((4, 5, 1, 8, 8))),
     f"data 'default': {SHAPES}(4, 5, 1, 8, 8). Move the axes; channels of images are the last"),
    (data(default=np.float32(1)), f"data 'default': {SHAPES}()."),
    (data(fixed=np.zeros((2, 3))), "data 'fixed': expected (3, 2), got (2, 3)."),
    (data(T=0), "data 'default': is empty, its shape is (0, 5, 8, 8, 1)."),
    (data(B=0), "data 'default': is empty, its shape is (4, 0, 8, 8, 1)."),
    *((data(label=np.zeros((B, 2))),
       f"data 'label': expected B=5 as in data 'default', got B={B} (shape ({B}, 2)). All data of "
       "a batch share T and B.") for B in (4, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("given_data", "message"), REFUSALS, ids=[r[1][:40] for r in REFUSALS])
def test_refusals(given_data, message):
    for _ in range(2):
        with pytest.raises(NetworkValidationError, match=f"^{re.escape(message)}"):
            CHECK(given_data, all_inputs=True)
        assert CHECK(data(), all_inputs=True) == (4, 5, 1)


def test_missing_data():
    some = {"label": data()["label"], "labels": np.zeros(5)}
    text = (
        "data for 'default', 'fixed' is missing. The network's inputs are 'default', 'label', "
        "'fixed'; got 'label', 'labels'. Provide it, or keep what the buffers hold with "
        "provide_external_data(..., all_inputs=False)."
    )
    assert CHECK(some, all_inputs=False) == (1, 5, 1)
    with pytest.raises(MissingDataError, match=f"^{re.escape(text)}$") as caught:
        CHECK(some, all_inputs=True)
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("nothing", [{}, {"other": np.zeros((1, 1, 1))}])
def test_nothing_at_all_is_refused_in_any_case(nothing):
    with pytest.raises(MissingDataError, match="data for 'default', 'label', 'fixed' is missing"):
        CHECK(nothing, all_inputs=False)
